"""The overlay of ``fit`` and ``drain``: it answers as placing does, and what it undoes leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_operator.commands.placing import NotPlaced, Placed
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.snapshot import load
from dra_operator.kubectl.whatif.overlay import Overlay
from fit_replays import crowd, placed_by_simulate
from msgspec.structs import replace
from rounds import fewer
from told import NOW

FLEET = Path(__file__).parent / "fleet.yaml"


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_pods_get_the_nodes_that_placing_one_after_the_other_gives_them(first: int) -> None:
    compared = 0
    for seed in range(first, first + fewer(50)):
        objects, pods = crowd(seed)
        made = pipeline(Observed(objects, NOW, namespace="ns"))
        expected = placed_by_simulate(objects, pods, made.cluster.features)
        overlay = Overlay(made)
        for pod, answer in zip(pods, expected, strict=True):
            outcome = overlay.place(pod)
            if answer != "not tried":
                assert (outcome.node if isinstance(outcome, Placed) else outcome.reason) == answer
                compared += 1
            else:
                assert isinstance(outcome, NotPlaced)
    assert compared > fewer(50)


def state_of(overlay: Overlay) -> object:
    cluster = overlay.cluster
    claims = {claim.key: claim.status for claim in cluster.claims}
    pods = {pod.key: pod.status.phase for pod in cluster.pods}
    return claims, pods, {node.name: dict(node.used) for node in cluster.loaded_nodes()}, set(cluster.loads)


def test_what_is_undone_leaves_nothing_behind() -> None:
    overlay = Overlay(pipeline(load(str(FLEET))))
    before = state_of(overlay)
    with overlay.attempt():
        running = [pod for pod in overlay.cluster.pods if pod.spec.node_name]
        for pod in running:
            overlay.evict(pod)
        with overlay.attempt():
            for pod in running:
                assert isinstance(overlay.place(overlay.successor(pod)), Placed)
            assert state_of(overlay) != before
        assert not any(claim.status.allocation for claim in overlay.cluster.claims)
    assert state_of(overlay) == before


def test_a_claim_that_pods_share_is_reserved_for_each_and_freed_by_the_last() -> None:
    seen = load(str(FLEET))
    source = next(claim for claim in seen.every(ResourceClaim) if claim.key == "ml/web-a-gpu")
    shared = replace(source, metadata=replace(source.metadata, name="shared", uid="uid-shared", owner_references=None))
    overlay = Overlay(pipeline(Observed([*seen.objects, replace(shared, status=type(shared.status)())], NOW)))
    web = next(pod for pod in seen.every(Pod) if pod.key == "ml/web-a")
    entry = replace(
        (web.spec.resource_claims or ())[0], resource_claim_name="shared", resource_claim_template_name=None
    )
    users = [
        replace(one, spec=replace(one.spec, resource_claims=(entry,)))
        for one in (overlay.successor(web), overlay.successor(web))
    ]
    nodes = {outcome.node for pod in users if isinstance(outcome := overlay.place(pod), Placed)}
    assert len(nodes) == 1
    reserved = [user.name for user in overlay.cluster.claims.get("ml/shared").status.reserved_for or ()]  # type: ignore[union-attr]
    assert reserved == [pod.metadata.name for pod in users]
    overlay.evict(users[0])
    assert overlay.cluster.claims.get("ml/shared").status.allocation is not None  # type: ignore[union-attr]
    overlay.evict(users[1])
    assert overlay.cluster.claims.get("ml/shared").status.allocation is None  # type: ignore[union-attr]
