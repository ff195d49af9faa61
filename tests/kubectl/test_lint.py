"""What ``kubectl dra lint`` says of a claim while pools are being published, and of very many objects."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceSlice
from dra_operator.commands.object_files import Item
from dra_operator.kubectl import fit
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.lint import checks, manifest
from dra_operator.kubectl.lint.answer import MOST_FINDINGS, findings
from dra_operator.kubectl.lint.manifest import Manifests
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from objects import Make

GPU = 'device.driver == "gpu.example.com"'
HALF: dict[str, Any] = {"resourceSliceCount": 2}
"""Of two slices one is there."""
UPDATED = "resource pool {} is currently being updated"


def _slice(node: str, devices: int, driver: str = "gpu.example.com", **pool: Any) -> ResourceSlice:
    made = Make.slice(node, devices, driver)
    made["spec"]["pool"].update(pool)
    return convert(ResourceSlice, made)


EXACTLY_3 = {"allocationMode": "ExactCount", "count": 3}
WHOLE = _slice("node-0", 2)
SERVED = ("note", "2 devices match, at most 2 on one node; 2 free now")
SHORT = ("warning", "asks for 3, but 2 devices of the cluster match, 2 of them in pools that lack slices")
CASES: dict[str, tuple[dict[str, Any], list[ResourceSlice], list[tuple[str, str]]]] = {
    "all of a half published pool": (
        {"allocationMode": "All"},
        [_slice("node-0", 2, **HALF)],
        [
            ("note", "2 devices match, at most 2 on one node; 0 free now"),
            ("warning", UPDATED.format("gpu.example.com/node-0")),
        ],
    ),
    "all, beside a half published pool of another driver": (
        {"allocationMode": "All"},
        [WHOLE, _slice("node-0", 1, "nic.example.com", **HALF)],
        [SERVED],
    ),
    "all, and the pool of another node is half published": (
        {"allocationMode": "All"},
        [_slice("node-0", 1, "nic.example.com", **HALF), _slice("node-1", 2)],
        [SERVED],
    ),
    "more than a half published pool has": (EXACTLY_3, [_slice("node-0", 2, **HALF)], [SHORT]),
    "more than there are": (EXACTLY_3, [WHOLE], [("error", "asks for 3, but 2 devices of the cluster match")]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pool_that_is_being_published_is_no_error_of_the_claim(case: str) -> None:
    asked, slices, expected = CASES[case]
    raw = Make.claim("claim")
    raw["spec"]["devices"]["requests"] = [{"name": "req", "exactly": {"deviceClassName": "gpu", **asked}}]
    objects: list[Object] = [convert(Node, Make.node(name)) for name in ("node-0", "node-1")]
    seen = Observed([*objects, convert(DeviceClass, Make.device_class("gpu", GPU)), *slices], datetime.now(UTC))
    manifests = Manifests("ns")
    manifests.take(Item("claim.yaml", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **raw}))
    found = list(findings(seen, manifests, Settings(), has_cluster=True))
    assert [str(one.severity) for one in found] == [severity for severity, _ in expected]
    assert all(text in one.message for one, (_, text) in zip(found, expected, strict=True)), found


def test_no_devices_are_counted_for_a_class_that_is_missing() -> None:
    """All devices counted as matching, beside the error that the class does not exist."""
    claim = Make.claim("claim")
    seen = Observed([convert(Node, Make.node("node-0")), WHOLE], datetime.now(UTC))
    manifests = Manifests("ns")
    manifests.take(Item("claim.yaml", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim}))
    said = [one.message for one in findings(seen, manifests, Settings(), has_cluster=False)]
    assert "which devices match is not known without class gpu" in said
    assert not any("devices match," in one for one in said)


def _faulty(number: int) -> dict[str, Any]:
    """A claim of 3 kB with two faults, two warnings and two notes."""
    keys = [{"key": f"{it}.example.com/{'x' * 30}", "operator": "Exists"} for it in range(40)]
    asked = {"deviceClassName": "gpu", "tolerations": [*keys, {"key": "a", "operator": "Exists"}]}
    requests = [{"name": name, "exactly": asked} for name in ("one", "two")]
    devices = {"requests": requests, "request": []}
    meta = {"name": f"claim-{number:03d}", "namespace": "ns"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": devices}}


def _lint(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["lint", *words]) == 3
    return capsys.readouterr().out.splitlines()


def test_lines_tell_the_first_findings_of_a_kind_and_count_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dump of a cluster with 1,000 pods of 60 kB made 57 MB of lines."""
    file = tmp_path / "claims.json"
    file.write_text(json.dumps({"kind": "List", "items": [_faulty(it) for it in range(MOST_FINDINGS + 5)]}))
    lines = _lint(capsys, "-f", str(file))
    assert sum(line.startswith("  error: ") for line in lines) == MOST_FINDINGS
    assert sum(line.startswith("  note: ") for line in lines) == MOST_FINDINGS
    where = "ResourceClaim, spec.devices"
    assert lines[-3:] == [
        f"5 more errors of {where}: -o json has all",
        f"{82 * (MOST_FINDINGS + 5) - MOST_FINDINGS} more notes of {where}.requests[].tolerations[]: -o json has all",
        f"{MOST_FINDINGS + 5} objects, {MOST_FINDINGS + 5} errors, 0 warnings",
    ]
    found = json.loads("\n".join(_lint(capsys, "-f", str(file), "-o", "json")))
    assert len(found["findings"]) == 83 * (MOST_FINDINGS + 5)


