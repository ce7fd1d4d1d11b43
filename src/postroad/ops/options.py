"""Settings as options of a command.

An option is a text, or None if it was not given. Settings validate it, so that a wrong value has the same error whether
it comes from an option, a variable or the file.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.brokers.registry import all_brokers
from postroad.listeners import tell
from postroad.ops.logs import log_to_stderr
from postroad.ops.settings import DEFAULT_FILE, FILE_VARIABLE, Settings, all_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.setting import Setting

__all__ = ["ALL", "FOR_ANY_DATABASE", "takes"]

FOR_ANY_DATABASE = ("database", "database_password_file", "schema", "log_level", "log_format")
ALL = tuple(setting.name for setting in all_settings().values() if setting.option)

_FROM_AND_TO = "From where, to where"
_SINKS = "Sinks, messages, metrics"
_LOG = "Log"
_PANELS = {
    "database": _FROM_AND_TO,
    "to": _FROM_AND_TO,
    "sink": _FROM_AND_TO,
    "app": _FROM_AND_TO,
    "lanes": _SINKS,
    "max_attempts": _SINKS,
    "log_level": _LOG,
    "log_format": _LOG,
    "metrics_port": _SINKS,
}
"""The sections of the help for the most used options. The others are shown by --help-all only."""
_FINE_TUNING = "Fine tuning"

_FILE = typer.Option(
    "--config",
    metavar="FILE",
    help=f"The file with settings. Otherwise {FILE_VARIABLE} names it, or it is {DEFAULT_FILE} here, if there is one.",
)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            vars(parameter)["hidden"] = False
        typer.echo(context.get_help())
        raise typer.Exit


_HELP_ALL = typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options, and exit.")


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add these settings to a command's options, and call it with all settings, validated, as `settings`."""
    panels = _PANELS if names == ALL else None
    help_all = [_parameter("help_all", Annotated[bool, _HELP_ALL], default=False)] if panels else []

    def give(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True, locals={"Settings": Settings}).parameters.values()

        @wraps(command)
        def called(context: typer.Context, config: str | None, **arguments: Any) -> None:
            arguments.pop("help_all", None)
            options = {name: arguments.pop(_identifier(name)) for name in names}
            settings = Settings.load({k: v for k, v in options.items() if v is not None}, file=config)
            log_to_stderr(
                settings.command.log_level,
                settings.command.log_format,
                debug=bool(context.find_root().params.get("debug")),
            )
            for warning in settings.warnings:
                tell(warning)
            command(settings=settings, **arguments)

        parameters = [
            _parameter("context", typer.Context),
            _parameter("config", Annotated[str | None, _FILE], default=None),
            *(
                _parameter(
                    _identifier(name), Annotated[str | None, _option(all_settings()[name], panels)], default=None
                )
                for name in sorted(names, key=lambda name: panels is not None and name not in panels)
            ),
            *(each for each in own if each.name != "settings"),
            *help_all,
        ]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(called)["__signature__"] = inspect.Signature(parameters)
        return called

    return give


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _identifier(name: str) -> str:
    """The parameter of a setting, such as `rabbitmq_exchange`."""
    return name.replace(".", "_")


def _panel(setting: Setting) -> str:
    """The part of the help that lists it: options of a broker stand together."""
    titles = {broker.name: f"{broker.title[0].upper()}{broker.title[1:]} ({broker.url})" for broker in all_brokers()}
    return titles[setting.table] if setting.table else _PANELS.get(setting.name, _FINE_TUNING)


def _option(setting: Setting, panels: dict[str, str] | None) -> Any:
    help = setting.help if setting.used else f"{setting.help} Checked, not used yet."
    default = False if setting.default is None else str(setting.default)
    return typer.Option(
        setting.option,
        metavar=setting.kind.metavar,
        help=help,
        show_default=default,
        rich_help_panel=None if panels is None else _panel(setting),
        hidden=panels is not None and setting.name not in panels,
    )
