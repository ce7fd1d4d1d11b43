"""Judgements of `postroad doctor` without a server."""

from __future__ import annotations

from typing import Any

from postroad.admin import Finding, Limits, all_checks
from postroad.config import RelaySettings
from postroad.findings import Facts

__all__ = ["judged"]


def judged(check: str, limits: Limits = Limits(), /, **facts: Any) -> list[Finding]:  # noqa: B008 - it is frozen
    """What a check says about these facts."""
    (found,) = [each for each in all_checks() if each.name == check]
    return found.findings(Facts({"schema_name": "postroad", "relay_settings": RelaySettings()} | facts), limits)
