"""What `make audit` says of what pip-audit found, and that every package has hashes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.audit import verdict

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"

SOUND = {"name": "a", "version": "1", "vulns": []}
ILL = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


def test_a_vulnerability_is_named_and_fails() -> None:
    assert verdict([SOUND, ILL]) == (
        "b 2: CVE-1, CVE-2\n2 packages audited, 1 with known vulnerabilities, 0 not found",
        1,
    )


def test_what_could_not_be_looked_up_is_not_called_sound() -> None:
    assert verdict([UNKNOWN]) == ("SKIPPED: none of 1 packages could be looked up; is the network there?", 0)
    words, code = verdict([SOUND, UNKNOWN])
    assert (words.splitlines()[0], code) == ("NOT AUDITED: c", 1)
    assert verdict([SOUND]) == ("1 packages audited, 0 with known vulnerabilities, 0 not found", 0)


def test_every_package_is_pinned_with_hashes() -> None:
    packages = re.split(r"^(?=[a-z0-9])", CONSTRAINTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(packages) > 50
    for package in packages:
        assert re.match(r"[a-z0-9.-]+==\S+", package), package[:80]
        assert "--hash=sha256:" in package, package[:80]
