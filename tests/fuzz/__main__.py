"""`make fuzz MINUTES=10`: hostile input for every reader of what outsiders send. Ends with the first finding."""

from __future__ import annotations

import argparse

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--target", choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--seed", type=int, help="begin with the input that a finding named")
    given = parser.parse_args()
    names = [given.target] if given.target else list(TARGETS)
    for name in names:
        inputs = fuzz(TARGETS[name], 60 * given.minutes / len(names), given.seed)
        print(f"{name:24} {inputs:>9,} inputs", flush=True)


if __name__ == "__main__":
    main()
