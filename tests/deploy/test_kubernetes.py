"""deploy/kubernetes: every object fits the schema of its kind, and what it names and sets exists in the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from postroad.metrics.catalog import CATALOG
from postroad.ops.settings import Settings
from tests.deploy.dockerfile import stages
from tests.deploy.tools import DEPLOY, from_pypi, of_the_system, run
from tests.services.prometheus import find_promtool
from tests.services.server import ServerMissing

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
ADAPTER = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
FILES = [FOLDER / name for name in KUSTOMIZATION["resources"]]
OBJECTS: list[dict[str, Any]] = [
    each for file in FILES for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
WORKLOADS = [each for each in OBJECTS if each["kind"] in ("Deployment", "Job")]
OLDEST, NEWEST = "1.27", "1.37"
"""`autoscaling/v2`, `policy/v1` and all fields are in the oldest; kubernetes-validate has no newer than the newest."""


def one(kind: str, name: str = "postroad-relay") -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_fits_the_schema_of_its_kind(version: str) -> None:
    run(from_pypi("kubernetes-validate"), "--strict", "--kubernetes-version", version, *FILES)


def test_kustomize_puts_them_together() -> None:
    made = list(yaml.safe_load_all(run(of_the_system("kubectl"), "kustomize", FOLDER)))
    assert sorted(each["kind"] for each in made) == sorted(each["kind"] for each in OBJECTS)
    assert {each["metadata"]["namespace"] for each in made} == {"shop"}
    assert {container(each)["image"] for each in made if "template" in each.get("spec", {})} == {
        "postroad:0.1.0", "shop:1",
    }  # fmt: skip


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: str(each["metadata"]["name"]))
def test_processes_have_no_rights_that_they_do_not_need(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    (user,) = [words for name, words in stages(DEPLOY / "docker" / "Dockerfile")[""] if name == "USER"]
    assert user == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "memory" in container(workload)["resources"]["limits"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: str(each["metadata"]["name"]))
def test_variables_are_settings_and_passwords_are_files_of_the_secret(workload: dict[str, Any], tmp_path: Path) -> None:
    variables = {each["name"]: each["value"] for each in container(workload).get("env", [])}
    for source in container(workload).get("envFrom", []):
        variables |= one("ConfigMap", source["configMapRef"]["name"])["data"]
    volumes = workload["spec"]["template"]["spec"].get("volumes", [])
    mounted = {item["path"] for volume in volumes for item in volume["secret"]["items"]}
    for name, file in list(variables.items()):
        if name.endswith("_PASSWORD_FILE"):
            folder, _, secret = file.rpartition("/")
            assert folder == container(workload)["volumeMounts"][0]["mountPath"]
            assert secret in mounted
            variables[name] = str(tmp_path / secret)
            (tmp_path / secret).write_text("secret")
            (tmp_path / secret).chmod(0o440)
    settings = Settings.load(environment=variables)
    assert settings.warnings == []


def test_commands_run_as_they_are_written(tmp_path: Path) -> None:
    """Those of the job and of the relay, on SQLite; the consumer's needs an application."""
    database = {"POSTROAD_DATABASE": f"sqlite:///{tmp_path}/log.sqlite", "POSTROAD_TO": "null://"}
    for kind, name, more in (("Job", "postroad-migrate", ()), ("Deployment", "postroad-relay", ("--until-empty",))):
        command = [sys.executable, "-m", "postroad", *container(one(kind, name))["args"], *more]
        subprocess.run(command, env=os.environ | database, cwd=tmp_path, check=True, capture_output=True, timeout=120)


def test_the_budget_and_the_autoscaler_fit_the_relay() -> None:
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    for kind, field in (
        ("PodDisruptionBudget", "selector"),
        ("Deployment", "selector"),
        ("NetworkPolicy", "podSelector"),
    ):
        assert one(kind)["spec"][field]["matchLabels"] == labels
    scaler = one("HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == one("Deployment")["metadata"]["name"]
    assert scaler["minReplicas"] > one("PodDisruptionBudget")["spec"]["minAvailable"]
    assert scaler["maxReplicas"] == int(one("ConfigMap", "postroad")["data"]["POSTROAD_LANES"])
    assert "replicas" not in one("Deployment")["spec"]


def test_the_lag_that_is_scaled_by_is_a_metric_with_that_label() -> None:
    (metric,) = [each["external"]["metric"] for each in one("HorizontalPodAutoscaler")["spec"]["metrics"]]
    (rule,) = ADAPTER["rules"]["external"]
    assert metric["name"] == rule["name"]["as"] == rule["seriesQuery"]
    assert set(metric["selector"]["matchLabels"]) <= set(CATALOG[metric["name"]].labels)


def test_prometheus_understands_the_query_of_the_adapter(tmp_path: Path) -> None:
    try:
        promtool = find_promtool()
    except ServerMissing as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    (rule,) = ADAPTER["rules"]["external"]
    filled = {"Series": rule["seriesQuery"], "LabelMatchers": 'namespace="shop",sink="default"', "GroupBy": "namespace"}
    query = re.sub(r"<<\.(\w+)>>", lambda found: filled[found[1]], rule["metricsQuery"])
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "adapter", "rules": [{"record": "lag", "expr": query}]}]})
    )
    run(Path(promtool), "check", "rules", tmp_path / "rules.yml")


def test_probes_ask_what_is_served() -> None:
    relay, consumer = container(one("Deployment")), container(one("Deployment", "stock"))
    assert relay["livenessProbe"]["httpGet"]["path"] == relay["startupProbe"]["httpGet"]["path"] == "/livez"
    assert relay["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert relay["ports"][0]["containerPort"] == int(one("ConfigMap", "postroad")["data"]["POSTROAD_METRICS_PORT"])
    assert consumer["livenessProbe"]["exec"]["command"] == ["postroad", "health", "--live"]
    assert consumer["readinessProbe"]["exec"]["command"] == ["postroad", "health"]
