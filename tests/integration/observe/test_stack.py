"""The files people copy: parsed, checked by their own tools where those exist, and against each other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration.observe.servers import needs
from trainbudget.config import DEFAULT_PORT

yaml = pytest.importorskip("yaml")

GRAFANA = Path(__file__).resolve().parents[3] / "grafana"
STACK = GRAFANA / "stack"


def load(*parts: str) -> Any:
    return yaml.safe_load(STACK.joinpath(*parts).read_text(encoding="utf-8"))


@needs("promtool")
def test_prometheus_takes_its_configuration_with_the_committed_rules_and_targets(tmp_path: Path) -> None:
    text = (STACK / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    text = text.replace("/etc/prometheus/rules", str(GRAFANA / "rules"))
    text = text.replace("/etc/prometheus/targets", str(STACK / "prometheus" / "targets"))
    (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") >= 4  # the configuration and three rule files


@needs("amtool")
def test_alertmanager_takes_its_configuration_and_routes_as_documented() -> None:
    path = str(STACK / "alertmanager.yml")
    done = subprocess.run(["amtool", "check-config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for route in ("page", "ticket", "weekly"):
        command = ["amtool", "config", "routes", "test", f"--config.file={path}", f"route={route}", "run=a"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == route, done.stdout + done.stderr


def test_every_file_that_compose_mounts_is_there_and_no_port_is_open_to_the_world() -> None:
    services = load("compose.yaml")["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana", "pushgateway"}
    assert services["pushgateway"]["profiles"] == ["push"]
    for name, service in services.items():
        assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (STACK / source).exists(), volume
    assert services["grafana"]["image"].split(":")[1].split(".")[0] == "11"


def test_grafana_is_provisioned_with_the_data_source_and_every_dashboard() -> None:
    source = load("grafana", "provisioning", "datasources", "prometheus.yaml")["datasources"][0]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    provider = load("grafana", "provisioning", "dashboards", "trainbudget.yaml")["providers"][0]
    mounted = dict(v.split(":")[:2] for v in load("compose.yaml")["services"]["grafana"]["volumes"])
    assert mounted["../dashboards"] == provider["options"]["path"]
    assert {p.stem for p in (GRAFANA / "dashboards").glob("*.json")} == {"fleet", "run", "gpu", "monitor"}
    home = load("compose.yaml")["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (GRAFANA / "dashboards" / Path(home).name).is_file()


def test_targets_begin_at_the_default_port() -> None:
    targets = load("prometheus", "targets", "training.yaml")[0]["targets"]
    assert [int(t.rpartition(":")[2]) for t in targets] == list(range(DEFAULT_PORT, DEFAULT_PORT + 8))


def test_the_pod_monitor_finds_the_example_job() -> None:
    monitor, job = load("kubernetes", "podmonitor.yaml"), load("kubernetes", "training-job.yaml")
    pod = job["spec"]["template"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= pod["metadata"]["labels"].items()
    ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
    endpoints = [e["port"] for e in monitor["spec"]["podMetricsEndpoints"]]
    assert set(ports) <= set(endpoints)
    assert all(len(name) <= 15 for name in endpoints)  # Kubernetes' limit for a port's name
    assert sorted(ports.values()) == [DEFAULT_PORT, DEFAULT_PORT + 1]
    for variable in pod["spec"]["containers"][0]["env"]:
        assert ("value" in variable) != ("valueFrom" in variable)


#: The parts of the operator's and Kubernetes' schemas that these objects use.
LABEL = {"type": "object", "additionalProperties": {"type": "string"}}
RULE = {
    "type": "object",
    "required": ["expr"],
    "additionalProperties": False,
    "oneOf": [{"required": ["record"]}, {"required": ["alert"]}],
    "properties": {
        "record": {"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"},
        "alert": {"type": "string"},
        "expr": {"type": "string", "minLength": 1},
        "for": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"},
        "labels": LABEL,
        "annotations": LABEL,
    },
}
GROUP = {
    "type": "object",
    "required": ["name", "rules"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "interval": {"type": "string"}, "rules": {"type": "array", "items": RULE}},
}
METADATA = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}, "labels": LABEL},
}
SCHEMAS = {
    "PrometheusRule": {
        "properties": {
            "metadata": METADATA,
            "spec": {"properties": {"groups": {"type": "array", "items": GROUP}}, "required": ["groups"]},
        }
    },
    "ConfigMap": {"properties": {"metadata": METADATA, "data": LABEL}, "required": ["data"]},
    "PodMonitor": {"properties": {"metadata": METADATA, "spec": {"required": ["selector", "podMetricsEndpoints"]}}},
    "Job": {"properties": {"metadata": METADATA, "spec": {"required": ["template"]}}},
}


@pytest.mark.parametrize("name", sorted(p.name for p in (STACK / "kubernetes").glob("*.yaml")))
def test_kubernetes_objects_are_what_their_kind_asks_for(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = load("kubernetes", name)
    assert document["apiVersion"]
    jsonschema.validate(document, SCHEMAS[document["kind"]])
    if document["kind"] == "ConfigMap":
        assert len(json.dumps(document)) < 1_000_000  # etcd's limit for an object


@pytest.mark.skipif(shutil.which("sh") is None, reason="no POSIX shell")
@pytest.mark.parametrize(("ends", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$; sleep 5; exit 0", 143)])
def test_slurm_enters_a_job_and_takes_it_out_however_it_ends(tmp_path: Path, ends: str, code: int) -> None:
    script = (
        f'. "{STACK / "slurm" / "prolog.sh"}"; cp "$trainbudget_file" "{tmp_path}/seen.json"; echo "$TRAINBUDGET_LISTEN"; {ends}'
    )
    environment = {
        "PATH": os.environ["PATH"],
        "TRAINBUDGET_TARGETS": str(tmp_path / "targets"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node1,node2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_JOB_USER": "me",
    }
    (tmp_path / "targets").mkdir()
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "0.0.0.0:9837", done.stderr
    assert done.returncode == code
    entered = json.loads((tmp_path / "seen.json").read_text())
    assert entered == [
        {
            "targets": ["node1:9837", "node1:9838", "node2:9837", "node2:9838"],
            "labels": {"slurm_job": "4711", "slurm_user": "me"},
        }
    ]
    assert list((tmp_path / "targets").iterdir()) == []


@needs("promtool")
def test_a_slurm_target_file_is_one_prometheus_reads(tmp_path: Path) -> None:
    (tmp_path / "slurm-1.json").write_text('[{"targets": ["n:9837"], "labels": {"slurm_job": "1", "slurm_user": "me"}}]')
    config = f"scrape_configs: [{{job_name: t, file_sd_configs: [{{files: ['{tmp_path}/*.json']}}]}}]\n"
    (tmp_path / "prometheus.yml").write_text(config)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
