"""Judgements about consumers and files."""

from __future__ import annotations

from postroad.admin import ConsumerFacts, Level, SecretFile
from tests.judging import judged


def test_an_inbox_that_remembers_for_ever() -> None:
    (finding,) = judged("inbox-retention", consumers_given=[ConsumerFacts("c", None, 1e9, {})])
    assert (finding.level, finding.text) == (Level.OK, "consumer 'c' remembers for ever")


def test_consumers_names_are_quoted_in_sql() -> None:
    row = {"consumer": "it's", "messages": 2, "seconds": 1e5}
    (finding,) = judged("running-attempts", running_attempts=[row])
    assert "consumer = 'it''s' and running" in str(finding.fix)


def test_only_files_that_all_can_read_are_named() -> None:
    files = [SecretFile("/a b", "to", True), SecretFile("/c", "database", False)]
    (finding,) = judged("secret-files", secret_files=files)
    assert finding.fix == "chmod o-rwx '/a b'"
