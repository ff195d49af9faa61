"""The metrics of a ledger, and the command that prints them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dra_ledger.cli
import promql_parser
import pytest
from dra_ledger import Ledger
from dra_ledger.cli import main, prometheus
from ledger_worlds import World
from prometheus_client.parser import text_string_to_metric_families
from rounds import rounds

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "examples/ledger/dashboard.json").read_text())
Series = dict[tuple[tuple[str, str], ...], float]
MEMORY = {"capacity": {"memory": {"value": "80Gi"}}}


def series(text: str) -> dict[str, Series]:
    """By metric and labels; a series that stands twice is an error."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        known = found.setdefault(family.name, {})
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if value))
            assert labels not in known, f"{family.name}{labels} stands twice"
            known[labels] = sample.value
    return found


def sliced(*devices: dict[str, Any], node: str = "n1", **spec: Any) -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    about = {"driver": "gpu.example.com", "pool": pool, "nodeName": node, "devices": list(devices), **spec}
    return {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": node}, "spec": about}


def claimed(name: str, device: str, *pods: str, namespace: str = "ml", **result: Any) -> dict[str, Any]:
    given = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": device, **result}
    users = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    status = {"allocation": {"devices": {"results": [given]}}, "reservedFor": users}
    return {"kind": "ResourceClaim", "metadata": {"namespace": namespace, "name": name}, "status": status}


CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}}
CLUSTER = [
    sliced(
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}, "model": {"string": 'A"100\\\n'}}, **MEMORY},
        {"name": "gpu-1", "allowMultipleAllocations": True, **MEMORY},
        {"name": "gpu-2", "taints": [{"key": "broken", "effect": "NoSchedule"}]},
    ),
    claimed("train", "gpu-0", "train-0"),
    claimed("serve", "gpu-1", "a", "b", namespace="web", shareID="s", consumedCapacity={"memory": "20Gi"}),
    claimed("watch", "gpu-1", namespace="ops", adminAccess=True),
    CLASS,
]
ABOUT = {"driver": "gpu.example.com", "pool": "n1", "node": "n1"}


def of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_each_device_and_each_holder_has_a_series() -> None:
    found = series(prometheus(Ledger.of(CLUSTER)))
    assert found["dra_device_info"] == {
        of(**ABOUT, device="gpu-0", uuid="GPU-0", model='A"100\\\n', state="taken"): 1,
        of(**ABOUT, device="gpu-1", state="shared"): 1,
        of(**ABOUT, device="gpu-2", state="tainted"): 1,
    }
    gpu_1 = {**ABOUT, "device": "gpu-1", "request": "gpu"}
    assert found["dra_device_allocated"] == {
        of(**ABOUT, device="gpu-0", uuid="GPU-0", request="gpu", namespace="ml", claim="train", pod="train-0",
           access="exclusive"): 1,
        of(**gpu_1, namespace="web", claim="serve", pod="(others)", share="s", access="shared"): 1,
        of(**gpu_1, namespace="ops", claim="watch", access="admin"): 1,
    }  # fmt: skip
    assert found["dra_claim_info"] == {
        of(namespace="ml", claim="train", pod="train-0"): 1,
        of(namespace="web", claim="serve", pod="a"): 1,
        of(namespace="web", claim="serve", pod="b"): 1,
        of(namespace="ops", claim="watch"): 1,
    }


def test_capacity_is_summed_up_by_class_node_and_namespace() -> None:
    found = series(prometheus(Ledger.of(CLUSTER)))
    memory = {"driver": "gpu.example.com", "capacity": "memory"}
    gi = 2**30
    assert found["dra_class_capacity"] == {of(**memory, **{"class": "gpu"}): 160 * gi}
    assert found["dra_class_capacity_taken"] == {of(**memory, **{"class": "gpu"}): 100 * gi}
    assert found["dra_node_capacity_taken"] == {of(**memory, node="n1"): 100 * gi}
    assert found["dra_namespace_capacity_taken"] == {
        of(**memory, namespace="ml"): 80 * gi,
        of(**memory, namespace="web"): 20 * gi,
    }
    assert found["dra_pools"] == {of(driver="gpu.example.com", status="usable"): 1}


