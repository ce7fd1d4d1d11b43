"""The command line. Nothing below this package imports it, and other packages use only `main`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_PACKAGES_OF_THE_EXTRA = frozenset({"rich", "typer"})


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, with the process's arguments unless others are given.

    If the packages of the extra `cli` are missing, print how to install them.
    """
    try:
        from postroad.ops.cli import app
        from postroad.ops.terminal import run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PACKAGES_OF_THE_EXTRA:
            raise
        sys.stderr.write(f"the command line needs {missing}; install it with: pip install 'postroad[cli]'\n")
        sys.exit(2)
    sys.exit(run(app, arguments))