@pytest.mark.parametrize("form", ["objects.json", "objects.yaml"])
def test_manifests_that_are_read_again_are_found_as_faulty_as_those_that_are_held(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use = {"name": "e", "resourceClaimName": "claim-001"}
    container = {"name": "c", "resources": {"claims": [{"name": "e", "request": "three"}]}}
    meta = {"name": "pod", "namespace": "ns"}
    spec = {"containers": [container], "resourceClaims": [use, {"name": "f", "resourceClaimName": "absent"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    cluster = [Make.node("node-0"), Make.device_class("gpu", GPU), Make.slice("node-0", 2)]
    kinds = (("v1", "Node"), ("resource.k8s.io/v1", "DeviceClass"), ("resource.k8s.io/v1", "ResourceSlice"))
    made = ({**it, "apiVersion": version, "kind": kind} for it, (version, kind) in zip(cluster, kinds, strict=True))
    items = [*made, *map(_faulty, range(4)), pod]
    file, text = tmp_path / form, {"apiVersion": "v1", "items": items, "kind": "List"}
    file.write_text(json.dumps(text) if form.endswith("json") else yaml.safe_dump(json.loads(json.dumps(text))))
    monkeypatch.setattr("dra_operator.commands.file_items._COMPOSED_BYTES", 0)
    words = ("-f", str(file), "--from", str(file), "-o", "json")
    held = _lint(capsys, *words)
    assert any("claim e has no request three; it has one, two" in line for line in held)
    monkeypatch.setattr(manifest, "HELD_BYTES", 0)
    assert _lint(capsys, *words) == held


def test_a_dump_is_no_manifest_to_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dump.json"
    file.write_text(" " * (fit.MOST_WANTED_BYTES + 1))
    source = str(Path(__file__).parent / "cluster.yaml")
    assert main(["fit", "-f", str(file), "--from", source]) == 2
    assert "dump.json: more than 32 MiB: give what is asked about" in capsys.readouterr().err


def test_names_like_missing_ones_are_looked_for_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pods beside a thousand templates took 17 s."""
    compared = Counter[str]()
    monkeypatch.setattr(checks, "get_close_matches", lambda name, *_: compared.update([name]) or [])
    uses = [
        {"name": "x", "resourceClaimTemplateName": f"missing-{number}"} for number in range(manifest.GUESSED_NAMES + 20)
    ]
    main_ = {"name": "c", "image": "none", "resources": {"claims": [{"name": "x"}]}}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p-{number}", "namespace": "ml"},
            "spec": {"containers": [main_], "resourceClaims": [use]},
        }
        for number, use in enumerate(uses)
    ]
    (file := tmp_path / "pods.yaml").write_text("\n---\n".join(map(json.dumps, pods)))
    assert main(["lint", "-f", str(file), "--from", str(Path(__file__).with_name("cluster.yaml"))]) == 3
    assert compared.total() == manifest.GUESSED_NAMES
