"""docs/glossary.md defines each word once, in two lines at most, and every state of a message is among them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from postroad.lifecycle import State

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
DEFINITION = re.compile(r"^\*\*([A-Za-z -]+)\*\*: (.+?)(?=\n\n|\n\*\*|\Z)", re.MULTILINE | re.DOTALL)
WORDS = [
    "message", "log", "position", "key", "slot", "sink", "lane", "cursor", "snapshot", "page", "wave", "settle",
    "lease", "owner", "epoch", "version", "fence", "heartbeat", "liveness session", "liveness lock", "evict",
    "release", "share", "standby", "deferred", "unsure", "attempt", "refusal", "outage", "route", "blocked route",
    "breaker", "probe", "dead letter", "nap", "mark", "tick", "echo", "poll", "LISTEN connection", "scheduled",
    "rewind", "retention", "inbox", "destination", "relay", "publisher", "subscriber", "listener", "consumer",
    "handler", "operator", "admin", "audit", "durability", "tombstone", "session", "revoked session",
    "partition", "hand-over", "consumer group", "window", "notice", "remedy", "check", "fact", "finding", "fix",
    "at fault", "in order", "live", "ready",
]  # fmt: skip


def definitions() -> Counter[str]:
    return Counter(word for word, _ in DEFINITION.findall(PAGE))


@pytest.mark.parametrize("word", [*WORDS, *(state.value for state in State)])
def test_the_word_is_defined_once(word: str) -> None:
    assert definitions()[word] == 1


def test_no_word_is_defined_twice() -> None:
    assert [word for word, times in definitions().items() if times > 1] == []


@pytest.mark.parametrize(("word", "text"), DEFINITION.findall(PAGE))
def test_a_definition_has_two_lines_at_most(word: str, text: str) -> None:
    assert text.count("\n") <= 1, word
    assert text.rstrip().endswith("."), word


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_glossary_is_linked(page: str) -> None:
    assert "docs/glossary.md)" in (ROOT / page).read_text(encoding="utf-8")
