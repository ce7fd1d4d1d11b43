"""Django's system checks: tables that are missing, and async views where ATOMIC_REQUESTS is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.db import ProgrammingError, connections, router
from django.urls import URLResolver, get_resolver

from postroad.config import DEFAULT_SCHEMA
from postroad.django.operations import schema_version
from postroad.stores.dialects import DIALECTS
from postroad.stores.migrations import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["check_migrated", "check_views"]


@checks.register(checks.Tags.database)
def check_migrated(app_configs: Any, databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """`postroad.W001`: asked for with `check --database default`, and by `migrate`."""
    schema: str = getattr(settings, "POSTROAD_SCHEMA", DEFAULT_SCHEMA)
    found: list[checks.CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor not in DIALECTS or not router.allow_migrate(alias, "postroad"):
            continue
        try:
            version = schema_version(connection, DIALECTS[connection.vendor], schema)
        except ProgrammingError as error:  # no rights
            text = f"DATABASES[{alias!r}]: the version of the postroad tables in {schema!r} can't be read: {error}"
            hint = f"grant select on {schema}.migrations to this user, or run this check as the user that migrates"
            found.append(checks.Warning(text.strip(), hint=hint, id="postroad.W001"))
            continue
        if version < SCHEMA_VERSION:
            there = "has no postroad tables" if not version else f"has postroad tables of version {version}"
            text = f"DATABASES[{alias!r}] {there} in {schema!r}; this postroad needs version {SCHEMA_VERSION}"
            found.append(checks.Warning(text, hint="run: manage.py migrate postroad", id="postroad.W001"))
    return found


@checks.register(checks.Tags.urls)
def check_views(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    """`postroad.W002`: ATOMIC_REQUESTS opens no transaction for async views; Django raises when one is called."""
    atomic = {alias for alias in connections if connections[alias].settings_dict.get("ATOMIC_REQUESTS")}
    if not atomic or not getattr(settings, "ROOT_URLCONF", None):
        return []
    return [
        checks.Warning(
            f"view {_name(view)} is async, and ATOMIC_REQUESTS works with sync views only: "
            "Django raises RuntimeError when it is called",
            hint="mark it with transaction.non_atomic_requests, and add messages in a sync function inside "
            "transaction.atomic(), called by sync_to_async",
            id="postroad.W002",
        )
        for view in _views(get_resolver())
        if iscoroutinefunction(view) and not atomic <= getattr(view, "_non_atomic_requests", set())
    ]


def _views(resolver: URLResolver) -> Iterator[Any]:
    for each in resolver.url_patterns:
        if isinstance(each, URLResolver):
            yield from _views(each)
        else:
            yield each.callback


def _name(view: Any) -> str:
    view = getattr(view, "view_class", view)  # of a view that is a class, as_view() makes functions without its name
    return f"{view.__module__}.{view.__qualname__}" if hasattr(view, "__qualname__") else repr(view)
