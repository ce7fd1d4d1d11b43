"""The words before and after the story: what is about to happen, what the tables say, and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from postroad.ops.demo.audit import Audit
    from postroad.ops.demo.plan import Plan

__all__ = ["show_audit", "show_title"]


def show_title(console: Console, plan: Plan, *, kept: bool) -> None:
    """What is about to happen, and where."""
    console.print(Text.assemble("\n", ("postroad demo", "bold"), ": a shop, a warehouse, and processes that get killed"))
    if plan.sabotage:
        console.print("Sabotage: there is no outbox. The shop publishes by itself, in the background, before it commits.")
    else:
        console.print("The shop writes each order and adds its message in one transaction; the relay carries the messages.")
    fate = "kept" if kept else "deleted at the end; --directory DIR keeps them"
    console.print(Text(f"\nfiles  {plan.directory} ({fate})", "dim"), soft_wrap=True)
    console.print(Text(f"seed   {plan.seed} (--seed {plan.seed} places the same orders again)\n", "dim"))


def show_audit(console: Console, result: Audit, kills: Mapping[str, int]) -> None:
    """What the tables say, and what follows from it."""
    console.print(Text.assemble("\n", ("audit", "bold"), ", from the shop's and the warehouse's own tables\n"))
    for line in (*_facts(result), Text(), *_verdicts(result), Text()):
        console.print(line)
    headline, *reasons = _conclusion(result, kills)
    console.print(Text(headline, "bold green" if result.passed else "bold red"))
    for reason in reasons:
        console.print(Text(f"  {reason}"))


def _line(mark: str, what: str, number: int | None, remark: str, style: str = "") -> Text:
    shown = "none" if number is None else f"{number:,}"
    return Text.assemble((f"  {mark:<4}  {what:<20}{shown:>6}", style), "  ", (remark, "dim"))


def _facts(result: Audit) -> Iterator[Text]:
    told = "sent" if result.logged is None else "added"
    yield _line("", "orders placed", result.orders, "committed")
    yield _line("", "orders rolled back", result.declined, f"the card was declined after the message had been {told}")
    yield _line("", "messages in the log", result.logged, "written with the orders" if result.logged else "no outbox")
    yield _line("", "deliveries", result.deliveries, "every call of the warehouse's handler")
    again = "sent again after a kill; the inbox hides them" if result.duplicates else "nothing was sent twice"
    yield _line("", "duplicates", result.duplicates, again)


def _verdicts(result: Audit) -> Iterator[Text]:
    def verdict(what: str, wrong: int, fine: str, bad: str) -> Text:
        mark, style = ("FAIL", "bold red") if wrong else ("ok", "green")
        return _line(mark, what, wrong, bad if wrong else fine, style)

    yield verdict("lost", result.lost, "every order was delivered", "committed orders that were never delivered")
    yield verdict("phantoms", result.phantoms, "every delivery is an order", "delivered, but there is no such order")
    if result.logged is not None:
        wrong = abs(result.logged - result.orders)
        yield verdict("log mismatch", wrong, "one message for each order", "messages too many or too few")
    in_order = f"first arrivals in order for each of {result.customers} customers"
    yield verdict("out of order", result.disordered, in_order, f"of {result.customers} customers got a later order first")


def _conclusion(result: Audit, kills: Mapping[str, int]) -> list[str]:
    happened = " and ".join(f"the {who} was killed {_times(number)}" for who, number in kills.items())
    if result.passed:
        return [f"PASSED: nothing lost, nothing made up, all in order, though {happened}."]
    if result.logged is not None:
        return [f"FAILED, which must not happen, though {happened}.", "Please report it with the seed and the files."]
    reasons = []
    if result.phantoms:
        reasons.append(f"{result.phantoms} phantoms: the message went out before the commit, and the commit never came.")
    if result.lost:
        reasons.append(f"{result.lost} lost: the order was committed, and its message died in the memory of the killed shop.")
    return [
        f"FAILED, as it had to: {happened}.",
        *reasons,
        "With the outbox, order and message stand in one transaction. See it: postroad demo",
    ]


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