def test_counters_are_summed_up_too() -> None:
    part = {"name": "half", "consumesCounters": [{"counterSet": "gpu", "counters": {"slices": {"value": "4"}}}]}
    both = [sliced(part), sliced()]
    for number, slice_ in enumerate(both):
        slice_["metadata"]["name"] = f"s{number}"
        slice_["spec"]["pool"]["resourceSliceCount"] = 2
    both[1]["spec"] |= {"devices": [], "sharedCounters": [{"name": "gpu", "counters": {"slices": {"value": "7"}}}]}
    found = series(prometheus(Ledger.of(both, CLASS, claimed("train", "half"))))
    slices = {"driver": "gpu.example.com", "counter": "slices"}
    assert found["dra_counter"] == {of(**slices): 7}
    assert found["dra_counter_left"] == {of(**slices): 3}
    assert found["dra_namespace_counter_drawn"] == {of(**slices, namespace="ml"): 4}
    assert found["dra_class_counter_drawn"] == {of(**slices, **{"class": "gpu"}): 4}


def test_the_number_of_series_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra_ledger.cli, "MOST_NAMES", 3)
    slices = [sliced({"name": "gpu-0"}, node=f"n{number}") for number in range(20)]
    claims = [
        {**claimed(f"c{number}", "gpu-0", *(f"p{pod}" for pod in range(30)), namespace=f"ns{number}")}
        for number in range(20)
    ]
    for number, claim in enumerate(claims):
        claim["status"]["allocation"]["devices"]["results"][0]["pool"] = f"n{number}"
    found = series(prometheus(Ledger.of(slices, claims), limit=5))
    assert {name: len(known) for name, known in found.items() if known and name.startswith("dra_device")} == {
        "dra_device_info": 5,
        "dra_device_allocated": 5,
    }
    assert len(found["dra_claim_info"]) == 5 * 9
    assert found["dra_export_left_out"] == {of(kind="device"): 15, of(kind="claim"): 15, of(kind="series"): 0}
    for by in ("node", "namespace"):
        counted = found[f"dra_{by}_devices"]
        assert len(counted) == 4
        assert sum(counted.values()) == 20


def test_shares_and_counters_without_series_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra_ledger.cli, "MOST_NAMES", 1)
    devices = [{"name": f"gpu-{number}", "allowMultipleAllocations": True} for number in range(3)]
    sets = [{"name": "set", "counters": {"a": {"value": "1"}, "b": {"value": "2"}, "c": {"value": "3"}}}]
    both = [sliced(*devices), sliced(sharedCounters=sets)]
    for number, slice_ in enumerate(both):
        slice_["metadata"]["name"] = f"s{number}"
        slice_["spec"]["pool"]["resourceSliceCount"] = 2
    claims = [claimed(name, "gpu-0", shareID=f"{name}-0") for name in ("one", "two")]
    for claim in claims:
        results = claim["status"]["allocation"]["devices"]["results"]
        results += [{**results[0], "device": name, "shareID": f"{name}-1"} for name in ("gpu-1", "gpu-2")]
    found = series(prometheus(Ledger.of(both, claims), limit=4))
    assert (len(found["dra_device_allocated"]), len(found["dra_counter"])) == (4, 1)
    assert found["dra_export_left_out"] == {of(kind="device"): 0, of(kind="claim"): 0, of(kind="series"): 2 + 2 * 2}


def test_names_that_a_driver_makes_up_do_not_add_series_without_end() -> None:
    many = {f"capacity-{number}": {"value": "1"} for number in range(30)}
    text = prometheus(Ledger.of(sliced({"name": "gpu-0", "capacity": many}), CLASS))
    assert len(series(text)["dra_class_capacity"]) == 30
    family = dra_ledger.cli._Family("f", "h", most=3)
    for number in (1, 2, 3, 3, 4, 5):
        family.add({"name": str(number)}, number)
    assert (len(str(family).splitlines()), family.left_out) == (5, 2)


def test_kinds_of_which_the_input_had_nothing_are_named() -> None:
    assert series(prometheus(Ledger.of(CLUSTER)))["dra_export_missing"] == {
        of(kind="DeviceTaintRule"): 1,
        of(kind="Node"): 1,
        of(kind="Pod"): 1,
    }


