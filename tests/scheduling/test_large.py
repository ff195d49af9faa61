"""Pods that are too large to be placed: what is kept of them, and what they are told."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.cache import without_bulk
from dra_operator.scheduling.rules.node_rules import unsupported
from dra_operator.scheduling.state import pod_requests, pod_without_bulk
from objects import decode_list

TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["absent"]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SIXTH_OF_A_MEGABYTE: dict[str, dict[str, Any]] = {
    "tolerations": {"tolerations": [{"key": f"k{it}", "operator": "Exists"} for it in range(4_000)]},
    "node affinity": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM] * 2_500}}}},
    "a node selector": {"nodeSelector": {f"k{it}": "x" * 10 for it in range(8_000)}},
    "volumes": {"volumes": [{"name": f"v{it}", "persistentVolumeClaim": {"claimName": "c"}} for it in range(3_000)]},
    "claims": {"resourceClaims": [{"name": f"e{it}", "resourceClaimName": "c"} for it in range(4_000)]},
}


def pod(labels: int = 1, notes: int = 0, owners: int = 0, **spec: Any) -> Pod:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u" * 36}
    meta = {
        "labels": {f"label-{it}": "x" for it in range(labels)},
        "annotations": {f"note-{it}": "x" * 100 for it in range(notes)},
        "ownerReferences": [owner] * owners + [{**owner, "uid": "job", "controller": True}],
    }
    rest = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m"}}}], "nodeName": "n", **spec}
    return convert(Pod, {"metadata": {"namespace": "ns", "name": "pod", "uid": "uid-pod", **meta}, "spec": rest})


@pytest.mark.parametrize("field", SIXTH_OF_A_MEGABYTE)
def test_little_is_kept_of_a_large_pod_and_it_waits_with_the_bound_and_the_remedy(field: str) -> None:
    kept = pod_without_bulk(pod(**SIXTH_OF_A_MEGABYTE[field]))
    obstacle = unsupported(kept)
    assert obstacle is not None
    assert obstacle.text.startswith("more than 64 KiB in the fields that decide its placement is not supported")
    assert "shorten the longest of resourceClaims, affinity, tolerations" in obstacle.text
    assert _bytes(kept) < 10_000
    assert (kept.key, kept.spec.node_name, kept.metadata.uid) == ("ns/pod", "n", "uid-pod")
    assert pod_requests(kept) == pod_requests(pod())


def test_a_large_pod_takes_the_room_of_all_its_containers() -> None:
    room = {"requests": {"cpu": "1m", "memory": "1Ki"}}
    large = pod(containers=[{"name": f"c{it}", "resources": room} for it in range(2_000)], overhead={"cpu": "1"})
    kept = pod_without_bulk(large)
    assert pod_requests(kept) == pod_requests(large)
    assert len(kept.spec.containers or ()) == 1


def test_annotations_and_owners_do_not_make_a_pod_too_large() -> None:
    kept = pod_without_bulk(pod(notes=1_000, owners=1_000))
    assert unsupported(kept) is None
    assert kept.metadata.annotations is None
    assert kept.metadata.controller is not None
    assert kept.metadata.controller.uid == "job"
    assert kept.metadata.labels == {"label-0": "x"}


def test_an_ordinary_pod_stays_as_it_is() -> None:
    ordinary = pod(notes=10, tolerations=[{"operator": "Exists"}])
    assert pod_without_bulk(ordinary) is ordinary


def test_a_list_keeps_little_of_each_large_pod_before_it_reads_the_next() -> None:
    """Two hundred in one page would be a gigabyte before the first of them is looked at."""
    raw = {"metadata": {"name": "p", "namespace": "ns"}, "spec": SIXTH_OF_A_MEGABYTE["tolerations"]}
    page = json.dumps({"items": [raw] * 3}).encode()
    found, malformed, _ = decode_list(Pod, page)
    kept = list(map(without_bulk, found))
    assert not malformed
    assert all(it.spec.tolerations is None for it in kept)


def _bytes(pod: Pod) -> int:
    """Of the lists and texts of a pod, roughly."""
    return sum(sys.getsizeof(part) for part in _parts(pod))


def _parts(value: Any) -> list[Any]:
    fields = getattr(value, "__struct_fields__", None)
    if fields is not None:
        return [value, *(part for name in fields for part in _parts(getattr(value, name)))]
    if isinstance(value, dict):
        return [value, *(part for pair in value.items() for it in pair for part in _parts(it))]
    if isinstance(value, list | tuple):
        return [value, *(part for it in value for part in _parts(it))]
    return [value]
