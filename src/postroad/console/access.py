"""Who may do what in the console: three roles, and a right of its own for payloads. Pure.

A viewer sees everything but payloads. An operator also makes the changes that have a way back. An admin also makes
those that have none. The right to read payloads comes with no role: it is given to a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Right", "Role", "User", "may"]


class Role(StrEnum):
    """What a user is here to do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Right(StrEnum):
    """What a page or a change needs."""

    VIEW = "view"
    OPERATE = "operate"
    """Changes that have a way back: retry and poison, hold and release, pause and resume, drop and restore."""
    ADMINISTER = "administer"
    """Changes that have none: skip, rewind, cleanup, the removal of a sink."""
    READ_PAYLOADS = "read payloads"


_RIGHTS: Final = {
    Role.VIEWER: frozenset({Right.VIEW}),
    Role.OPERATOR: frozenset({Right.VIEW, Right.OPERATE}),
    Role.ADMIN: frozenset({Right.VIEW, Right.OPERATE, Right.ADMINISTER}),
}


@dataclass(frozen=True, slots=True)
class User:
    """A person who is signed in. The name is written into the audit."""

    name: str
    role: Role
    payloads: bool = False
    """Whether the contents of messages may be read."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError(f"name is {self.name!r}; it must be a text that is not empty, for the audit")
        if self.role not in set(Role):
            raise ValueError(f"role is {self.role!r}; it must be {', '.join(Role)}")
        object.__setattr__(self, "role", Role(self.role))


def may(user: User, right: Right) -> bool:
    """Whether the user has this right."""
    return user.payloads if right is Right.READ_PAYLOADS else right in _RIGHTS[user.role]
