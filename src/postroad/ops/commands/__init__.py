"""The commands of operators, a file for each group of them: a command reads what was typed, asks `insights`, and shows
the answer. What can't be taken back is asked for first, with the count.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LOOK_AND_ACT"]

LOOK_AND_ACT: Final = "Look and act"
"""Where the help lists them."""
