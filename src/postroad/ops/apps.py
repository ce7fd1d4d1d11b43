"""`--app module:name`: imports a consumer, or what else is named, from the user's code. Every error is one line that
names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from postroad.consumer import Consumer
from postroad.errors import InvalidSetting

__all__ = ["consumer_named", "object_named"]


def consumer_named(app: str) -> Consumer[object]:
    """The consumer `name` of the module `module`. The working directory is searched, too."""
    found = object_named(app)
    if not isinstance(found, Consumer):
        raise _wrong(f"app is {app!r}, which is of type {type(found).__name__}; it must be a postroad.Consumer", "app")
    return found


def object_named(given: str, setting: str = "app") -> object:
    """A module of the user's code, or what `module:name` names in one. Raises InvalidSetting, which names `setting`."""
    module_name, _, name = given.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    shown = f"{setting} is {given!r}"
    try:
        _set_up_django()
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise _wrong(f"{shown}; there is no module {error.name!r}, neither here nor installed", setting) from None
        raise _wrong(f"{shown}; importing {module_name!r} failed: {error}", setting) from error
    except Exception as error:  # whatever the user's code raises
        raise _wrong(f"{shown}; importing {module_name!r} failed: {type(error).__name__}: {error}", setting) from error
    for part in name.split(".") if name else ():
        if not hasattr(found, part):
            hint = _consumers_of(found) if setting == "app" else ""
            raise _wrong(f"{shown}; {module_name!r} has no {name!r}{hint}", setting)
        found = getattr(found, part)
    return found


def _set_up_django() -> None:
    """A module of a Django project can be imported only after `django.setup()`, which manage.py has called already."""
    if "DJANGO_SETTINGS_MODULE" in os.environ and importlib.util.find_spec("django") is not None:
        import django
        from django.apps import apps

        if not apps.ready:
            django.setup()


def _consumers_of(module: object) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Consumer)]
    return f"; it has the consumers {', '.join(names)}" if names else "; nor has it any other consumer"


def _wrong(text: str, setting: str) -> InvalidSetting:
    return InvalidSetting(text, settings=(setting,))
