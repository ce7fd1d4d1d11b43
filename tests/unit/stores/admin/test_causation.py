"""How the answers of several databases make one graph."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from postroad.admin import Causation, Edge, Handled, KnownMessage, join

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def known(id: str, minute: int) -> KnownMessage:
    return KnownMessage(id=id, type=f"type.{id}", created_at=NOW + timedelta(minutes=minute))


def handled(consumer: str, minute: int, **more: Any) -> Handled:
    values: dict[str, Any] = {"identity": "/shop a", "type": "type.a", "outcome": "processed"} | more
    return Handled(consumer=consumer, at=NOW + timedelta(minutes=minute), **values)


def about(id: str, **more: Any) -> Causation:
    values: dict[str, Any] = {
        "identity": f"/shop {id}", "message": None, "cause": None, "caused": [], "searched_all": True, "handled": [],
    }  # fmt: skip
    return Causation(id=id, **(values | more))


def edge(source: str, target: str, kind: Any) -> Edge:
    return Edge(source=source, target=target, kind=kind)


SHOP = about("a", message=known("a", 0))
STOCK = about("a", handled=[handled("reserve", 1)], caused=[known("b", 1)])
MAIL = about("b", handled=[handled("mailer", 3, outcome="dead", error="no", type="type.b")])


def test_outbox_inbox_outbox_inbox() -> None:
    stock_b = about("b", message=known("b", 1), cause="a")
    graph = join([("shop", SHOP), ("stock", STOCK), ("stock", stock_b), ("mail", MAIL)])
    assert [(node.key, node.database, node.outcome) for node in graph.nodes] == [
        ("message a", "shop", None),
        ("handled stock reserve a", "stock", "processed"),
        ("message b", "stock", None),
        ("handled mail mailer b", "mail", "dead"),
    ]
    assert set(graph.edges) == {
        edge("message a", "handled stock reserve a", "delivered"),
        edge("handled stock reserve a", "message b", "caused"),
        edge("message b", "handled mail mailer b", "delivered"),
    }
    assert len(graph.edges) == 3, "each once"
    assert join([("mail", MAIL), ("stock", stock_b), ("stock", STOCK), ("shop", SHOP)]).nodes == graph.nodes


def test_a_cause_that_no_database_has_is_a_node_too() -> None:
    graph = join([("stock", about("b", message=known("b", 1), cause="a"))])
    assert [(node.key, node.database, node.type) for node in graph.nodes] == [
        ("message a", None, None),
        ("message b", "stock", "type.b"),
    ]
    assert list(graph.edges) == [edge("message a", "message b", "caused")]


def test_with_two_consumers_the_message_itself_is_the_cause() -> None:
    both = about("a", handled=[handled("one", 1), handled("two", 1)], caused=[known("b", 1)])
    graph = join([("stock", both)])
    assert edge("message a", "message b", "caused") in graph.edges


def test_a_dead_letter_has_caused_nothing() -> None:
    one = about("a", handled=[handled("one", 1, outcome="dead"), handled("two", 1)], caused=[known("b", 1)])
    assert edge("handled stock two a", "message b", "caused") in join([("stock", one)]).edges


def test_a_consumer_of_another_database_has_not_caused_it() -> None:
    graph = join([("mail", about("a", handled=[handled("one", 1)])), ("shop", about("a", caused=[known("b", 1)]))])
    assert edge("message a", "message b", "caused") in graph.edges


def test_no_answers_make_no_graph() -> None:
    graph = join([])
    assert (graph.nodes, graph.edges) == ([], [])
