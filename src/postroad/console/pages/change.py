"""Every change: its preview, its confirmation and its result.

The address of a preview says what would change, and its form is sent to the same address with the number that was shown
and a reason. If more would change by then, nothing is changed, and the preview is shown again; a change whose number
grows by itself has a bound in the address instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from postroad.admin import By, Count
from postroad.console.changes.plan import Given
from postroad.errors import CountGrown, InvalidSetting, NotFound
from postroad.wording import count

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.admin import Done
    from postroad.console.changes.plan import Change, Plan
    from postroad.console.context import Context

__all__ = ["done", "given_to", "perform", "preview"]

_LONGEST_REASON: Final = 1000
_ANY: Final = "any"
"""Sent instead of the expected number, if the preview has shown none that must not grow."""
_NO_REASON: Final = "A reason is required: it is written into the audit."


async def preview(change: Change, context: Context) -> Response:
    """What would change, and the form that confirms it."""
    given = given_to(context)
    plan = await change.plan(await context.database.admin(), given)
    return _preview(change, context, plan)


async def perform(change: Change, context: Context) -> Response:
    """Make the change, under the name of the user."""
    given, admin = given_to(context), await context.database.admin()
    plan = await change.plan(admin, given)
    reason, expected = _reason(context), _expected(context)
    if change.reason_required and reason is None:
        return _preview(change, context, plan, problem=_NO_REASON, status=400)
    if plan.number == Count(0):
        return _preview(change, context, plan, status=409)
    if expected is not None and plan.expected is not None and plan.expected > expected:
        return _preview(change, context, plan, problem=_grown(expected), status=409)
    try:
        made = await plan.act(By(context.user.name, reason), expected)
    except CountGrown as grown:  # since the plan was made
        again = await change.plan(admin, given)
        return _preview(change, context, again, problem=_grown(grown.expected), status=409)
    context.database.forget()
    if not made.changed:
        raise NotFound(f"no {plan.thing} was left to change; another operator may have been faster")
    return RedirectResponse(context.address("done", r=context.sign(_result(change, plan, made))), 303)


async def done(context: Context) -> Response:
    """What was changed, how the command line does the same, and the way back."""
    result = context.signed(context.request.query_params.get("r", ""))
    if result is None:
        raise HTTPException(404, "this console has made no such change; the audit has all changes")
    return context.page("done.html", **result)


def given_to(context: Context) -> Given:
    """What the page was opened with."""
    return Given(context.request.query_params.multi_items(), context.shared.consumers)


def _preview(change: Change, context: Context, plan: Plan, *, problem: str = "", status: int = 200) -> Response:
    query = [pair for pair in context.request.query_params.multi_items() if pair[0] not in plan.fixed]
    return context.page(
        "change.html",
        status=status,
        change=change,
        plan=plan,
        problem=problem,
        reason=context.form.get("reason", ""),
        expected=_ANY if plan.expected is None else plan.expected,
        action=context.link(f"do/{change.name}", query, **plan.fixed),
    )


def _result(change: Change, plan: Plan, made: Done) -> dict[str, Any]:
    left = ", ".join(f"{number:,} {state}" for state, number in made.unchanged.items() if number)
    undo = plan.undo
    return {
        "title": change.title,
        "text": plan.done(count(made.changed, plan.thing)) + (f"; unchanged: {left}" if left else ""),
        "command": plan.command,
        "undo": None if undo is None else {"label": undo.label, "path": undo.path, "query": dict(undo.query)},
        "back": {"label": plan.back.label, "path": plan.back.path, "query": dict(plan.back.query)},
    }


def _reason(context: Context) -> str | None:
    reason = context.form.get("reason", "").strip()
    if len(reason) > _LONGEST_REASON:
        raise InvalidSetting(f"reason has {len(reason):,} characters; it must have {_LONGEST_REASON:,} at most")
    return reason or None


def _expected(context: Context) -> int | None:
    text = context.form.get("expected", "")
    if text == _ANY:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidSetting(f"expected is {text!r}; it must be the number that the preview has shown")
    return int(text)


def _grown(expected: int) -> str:
    return f"Nothing was changed: there are more than the {expected:,} that you confirmed. Look again."
