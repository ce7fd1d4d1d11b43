"""How a setting is declared: once, as a field with its default, its kind and a line of help. Pure.

From the declaration come keyword arguments, `POSTROAD_*` variables, keys of the file, command-line options, the tables
of docs/settings.md, and the errors about a wrong value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from postroad.kinds import Kind

__all__ = ["Setting", "SettingsGroup", "check_names", "markdown_table", "nearest", "setting"]


def setting(default: Any, kind: Kind, help: str, *, used: bool = True) -> Any:
    """Declare a setting as a field of a SettingsGroup. A default of None means that it may be left unset."""
    return field(default=default, repr=kind.shows_value, metadata={"kind": kind, "help": help, "used": used})


class SettingsGroup:
    """Base of a frozen, keyword-only dataclass whose fields are all made by `setting`.

    Each value is checked by its kind when the object is built; None is accepted where it is the default.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        these: Any = self
        for each in fields(these):
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                object.__setattr__(self, each.name, each.metadata["kind"].check(each.name, value))

    def seconds(self, name: str) -> float:
        """A duration of this object as seconds."""
        value = getattr(self, name)
        assert isinstance(value, timedelta), name  # noqa: S101 - __post_init__ made it one
        return value.total_seconds()

    @classmethod
    def declared(cls, table: str = "") -> list[Setting]:
        """The declarations, as settings of this table of the file."""
        this: Any = cls
        return [
            Setting(table, each.name, each.default, each.metadata["kind"], each.metadata["help"], each.metadata["used"])
            for each in fields(this)
        ]

    @classmethod
    def of(cls, whose: str, given: Mapping[str, Any], *, similar: Iterable[str] = ()) -> Self:
        """Build the group from keyword arguments. Raises InvalidSetting, as `check_names` does for unknown ones."""
        check_names(whose, given, [each.key for each in cls.declared()], similar=similar)
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting, without a value."""

    table: str
    key: str
    default: Any
    kind: Kind
    help: str
    used: bool
    """False while it is checked, but no code acts on it yet."""

    @property
    def name(self) -> str:
        """Its full name, such as `lanes` or `rabbitmq.exchange`."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"POSTROAD_{self.name.upper().replace('.', '_')}"

    @property
    def option(self) -> str | None:
        """Its name on the command line. A secret has none: every user of the machine can read a process's arguments."""
        return None if self.kind.secrecy == "all" else f"--{self.name.replace('_', '-').replace('.', '-')}"

    @property
    def ways(self) -> str:
        """How it can be set outside of a file."""
        return f"{self.option} or {self.variable}" if self.option else self.variable


def check_names(whose: str, given: Iterable[str], known: Collection[str], *, similar: Iterable[str] = ()) -> None:
    """Refuse names that are not known. The InvalidSetting lists those that are, and suggests one of them or of the
    `similar` names.
    """
    for name in given:
        if name not in known:
            guess = nearest(name, [*known, *similar])
            hint = f"did you mean {guess!r}? " if guess else ""
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidSetting(f"{whose} has no setting {name!r}; {hint}{has}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is like it."""
    from difflib import get_close_matches  # for errors alone

    near = get_close_matches(name, list(known), n=1)
    return near[0] if near else None


def markdown_table(settings: Iterable[Setting]) -> str:
    """The settings as a table for a page of documentation."""
    return "\n".join(["| name | value | default | what it does |", "|---|---|---|---|", *map(_row, settings)]) + "\n"


def _row(setting: Setting) -> str:
    kind = setting.kind
    bounds = kind.expected.removeprefix("a whole number from ") if kind.metavar == "N" else None
    value = bounds or "`" + kind.metavar.replace("|", "\\|") + "`"
    default = "" if setting.default is None else f"`{setting.default}` "
    help = setting.help if setting.used else f"{setting.help} **Checked, not used yet.**"
    return f"| `{setting.key}` | {value} | {default}| {help} |"
