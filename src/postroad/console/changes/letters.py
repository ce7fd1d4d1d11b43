"""Changes to the dead letters of consumers: retry, drop. The console must know the consumer, because its broker has
the letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.admin import Count, DeadLetterFilter
from postroad.console.access import Right
from postroad.console.changes.plan import Change, Given, Link, Plan, command
from postroad.errors import InvalidSetting
from postroad.wording import count, one_line

if TYPE_CHECKING:
    from postroad.admin import Admin
    from postroad.dead_letters import DeadLetterBox

__all__ = ["CHANGES"]


async def _retry(admin: Admin, given: Given) -> Plan:
    which, box, number, letters = await _chosen(admin, given)
    return Plan(
        would=f"{letters} would be moved from {box.name} back to the consumer, and handled again",
        number=Count(number),
        thing="dead letter",
        nothing=_nothing(which),
        act=lambda by, expected: admin.retry_dead_letters(box, which, by, expected=expected),
        done="{} will be handled again".format,
        command=_command("retry", which),
        back=_BACK,
    )


async def _drop(admin: Admin, given: Given) -> Plan:
    which, box, number, letters = await _chosen(admin, given)
    return Plan(
        would=f"{letters} would be dropped from {box.name}",
        number=Count(number),
        thing="dead letter",
        nothing=_nothing(which),
        act=lambda by, expected: admin.drop_dead_letters(box, which, by, expected=expected),
        done="dropped {}".format,
        command=_command("drop", which),
        warning="This can't be undone: the consumer will never handle them.",
        back=_BACK,
    )


CHANGES: Final = (
    Change(name="retry-letters", title="Retry dead letters", right=Right.OPERATE, plan=_retry, reason_required=False),
    Change(name="drop-letters", title="Drop dead letters", right=Right.ADMINISTER, plan=_drop),
)
_BACK: Final = Link("Inbox", "inbox")


async def _chosen(admin: Admin, given: Given) -> tuple[DeadLetterFilter, DeadLetterBox, int, str]:
    """The letters that are chosen, where they are, how many would be changed at once, and that in words."""
    name = given.needed("consumer")
    if name not in given.consumers:
        known = ", ".join(given.consumers) or "none"
        raise InvalidSetting(
            f"consumer is {name!r}, and this console knows {known}; start it with --app MODULE:NAME of that consumer"
        )
    which = DeadLetterFilter(
        consumer=name,
        ids=tuple(given.texts("id")),
        type=given.text("type"),
        error=given.text("error"),
        all=given.flag("all"),
    )
    if which.is_empty and not which.all:
        raise InvalidSetting("no dead letters are selected; choose some, or all")
    number = await admin.preview_dead_letters(which)
    newest = "" if number.exact else "the newest "
    letters = f"{newest}{count(number.number, 'dead letter')} of consumer {one_line(name)!r}"
    return which, given.consumers[name].dead_letters(), number.number, letters


def _command(verb: str, which: DeadLetterFilter) -> str:
    options: dict[str, Any] = {"type": which.type, "error": which.error, "all": which.all}
    return command("inbox", "dead", verb, *which.ids, app="MODULE:NAME", **options)


def _nothing(which: DeadLetterFilter) -> str:
    return f"no dead letter of consumer {one_line(which.consumer or '')!r} matches any more"
