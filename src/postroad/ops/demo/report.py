"""Prints the introduction and the result of the audit."""

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
    """Print what the demo does, and where its files are."""
    console.print(Text.assemble("\n", ("postroad demo", "bold"), ": orders, deliveries, and processes that get killed"))
    if plan.sabotage:
        console.print("Sabotage: there is no outbox. The shop itself tells the warehouse, in the")
        console.print("background, before it commits.")
    else:
        console.print("The shop writes each order and its message in one transaction. The relay")
        console.print("delivers the messages to the warehouse.")
    fate = "kept" if kept else "deleted at the end; --directory DIR keeps them"
    console.print(Text(f"\nfiles  {plan.directory}\n       ({fate})", "dim"), soft_wrap=True)
    console.print(Text(f"seed   {plan.seed} (--seed {plan.seed} places the same orders again)\n", "dim"))


def show_audit(console: Console, result: Audit, kills: Mapping[str, int]) -> None:
    """Print the numbers of the audit and its conclusion."""
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
    verb = "sent" if result.logged is None else "added"
    yield _line("", "orders placed", result.orders, "committed")
    yield _line("", "orders rolled back", result.declined, f"declined after the message had been {verb}")
    yield _line(
        "", "messages in the log", result.logged, "no outbox" if result.logged is None else "written with the orders"
    )
    yield _line("", "deliveries", result.deliveries, "every call of the warehouse's handler")
    again = "sent again after a kill; the message id tells" if result.duplicates else "nothing was sent twice"
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
    in_order = f"first arrivals, for each of {result.customers} customers"
    disorder = f"of {result.customers} customers got a later order first"
    yield verdict("out of order", result.disordered, in_order, disorder)


def _conclusion(result: Audit, kills: Mapping[str, int]) -> list[str]:
    killed = " and ".join(f"the {who} {_times(number)}" for who, number in kills.items())
    if result.passed:
        though = f"though SIGKILL hit {killed}." if killed else "but no process was killed, so this proves little."
        return ["PASSED: nothing lost, nothing made up, each customer's orders in order,", though]
    if result.logged is not None:
        return ["FAILED, and that must not happen.", "Please report it, with the seed and the files (--directory)."]
    return [
        "FAILED, as the classic mistake must:",
        *_mistakes(result),
        "With the outbox, order and message are one transaction: postroad demo",
    ]


def _mistakes(result: Audit) -> Iterator[str]:
    if result.phantoms:
        yield f"{result.phantoms} phantoms: sent before the commit, and the commit never came."
    if result.lost:
        yield f"{result.lost} lost: committed, but the message was only in the killed shop's memory."


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
