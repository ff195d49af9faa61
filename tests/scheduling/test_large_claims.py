"""Claims and templates that are too large to be used: what is kept of them, and what is said of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dra_api.codec import convert, encode
from dra_api.references import classes_of, owning_pod
from dra_api.resource import ResourceClaim
from dra_operator.cache import ClaimTemplate, without_bulk
from dra_operator.scheduling.claims.readiness import too_large
from dra_operator.scheduling.state import LARGEST_OBJECT_BYTES, is_immediate
from objects import owner, user

OPAQUE = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}}
TOLERATION = {"key": "k.example.com/x", "operator": "Exists", "effect": "NoSchedule"}
OWNER = owner("pod")


def selectors(count: int, length: int = 300) -> list[dict[str, Any]]:
    return [{"cel": {"expression": "true || " + "x" * length}} for _ in range(count)]


def request(number: int, **fields: Any) -> dict[str, Any]:
    return {"name": f"req-{number}", "exactly": {"deviceClassName": f"class-{number}", **fields}}


def claim(requests: list[dict[str, Any]], config: Any = (), status: Any = None, **meta: Any) -> ResourceClaim:
    body = {
        "metadata": {"namespace": "ns", "name": "claim", "uid": "uid-claim", **meta},
        "spec": {"devices": {"requests": requests, "config": list(config)}},
        "status": status or {},
    }
    return convert(ResourceClaim, body)


LARGE = {
    "selectors": claim([request(it, selectors=selectors(32, 1_000)) for it in range(32)]),
    "tolerations": claim([request(it, tolerations=[TOLERATION] * 100) for it in range(32)]),
    "parameters": claim([request(it) for it in range(32)], [OPAQUE] * 32),
}


@pytest.mark.parametrize("what", LARGE)
def test_of_a_large_claim_its_requests_and_their_classes_are_kept_and_its_size_is_told(what: str) -> None:
    kept = without_bulk(LARGE[what])
    assert len(encode(kept)) < 5_000
    assert list(classes_of(kept)) == [f"class-{number}" for number in range(32)]
    obstacle = too_large([kept])
    assert obstacle is not None
    size = -(-len(encode(LARGE[what].spec)) // 1024)
    assert obstacle.text.startswith(f"claim ns/claim has a spec of {size} KiB, and dra-operator allocates at most 64")
    assert "shorten" in obstacle.text


def test_alternatives_of_a_large_claim_are_kept_by_their_classes() -> None:
    alternatives = [{"name": f"a{it}", "deviceClassName": f"c{it}", "selectors": selectors(32)} for it in range(8)]
    kept = without_bulk(claim([{"name": f"r{it}", "firstAvailable": alternatives} for it in range(32)]))
    assert too_large([kept]) is not None
    assert list(classes_of(kept)) == [f"c{it}" for it in range(8)] * 32


def test_an_allocated_large_claim_keeps_devices_consumers_and_what_its_life_depends_on() -> None:
    result = {"request": "req-0", "driver": "gpu.example.com", "pool": "p", "device": "d"}
    status = {
        "allocation": {"devices": {"results": [result], "config": [{"source": "FromClaim", **OPAQUE}] * 64}},
        "reservedFor": [user("pod")],
        "devices": [{"driver": "gpu.example.com", "pool": "p", "device": "d", "data": {"text": "x" * 10_000}}],
    }
    meta = {"finalizers": ["mine"], "ownerReferences": [OWNER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    whole = claim([request(it) for it in range(32)], [OPAQUE] * 32, status, **meta)
    kept = without_bulk(whole)
    assert len(encode(kept)) < 5_000
    assert kept.results == whole.results
    assert kept.status.reserved_for == whole.status.reserved_for
    assert kept.metadata.finalizers == ("mine",)
    assert kept.metadata.deletion_timestamp == whole.metadata.deletion_timestamp
    assert owning_pod(kept) == owning_pod(whole)


def test_annotations_labels_and_owners_do_not_make_a_claim_too_large() -> None:
    notes = {f"note-{it}": "x" * 1_000 for it in range(200)} | {"dra.kopf.dev/allocate": "immediate"}
    whole = claim([request(0)], labels={f"l{it}": "x" for it in range(8_000)}, annotations=notes)
    kept = without_bulk(whole)
    assert too_large([kept]) is None
    assert kept.spec == whole.spec
    assert is_immediate(kept)
    assert len(encode(kept)) < 1_000
    owned = without_bulk(claim([request(0)], ownerReferences=[OWNER | {"controller": False}] * 8_000 + [OWNER]))
    assert owning_pod(owned) is not None
    assert len(encode(owned)) < 1_000


def test_a_large_claim_with_many_finalizers_still_tells_ours_and_that_there_are_others() -> None:
    ours = "resource.kubernetes.io/delete-protection"
    kept = without_bulk(claim([request(0)], finalizers=[*(f"example.com/f{it}" for it in range(8_000)), ours]))
    assert kept.metadata.finalizers == ("example.com/f0", ours)


def test_the_largest_claim_that_a_person_would_write_stays_as_it_is() -> None:
    """32 requests with two selectors, two tolerations and a kilobyte of parameters each."""
    configs = [
        {"requests": [f"req-{it}"], "opaque": {"driver": "d", "parameters": {"t": "x" * 900}}} for it in range(32)
    ]
    more = {"selectors": selectors(2, 150), "tolerations": [TOLERATION] * 2}
    whole = claim([request(it, **more) for it in range(32)], configs)
    assert len(encode(whole)) < LARGEST_OBJECT_BYTES
    assert without_bulk(whole) is whole


def template(spec: dict[str, Any], **meta: Any) -> ClaimTemplate:
    body = {"metadata": {"namespace": "ns", "name": "tmpl"}, "spec": {"metadata": meta, "spec": spec}}
    return convert(ClaimTemplate, body)


@pytest.mark.parametrize("what", LARGE)
def test_of_a_large_template_the_classes_are_kept_and_it_knows_that_it_is_too_large(what: str) -> None:
    whole = template(msgspec.json.decode(encode(LARGE[what].spec)))
    kept = without_bulk(whole)
    assert len(kept.spec) < 5_000
    assert list(classes_of(kept.typed())) == [f"class-{number}" for number in range(32)]
    assert kept.bytes_of_spec == len(whole.spec)


def test_a_template_with_a_megabyte_of_annotations_of_its_own_keeps_its_spec() -> None:
    body = {
        "metadata": {"name": "t", "annotations": {f"n{it}": "x" * 200 for it in range(1_000)}},
        "spec": {"spec": {}},
    }
    kept = without_bulk(convert(ClaimTemplate, body))
    assert kept.metadata.annotations is None
    assert kept.bytes_of_spec is None
