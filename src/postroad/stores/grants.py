"""The rights that each kind of PostgreSQL role needs, as SQL."""

from __future__ import annotations

import re
from typing import Final

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import InvalidSetting
from postroad.stores.dialects import POSTGRESQL

__all__ = ["GRANTS", "grants_script"]

GRANTS: Final = ("application", "relay", "operator", "reader", "payloads", "debezium")
"""The kinds of roles. `payloads` is for readers and operators that may see payloads, beside their own grants."""

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")


def grants_script(role: str, schema: str = DEFAULT_SCHEMA, *, kind: str = "application") -> str:
    """What a PostgreSQL role needs for one of `GRANTS`, and no more."""
    if kind not in GRANTS:
        raise InvalidSetting(f"grants is for {kind!r}; it must be for one of {', '.join(GRANTS)}, as in relay=ROLE")
    if not _ROLE.fullmatch(role):
        raise InvalidSetting(f"grants is {role!r}; it must be the name of a PostgreSQL role")
    return POSTGRESQL.sql_file(f"grants/{kind}.sql", schema).replace("{role}", f'"{role}"')
