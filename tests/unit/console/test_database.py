"""The names of databases: given, or their own."""

from __future__ import annotations

import pytest

from postroad import InvalidSetting
from postroad.console.database import named


def test_names_are_given_or_the_databases_own() -> None:
    assert named("postgresql://a:b@host:5432/shop?sslmode=require") == {
        "shop": "postgresql://a:b@host:5432/shop?sslmode=require"
    }
    assert named(["main=sqlite:////tmp/x.db", "sqlite:///orders.sqlite", "postgresql://"]) == {
        "main": "sqlite:////tmp/x.db",
        "orders": "sqlite:///orders.sqlite",
        "database": "postgresql://",
    }
    assert named({"a": "sqlite:///x"}) == {"a": "sqlite:///x"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "database is empty"),
        (["a=sqlite:///x", "a=sqlite:///y"], "two databases have the name 'a'"),
        ({"a/b": "sqlite:///x"}, "has the name 'a/b'"),
        ({"static": "sqlite:///x"}, "has the name 'static'"),
    ],
)
def test_wrong_names_are_refused(given: object, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        named(given)  # type: ignore[arg-type]
