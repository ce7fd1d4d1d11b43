"""How every command that changes something runs: plan, preview, confirm, act, show.

A command declares its plan: `@changes(…)` gives it the options `--dry-run`, `--yes`, `--reason`, `--who` and `--json`,
runs it, and prints the result. The audit is written by `Admin`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from postroad.admin import Admin, By, Count, open_admin
from postroad.errors import InvalidSetting, NotFound
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, DryRun, Reason, Who, Yes
from postroad.ops.prompts import actor, confirm, optional_reason, progress, required_reason
from postroad.ops.rendering.text import count
from postroad.ops.settings import Settings
from postroad.ops.terminal import as_json as in_json
from postroad.stores.admin.names import suggestion

if TYPE_CHECKING:
    from postroad.admin import Done, OnProgress

__all__ = ["Plan", "Planning", "about", "changes", "resolve_sink", "with_admin"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command would change, and how."""

    changes: Count
    """How many things it would change. If that is exactly none, the command fails with `nothing`."""
    nothing: str = ""
    routine: bool = False
    """Whether the command runs every day, where nothing to change is no failure."""
    would: str
    """What `--dry-run` prints."""
    question: str | None = None
    """What is to be confirmed. None: the change is easily undone, and made at once."""
    act: Callable[[Admin, By, OnProgress | None], Awaitable[Done]]
    """Makes the change."""
    thing: str
    """What `Done.changed` counts, such as "message"."""
    done: Callable[[str], str]
    """What is printed afterwards, given such as "2 messages"."""
    progress: str | None = None
    """The label of a progress bar, for a change in batches."""


Planning = Callable[[Admin], Awaitable[Plan]]
"""Makes the plan. It reads from the database and changes nothing."""


def with_admin(settings: Settings, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Connect to the database and run this.

    No question is asked while it runs, so that Ctrl-C at a question leaves no connection or task behind.
    """

    async def connected() -> T:
        database, schema = settings.needed("database"), settings.command.schema
        async with open_admin(database, schema=schema, connections=1) as admin:
            return await work(admin)

    return asyncio.run(connected())


async def resolve_sink(admin: Admin, sink: str | None) -> str:
    """The sink with this name. Without a name, the only one; raises InvalidSetting if there are several."""
    if sink is not None:
        return sink
    sinks = await admin.sinks()
    if len(sinks) != 1:
        raise InvalidSetting(f"--sink is missing; {suggestion('', sinks)}")
    return sinks[0]


def about(number: Count, thing: str) -> str:
    """A number of things; an estimate begins with "about"."""
    return f"{'' if number.exact else 'about '}{count(number.number, thing)}"


_OPTIONS = {
    "dry_run": (DryRun, False),
    "yes": (Yes, False),
    "reason": (Reason, None),
    "who": (Who, None),
    "as_json": (AsJson, False),
}


def changes(*settings: str, reason_required: bool) -> Callable[[Callable[..., Planning]], Callable[..., None]]:
    """Make a command of a function that parses its own options and returns its planning.

    It has these settings as options, beside those for the database.
    """
    names = (*FOR_ANY_DATABASE, *settings)

    def decorate(declare: Callable[..., Planning]) -> Callable[..., None]:
        own = inspect.signature(declare, eval_str=True, locals={"Settings": Settings}).parameters.values()

        @wraps(declare)
        def run(
            *, settings: Settings, dry_run: bool, yes: bool, reason: str | None, who: str | None, as_json: bool,
            **arguments: Any,
        ) -> None:  # fmt: skip
            plan = with_admin(settings, declare(settings=settings, **arguments))
            if plan.changes == Count(0):
                if not plan.routine:
                    raise NotFound(plan.nothing)
                typer.echo(in_json({"dry_run": dry_run, "changed": 0}) if as_json else plan.nothing)
                return
            if dry_run:
                _show_plan(plan, as_json=as_json)
                return
            by = By(actor(who), required_reason(reason) if reason_required else optional_reason(reason))
            if plan.question is not None:
                confirm(plan.question, yes=yes)
            bar = nullcontext(None) if plan.progress is None else progress(plan.progress, plan.changes.number)
            with bar as on_progress:
                done = with_admin(settings, lambda admin: plan.act(admin, by, on_progress))
            _show_done(plan, done, as_json=as_json)

        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _OPTIONS.items()
        ]
        vars(run)["__signature__"] = inspect.Signature([*own, *options])
        return takes(*names)(run)

    return decorate


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    would = {"dry_run": True, "would_change": plan.changes.number}
    typer.echo(in_json(would) if as_json else f"{plan.would}. Nothing was changed.")


def _show_done(plan: Plan, done: Done, *, as_json: bool) -> None:
    left = ", ".join(f"{number:,} {state}" for state, number in done.unchanged.items() if number)
    if not done.changed:
        others = f" ({left})" if left else ""
        raise NotFound(f"no {plan.thing} was left to change{others}; another operator may have been faster")
    if as_json:
        typer.echo(in_json({"dry_run": False, "changed": done.changed, "unchanged": dict(done.unchanged)}))
    else:
        typer.echo(plan.done(count(done.changed, plan.thing)) + (f"; unchanged: {left}" if left else ""))
