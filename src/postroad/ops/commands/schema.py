"""`postroad schema`: the schemas of an application's events, and what a change of them breaks."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - options are read from annotations
from types import ModuleType
from typing import Annotated, Any, Literal, cast

import msgspec
import typer

from postroad.consumer import Consumer
from postroad.errors import InvalidSetting
from postroad.ops.apps import object_named
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.terminal import as_json as in_json
from postroad.schemas.asyncapi import asyncapi
from postroad.schemas.compare import Change, compare
from postroad.schemas.find import by_type, events_of
from postroad.schemas.json_schema import Schema, document

__all__ = ["schema"]


def schema(
    *,
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE", help="A module with events; or module:name, a consumer, a class, or a list of classes."
        ),
    ],
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="FILE", help="Compare with this earlier schema; fail if consumers would break."
        ),
    ] = None,
    as_asyncapi: Annotated[bool, typer.Option("--asyncapi", help="Write an AsyncAPI 3 document.")] = False,
    api_version: Annotated[
        str, typer.Option("--api-version", metavar="TEXT", help="The version in the AsyncAPI document.")
    ] = "1.0.0",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the JSON Schema of all events of a module, or compare it with an earlier one.

    With --check, each difference is a line, --json prints them as JSON, and the exit code is 1 if one of them would
    break consumers. Changes nothing.
    """
    _check_options(check, as_asyncapi=as_asyncapi, output=output, as_json=as_json)
    events, action = _events(module)
    if as_asyncapi:
        _write(asyncapi(events, title=module, version=api_version, action=action), output)
        return
    found = document(events, title=module)
    if check is None:
        _write(found, output)
        return
    changes = compare(_read(check), found)
    typer.echo(in_json(changes) if as_json else _text(changes, check))
    if any(change.breaks for change in changes):
        raise typer.Exit(1)


def _check_options(check: Path | None, *, as_asyncapi: bool, output: Path | None, as_json: bool) -> None:
    if check is not None and (as_asyncapi or output is not None):
        raise InvalidSetting(
            f"--check is given beside {'--asyncapi' if as_asyncapi else '--output'}; it writes nothing"
        )
    if check is None and as_json:
        raise InvalidSetting("--json is for --check; a schema is JSON in any case")


def _events(given: str) -> tuple[dict[str, type], Literal["send", "receive"]]:
    """The events that are named, by type; and what the application does with them."""
    found: Any = object_named(given, "MODULE")
    if isinstance(found, ModuleType):
        return events_of(found), "send"
    if isinstance(found, Consumer):
        return dict(found.event_classes), "receive"
    if isinstance(found, type):
        return by_type([found]), "send"
    if isinstance(found, list | tuple | set | frozenset):
        return by_type(found), "send"
    raise InvalidSetting(
        f"MODULE is {given!r}, which is of type {type(found).__name__}; it must be a module, a consumer, a class or a "
        "list of classes"
    )


def _read(file: Path) -> Schema:
    try:
        read = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise InvalidSetting(f"--check is {str(file)!r}, which can't be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidSetting(f"--check is {str(file)!r}, which is no JSON: {error}") from None
    if not isinstance(read, dict) or not isinstance(read.get("events"), dict):
        raise InvalidSetting(
            f"--check is {str(file)!r}, which `postroad schema` did not write: it has no events; an AsyncAPI document "
            "can't be compared"
        )
    return cast("Schema", read)


def _write(content: Schema, file: Path | None) -> None:
    text = in_json(content)
    if file is None:
        typer.echo(text)
        return
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(f"--output is {str(file)!r}, which can't be written: {error.strerror}") from None


def _text(changes: list[Change], file: Path) -> str:
    if not changes:
        return f"no change since {file}"
    broken = [change for change in changes if change.breaks]
    lines = [f"{'breaks' if change.breaks else 'ok    '}  {change}" for change in changes]
    end = f"{len(broken)} of {len(changes)} changes would break consumers" if broken else "no consumer would break"
    return "\n".join([*lines, end])