@pytest.mark.parametrize("seed", rounds(20))
def test_sums_are_those_of_the_ledger(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        world.step()
        found = series(prometheus(world.ledger))
        for by in ("class", "node", "namespace"):
            said: dict[str, float] = {}
            for labels, number in found[f"dra_{by}_devices"].items():
                name = dict(labels).get(by, "")
                said[name] = said.get(name, 0) + number
            assert said == {row.name: row.devices for row in world.ledger.tally(by) if row.devices}


def test_pools_and_counters_follow_a_change_that_nobody_asked_about_before() -> None:
    ledger = Ledger.of(CLUSTER)
    assert [pool.devices for pool in ledger.pools()] == [{"taken": 1, "shared": 1, "tainted": 1}]
    ledger.feed(sliced({"name": "gpu-0"}))
    assert [pool.devices for pool in ledger.pools()] == [{"taken": 1, "gone": 1}]


def test_every_expression_of_the_dashboard_is_about_metrics_that_are_exported() -> None:
    exported = set(series(prometheus(Ledger.of(CLUSTER))))
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            promql_parser.parse(re.sub(r"\$__\w+", "5m", target["expr"]))
            named = set(re.findall(r"\bdra_\w+", target["expr"]))
            assert named <= exported
            assert named


def test_the_dashboard_joins_each_claim_of_a_shared_device_with_its_use() -> None:
    """Several claims have one UUID: only ``group_right`` allows that."""
    joins = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"] if "DCGM" in target["expr"]]
    assert len(joins) == 2
    assert all("* on (UUID) group_right () (max by (UUID, " in text for text in joins)


def test_the_dashboard_can_be_narrowed_to_classes_namespaces_and_nodes() -> None:
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "class", "namespace", "node"]
    text = json.dumps(DASHBOARD["panels"])
    assert all(f'=~\\"${name}\\"' in text for name in names[1:])


# --- the command ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": CLUSTER}))
    return path


def test_the_command_prints_who_has_what(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["who", "-f", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NODE   DEVICE                     CLAIM       PODS      SINCE",
        "n1     gpu.example.com/n1/gpu-0   ml/train    train-0   <unknown>",
        "n1     gpu.example.com/n1/gpu-1   web/serve   a,b       <unknown>",
    ]


def test_the_command_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps({"kind": "List", "items": CLUSTER})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["free"]) == 0
    assert capsys.readouterr().out.splitlines() == ["CLASS   FREE   DEVICES   CLAIMS", "gpu     0      3         2"]


def test_the_command_exports(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "-f", str(file), "--limit", "1"]) == 0
    assert len(series(capsys.readouterr().out)["dra_device_info"]) == 1


@pytest.mark.parametrize("content", [None, "no JSON"])
def test_what_cannot_be_read_is_told(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    assert main(["who", "-f", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"dra-ledger: {path}: ")


def test_malformed_objects_are_told_and_the_others_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    wrong = {"kind": "ResourceClaim", "metadata": {"name": "w\x1b", "namespace": "ml"}, "status": 7}
    path.write_text(json.dumps({"kind": "List", "items": [*CLUSTER, wrong]}))
    assert main(["who", "-f", str(path)]) == 0
    told = capsys.readouterr()
    assert told.err.startswith(r"dra-ledger: left out, since it cannot be read: ResourceClaim ml/w\x1b: ")
    assert told.err.endswith("dra-ledger: the input has no Pod: claims of a PodGroup show no pods\n")
    assert len(told.out.splitlines()) == 3


def test_a_device_with_thousands_of_holders_in_as_many_namespaces_is_looked_at_once() -> None:
    """Each namespace looked at all of its holders."""
    ledger = Ledger.of(sliced({"name": "gpu-0", "allowMultipleAllocations": True, **MEMORY}))
    for number in range(2_000):
        share = {"shareID": f"s{number}", "consumedCapacity": {"memory": "1"}}
        ledger.feed(claimed(f"c{number}", "gpu-0", namespace=f"ns-{number}", **share))
    began = time.process_time()
    found = series(prometheus(ledger))
    assert time.process_time() - began < 1.5
    taken = found["dra_namespace_capacity_taken"]
    about = (("capacity", "memory"), ("driver", "gpu.example.com"))
    assert taken[(*about, ("namespace", "ns-10"))] == 1
    assert taken[(*about, ("namespace", "(others)"))] == 2_000


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_metrics_are_utf_8_in_any_locale(tmp_path: Path, locale: str) -> None:
    """Prometheus refuses the whole file for one escape that it does not know."""
    text = 'A"100\\\n\u2028é'
    dump = tmp_path / "cluster.json"
    obj = sliced({"name": "gpu-0", "attributes": {"model": {"string": text}}})
    dump.write_text(json.dumps({"kind": "List", "items": [obj]}))
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    command = [sys.executable, "-m", "dra_ledger.cli", "export", "-f", str(dump)]
    said = subprocess.run(command, env=environment, check=True, capture_output=True).stdout.decode()
    (labels,) = series(said)["dra_device_info"]
    assert dict(labels)["model"] == text
