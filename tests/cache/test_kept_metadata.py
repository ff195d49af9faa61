"""What is kept of the metadata that tenants write: number times size must not fill the operator's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dra_api.codec import convert, encode
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION
from dra_api.storage import SELECTED_NODE
from dra_operator.cache import without_bulk
from dra_operator.scheduling.state import gang_key
from dra_operator.sources.kinds import WATCHED

MADE_BY_TENANTS = (
    *("pods", "resourceclaims", "resourceclaimtemplates", "persistentvolumeclaims", "poddisruptionbudgets"),
    *("podgroups", "workloads"),
)
READ = (
    *("dra.kopf.dev/allocate", "dra.kopf.dev/gang", "dra.kopf.dev/gang-size", "dra.kopf.dev/gang-topology"),
    *("dra.kopf.dev/gang-match-attribute", "dra.kopf.dev/placement-strategy", POD_CLAIM_NAME_ANNOTATION),
    *("resource.kubernetes.io/extended-resource-claim", SELECTED_NODE, "pv.kubernetes.io/bind-completed"),
    *("volume.beta.kubernetes.io/storage-class", "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/workload"),
    *("leaderworkerset.sigs.k8s.io/size", "kubernetes.io/config.mirror"),
)
ALL_ANNOTATIONS_BYTES = 250_000  # the API server takes 256 KiB in all
KINDS = {resource.plural: kind for resource, kind in WATCHED.items() if resource.plural in MADE_BY_TENANTS}


def longest_annotations() -> Iterator[tuple[str, dict[str, str]]]:
    """As long as the API server takes them: one value, or many names."""
    for name in (*READ, "example.com/note"):
        yield f"a value of {name}", {name: "é" * (ALL_ANNOTATIONS_BYTES // 2)}
        prefix = name.partition("/")[0]
        yield f"names of {prefix}", {f"{prefix}/{it:060d}": "x" * 60 for it in range(ALL_ANNOTATIONS_BYTES // 140)}


def made(kind: type[Object], **meta: Any) -> Object:
    return convert(kind, {"metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "1", **meta}})


@pytest.mark.parametrize("plural", KINDS)
def test_little_is_kept_of_annotations_whoever_they_are_for(plural: str) -> None:
    found = {
        what: len(encode(without_bulk(made(KINDS[plural], annotations=them)))) for what, them in longest_annotations()
    }
    assert {what: size for what, size in found.items() if size > 12_000} == {}


@pytest.mark.parametrize("plural", sorted(KINDS.keys() - {"pods", "podgroups", "workloads"}))
def test_labels_that_nobody_reads_are_not_kept(plural: str) -> None:
    """Objects of less than 64 KiB count as well: a namespace may hold a hundred thousand."""
    labels = {f"label-{number}": "x" * 60 for number in range(600)}
    assert len(encode(without_bulk(made(KINDS[plural], labels=labels)))) < 12_000


@pytest.mark.parametrize("note", [60, 9_000, 200_000])
@pytest.mark.parametrize("plural", sorted(KINDS.keys() - {"workloads"}))
def test_what_is_read_of_annotations_stays_beside_one_of_any_size(plural: str, note: int) -> None:
    read = {name: f"value-{number}" for number, name in enumerate(READ)}
    kept = without_bulk(made(KINDS[plural], annotations={"example.com/note": "x" * note, **read}))
    assert read.items() <= (kept.metadata.annotations or {}).items()


def test_a_pod_stays_in_its_gang_whatever_other_tools_write_onto_it() -> None:
    """Such as its last applied configuration, which is as long as the pod."""
    gang = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "4"}
    pods = [made(Pod, annotations={"note": "x" * size, **gang}) for size in (1, 100_000)]
    small, large = (gang_key(without_bulk(pod)) for pod in pods if isinstance(pod, Pod))
    assert small is not None
    assert large == small
