"""How the findings of `postroad doctor` look: the worst first, what is well as a number. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from postroad.admin import Level
from postroad.ops.rendering.text import count, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.admin import Finding

__all__ = ["findings_text"]

_INDENT: Final = " " * 9
_LONGEST_VALUE: Final = 400


def findings_text(findings: Sequence[Finding], *, width: int, show_all: bool) -> str:
    """All findings. A fix is one line, however long, so that it can be copied."""
    lines: list[str] = []
    for level in (Level.ERROR, Level.WARNING):
        for finding in findings:
            if finding.level is level:
                lines += _lines(finding, width, show_all=show_all)
    lines += _skipped(findings, width)
    if show_all:
        lines += [line for each in findings if each.level is Level.OK for line in _lines(each, width, show_all=True)]
    return "\n".join([*lines, *([""] if lines else []), _summary(findings)])


def _skipped(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """Checks that could not be made, together with others that have the same reason."""
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.SKIPPED:
            reasons.setdefault(finding.text, []).append(finding.check)
    for reason, checks in reasons.items():
        yield from _wrapped(f"skipped  {', '.join(checks)}: {without_secrets(reason)}", width)


def _wrapped(text: str, width: int) -> list[str]:
    wide = max(width, 40)
    return textwrap.wrap(text, wide, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _lines(finding: Finding, width: int, *, show_all: bool) -> Iterator[str]:
    head = f"{finding.level.upper() if finding.level in {Level.ERROR, Level.WARNING} else finding.level:<8}"
    text = f"{head} {finding.check}: {without_secrets(finding.text)}"
    yield from _wrapped(text, width)
    if finding.fix is not None:
        yield f"{_INDENT}fix: {without_secrets(finding.fix)}"
        yield f"{_INDENT}see: {finding.link}"
    if show_all:
        for name, value in finding.evidence.items():
            yield f"{_INDENT}  {name} = {_shown(value)}"


def _shown(value: Any) -> str:
    return without_secrets(f"{value:,.3f}" if isinstance(value, float) else str(value), _LONGEST_VALUE)


def _summary(findings: Sequence[Finding]) -> str:
    number = {level: sum(each.level is level for each in findings) for level in Level}
    parts = [
        count(number[Level.ERROR], "error"),
        count(number[Level.WARNING], "warning"),
        f"{number[Level.OK]} ok",
        f"{number[Level.SKIPPED]} skipped",
    ]
    return ", ".join(parts)
