"""The workflows and issue forms fit their schemas, run commands that exist, and use fixed versions of actions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.tools import ROOT, from_pypi, run
from tests.services.install import NEEDED

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [file for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_they_fit_their_schemas() -> None:
    check = from_pypi("check-jsonschema")
    run(check, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    run(check, "--builtin-schema", "vendor.github-issue-forms", *FORMS)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.name))
def test_actions_have_versions_and_tokens_have_few_rights(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [])]
    for step in steps:
        assert re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", step.get("uses", "a@v1.0.0")), step


def test_what_they_run_exists() -> None:
    commands = re.findall(r"^ +- run: (.+)$", "\n".join(file.read_text() for file in WORKFLOWS), re.MULTILINE)
    assert ".ci/run" in commands
    assert "make test" in commands
    targets = re.findall(r"target: (\w+)", WORKFLOWS[-1].read_text())
    for target in [*targets, *(found[1] for each in commands if (found := re.match(r"make (\w+)$", each)))]:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_jobs_that_need_servers_run_where_they_can_be_installed() -> None:
    """GitHub sets CI, with which a missing server is an error; the packages are Debian 12's, and installed as root."""
    needs_servers = re.compile(r"\.ci/run|make (servers|test)\b")
    jobs = [
        (file.name, name, job) for file in WORKFLOWS for name, job in yaml.safe_load(file.read_text())["jobs"].items()
    ]
    found = {
        f"{file}: {name}": job.get("container", {}).get("image", "")
        for file, name, job in jobs
        if any(needs_servers.match(step.get("run", "")) for step in job.get("steps", []))
    }
    assert len(found) == 3
    assert {job: image for job, image in found.items() if not image.endswith("bookworm")} == {}
    assert "postgresql-15" in NEEDED, "Debian 12 has PostgreSQL 15"


def test_every_supported_python_is_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = {found[1] for each in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))}
    debian_12 = "3.11"  # its python3
    assert {debian_12, *jobs["python"]["strategy"]["matrix"]["python"]} == supported
