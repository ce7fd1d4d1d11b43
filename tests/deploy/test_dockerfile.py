"""deploy/docker/Dockerfile: hadolint finds nothing in it, and what it builds and installs works in a folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from postroad import __version__
from postroad.ops.settings import Settings
from tests.deploy.dockerfile import exec_form, execute, stages
from tests.deploy.tools import DEPLOY, ROOT, from_pypi, run

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
STAGES = stages(DOCKERFILE)
IMAGE = STAGES[""]


def test_the_linter_finds_nothing() -> None:
    assert run(from_pypi("hadolint"), "--failure-threshold", "style", DOCKERFILE) == ""


def test_the_process_is_no_root_and_the_image_has_nothing_of_the_build_but_one_folder() -> None:
    steps = [tuple(step) for step in IMAGE]
    assert ("USER", "10001:10001") in steps
    assert [words for name, words in steps if name == "COPY"] == ["--from=build /opt/postroad /opt/postroad"]
    added = steps.index(("USER", "10001:10001"))
    assert "RUN" not in [name for name, _ in steps[added:]]


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    sent = re.findall(r"^!(\S+)$", (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [word for name, words in STAGES["build"] if name == "COPY" for word in words.split()[:-1]]
    assert sent == copied


def test_what_the_build_stage_installs_runs(tmp_path: Path) -> None:
    """The steps of the stage `build`, with the extra `cli` only; they need a package index."""
    path = f"{sys.base_prefix}/bin:{os.environ['PATH']}"  # `python` is that of no virtual environment
    try:
        execute(STAGES["build"], ROOT, tmp_path, {"EXTRAS": "cli"}, PATH=path, TMPDIR=str(tmp_path))
    except subprocess.CalledProcessError:
        if os.environ.get("CI") or index_answers(tmp_path):
            raise
        pytest.skip("no package index can be reached")
    environment = {"PATH": f"{tmp_path}/opt/postroad/bin:/usr/bin:/bin", "HOME": str(tmp_path)}

    def image(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment | more, cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False
        )

    (entrypoint,) = exec_form(IMAGE, "ENTRYPOINT")
    assert image(entrypoint, "--version").stdout.strip().endswith(__version__)
    assert list((tmp_path / "opt" / "postroad" / "bin").glob("pip*")) == []
    database = {"POSTROAD_DATABASE": f"sqlite:///{tmp_path}/log.sqlite", "POSTROAD_TO": "null://"}
    assert image(entrypoint, "migrate", **database).returncode == 0
    done = image(entrypoint, *exec_form(IMAGE, "CMD"), "--until-empty", **database)
    assert done.returncode == 0, done.stderr
    nothing = image(*exec_form(IMAGE, "HEALTHCHECK"), POSTROAD_METRICS_PORT="9")
    assert (nothing.returncode, "no relay or consumer answers" in nothing.stderr) == (1, True)


def index_answers(folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), "msgspec"]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0


def test_the_variables_of_the_image_are_settings() -> None:
    (words,) = [words for name, words in IMAGE if name == "ENV"]
    named = dict(word.split("=") for word in words.split() if word.startswith("POSTROAD_"))
    assert Settings.load(environment=named).command.metrics_port == 9464
