"""Reads a Dockerfile, and executes the steps of a stage in a folder instead of a container.

It knows what deploy/docker/Dockerfile uses: ARG, FROM … AS, WORKDIR, COPY, RUN in shell form, ENV, and exec forms.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    instruction: str
    words: str


def stages(file: Path) -> dict[str, list[Step]]:
    """The steps of each stage by its name; the last one has none, and is ''. What is before the first is left out."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    found: dict[str, list[Step]] = {}
    current: list[Step] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        step = Step(*line.split(None, 1))
        if step.instruction == "FROM":
            current = found[(re.findall(r" AS (\w+)$", step.words) or [""])[0]] = []
        current.append(step)
    return found


def exec_form(steps: list[Step], instruction: str) -> list[str]:
    """The command of ENTRYPOINT, CMD or HEALTHCHECK."""
    (words,) = [step.words for step in steps if step.instruction == instruction]
    command: list[str] = json.loads(words[words.index("[") :])
    return command


def execute(steps: list[Step], context: Path, root: Path, arguments: Mapping[str, str], **environment: str) -> None:
    """Do what the steps say. `root` stands for /, and absolute paths that begin with /build or /opt are moved there."""
    variables = dict(environment)
    folder = root
    for instruction, words in steps:
        if instruction == "ARG":
            name, _, value = words.partition("=")
            variables[name] = arguments.get(name, value.strip('"'))
        elif instruction == "WORKDIR":
            folder = root / words.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            *sources, target = shlex.split(words)
            for source in sources:
                _copy(context / source, folder / target)
        elif instruction == "RUN":
            script = re.sub(r"(?<![\w.])/(build|opt)\b", rf"{root}/\1", words)
            subprocess.run(["sh", "-euc", script], cwd=folder, env=os.environ | variables, check=True, timeout=900)
        else:
            assert instruction == "FROM", instruction


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
