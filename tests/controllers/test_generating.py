"""Claims are made, recorded, reserved and deleted (claim-controller.md sections 5 to 7), deviations included."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.releases import NEWEST
from dra_kube import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Forbidden,
    NotFound,
)
from dra_operator.cache import ClaimTemplate
from dra_operator.controllers import OwnControllers
from dra_operator.controllers.claims.generate import (
    NAME_ATTEMPTS,
    claim_from_template,
    generated_name,
    generated_name_base,
)
from dra_operator.controllers.errors import GenerationFailed
from fake_api import Call
from objects import Make, Obj

ANNOTATION = "resource.kubernetes.io/pod-claim-name"
GATED = {"schedulerName": "another", "schedulingGates": [{"name": "dra.kopf.dev/allocate"}]}
FINALIZER = "resource.kubernetes.io/delete-protection"


def recorded(world: World, pod: str = "ns/pod") -> dict[str, str]:
    statuses = world.api[PODS, pod]["status"].get("resourceClaimStatuses") or ()
    return {entry["name"]: entry.get("resourceClaimName") for entry in statuses}


@pytest.mark.rule("K37-MISC-02")
async def test_prj_001_one_of_two_claims_is_made_again_and_the_other_entry_never_disappears(
    world: World, make: type[Make]
) -> None:
    """An update replaces the list, so it is always complete."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE, make.FROM_TEMPLATE]))
    await world.settle()
    before = recorded(world)
    seen: list[set[str]] = []
    world.api.after = lambda call: seen.append(set(recorded(world)))
    world.api.drop(RESOURCE_CLAIMS, f"ns/{before['entry-0']}")
    await world.settle()
    after = recorded(world)
    assert after["entry-1"] == before["entry-1"]
    assert after["entry-0"] != before["entry-0"]
    assert all(names == {"entry-0", "entry-1"} for names in seen)
    assert len(world.api.of(RESOURCE_CLAIMS)) == 2


async def test_four_writes_give_a_pod_its_claim_and_its_node(world: World, make: type[Make]) -> None:
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.start()
    async with world.running():
        world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
        await world.quiet()
    assert [(call.verb, call.plural, call.sub) for call in world.api.writes] == [
        ("create", "resourceclaims", None),
        ("update", "pods", "status"),
        ("update", "resourceclaims", "status"),
        ("create", "pods", "binding"),
    ]
    assert not any(call.verb == "get" for call in world.api.calls)


async def test_a_pod_that_changes_before_its_claim_is_recorded_keeps_the_change(world: World, make: type[Make]) -> None:
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE, make.FROM_TEMPLATE]))
    changes = iter(
        [lambda pod: pod["status"].update(resourceClaimStatuses=[{"name": "entry-1"}], nominatedNodeName="node-9")]
    )

    def meanwhile(call: Call) -> None:
        if call[:3] == ("update", "pods", "status") and (change := next(changes, None)):
            world.api.change(PODS, "ns/pod", change)

    world.api.before = meanwhile
    await world.settle()
    assert recorded(world)["entry-0"]
    assert world.api[PODS, "ns/pod"]["status"]["nominatedNodeName"] == "node-9"
    assert world.api.conflicts == 1


async def test_a_claim_is_not_recorded_in_a_pod_that_took_the_name_meanwhile(world: World, make: type[Make]) -> None:
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    replacements = iter([make.pod(claims=[make.FROM_TEMPLATE])])

    def meanwhile(call: Call) -> None:
        if call[:3] == ("update", "pods", "status") and (pod := next(replacements, None)):
            world.api.drop(PODS, "ns/pod")
            world.api.add(PODS, pod | {"metadata": {**pod["metadata"], "uid": "second"}})

    world.api.before = meanwhile
    await world.settle()
    (claim,) = [
        claim for claim in world.api.of(RESOURCE_CLAIMS) if claim["metadata"]["name"] == recorded(world)["entry-0"]
    ]
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "second"


@pytest.mark.parametrize(
    ("spec", "controllers", "finalizers"),
    [
        ({}, OwnControllers(), [FINALIZER]),
        ({"schedulerName": "another"}, OwnControllers(), None),
        (GATED, OwnControllers(), [FINALIZER]),
        (GATED, OwnControllers(allocation=False), None),
        (GATED, OwnControllers(release=False), None),
        ({"node": "node-0"}, OwnControllers(), None),
        ({}, OwnControllers(placement=False), None),
        ({}, OwnControllers(release=False), None),
    ],
    ids=[
        "placed here",
        "placed by another",
        "at the gate",
        "at the gate, without allocation",
        "at the gate, without release",
        "placed by its author",
        "without placement",
        "without release",
    ],
)
async def test_only_a_claim_that_is_ours_throughout_has_the_finalizer_from_birth(
    spec: Obj, controllers: OwnControllers, finalizers: list[str] | None, world: World, make: type[Make]
) -> None:
    world.controllers = controllers
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE], **spec))
    await world.settle()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert claim["metadata"].get("finalizers") == finalizers


async def test_a_claim_with_the_finalizer_that_is_deleted_before_it_is_allocated_goes(
    world: World, make: type[Make]
) -> None:
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    await world.settle()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    world.api.drop(PODS, "ns/pod")
    await world.api.delete(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns")
    assert world.api.of(RESOURCE_CLAIMS)
    await world.settle()
    assert world.api.of(RESOURCE_CLAIMS) == []


@pytest.mark.rule("CC-02")
async def test_prj_002_a_claim_deleted_right_after_its_creation_is_made_again(world: World, make: type[Make]) -> None:
    """What we created ourselves is not remembered beyond its deletion (CC-02)."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.quiet()
        first = recorded(world)["entry-0"]
        world.api.drop(RESOURCE_CLAIMS, f"ns/{first}")
        await world.quiet()
    assert recorded(world)["entry-0"] != first
    assert [claim["metadata"]["name"] for claim in world.api.of(RESOURCE_CLAIMS)] == [recorded(world)["entry-0"]]


async def test_no_claim_is_made_again_for_a_pod_whose_end_no_event_showed(world: World, make: type[Make]) -> None:
    """The collector deletes its claim, which is made again: the server then knows no such pod, and that is believed."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.drop(PODS, "ns/pod")
        world.api.events.clear()
        for _ in range(3):
            for claim in world.api.of(RESOURCE_CLAIMS):
                world.api.drop(RESOURCE_CLAIMS, f"ns/{claim['metadata']['name']}")
            for _ in range(30):
                world.bring_events()
                await world.tick()
    made = [call for call in world.api.calls if (call.verb, call.plural) == ("create", "resourceclaims")]
    assert len(made) == 2
    assert "ns/pod" not in world.cluster.pods


async def test_a_refusal_that_only_looks_like_a_pod_that_is_gone_is_repeated(world: World, make: type[Make]) -> None:
    """A webhook chooses the code of its refusals itself."""
    refusals = iter([NotFound(404, "NotFound", 'admission webhook "deny.example.com" denied the request: no')])
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.api.before = lambda call: next(refusals, None) if call.sub == "status" else None
    await world.settle()
    assert world.node_of()


@pytest.mark.parametrize("restarts", [0, 2])
async def test_prj_003_the_claim_of_a_finished_pod_goes_and_stays_away(
    restarts: int, world: World, make: type[Make]
) -> None:
    """Also after restarts of the operator."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    await world.settle()
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Failed"))
    for _ in range(1 + restarts):
        await world.settle()
    assert world.api.of(RESOURCE_CLAIMS) == []
    assert [call.plural for call in world.api.calls if call.verb == "create"].count("resourceclaims") == 1


def legacy_claim(world: World, make: type[Make], owner: Obj, name: str = "pod-entry-0", **meta: Any) -> Obj:
    """A claim as Kubernetes up to 1.27 made it: a name that follows from pod and entry, and no annotation."""
    added: Obj = world.api.add(RESOURCE_CLAIMS, make.claim(name, owner=owner, **meta))
    return added


def names(world: World) -> set[str]:
    return {claim["metadata"]["name"] for claim in world.api.of(RESOURCE_CLAIMS)}


async def test_a_claim_with_a_legacy_name_is_recorded(world: World, make: type[Make]) -> None:
    """A name that follows from pod and entry says whose it is (section 5.8)."""
    world.legacy_claim_names = True
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    legacy_claim(world, make, pod["metadata"])
    await world.settle()
    assert recorded(world) == {"entry-0": "pod-entry-0"}
    assert names(world) == {"pod-entry-0"}


async def test_a_legacy_claim_lives_and_goes_like_a_generated_one(world: World, make: type[Make]) -> None:
    world.legacy_claim_names = True
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    legacy_claim(world, make, pod["metadata"])
    await world.settle()
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert names(world) == set()


@pytest.mark.parametrize(
    "case", ["the option is off", "it is another pod's", "another name", "another entry's annotation"]
)
async def test_what_only_looks_like_a_legacy_claim_is_left_alone(case: str, world: World, make: type[Make]) -> None:
    world.legacy_claim_names = case != "the option is off"
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    owner = pod["metadata"] | ({"uid": "former"} if case == "it is another pod's" else {})
    name = "pod-entry-1" if case == "another name" else "pod-entry-0"
    meta = {"annotations": {ANNOTATION: "other"}} if case == "another entry's annotation" else {}
    legacy_claim(world, make, owner, name, **meta)
    await world.settle()
    assert recorded(world)["entry-0"] not in (None, name)
    assert recorded(world)["entry-0"] in names(world)


async def test_the_annotated_claim_comes_before_the_legacy_one(world: World, make: type[Make]) -> None:
    world.legacy_claim_names = True
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    legacy_claim(world, make, pod["metadata"])
    world.api.add(RESOURCE_CLAIMS, make.claim("new", owner=pod["metadata"], annotations={ANNOTATION: "entry-0"}))
    await world.settle()
    assert recorded(world) == {"entry-0": "new"}


async def test_a_legacy_claim_is_recorded_after_a_crash_between_two_writes(world: World, make: type[Make]) -> None:
    world.legacy_claim_names = True
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE, make.FROM_TEMPLATE]))
    legacy_claim(world, make, pod["metadata"])
    world.start()
    async with world.running():
        while len(names(world)) < 2:
            await world.tick()
    await world.settle()
    assert recorded(world)["entry-0"] == "pod-entry-0"
    assert len(names(world)) == 2


async def test_prj_004_each_claim_has_its_own_annotation_and_the_template_is_unchanged(
    world: World, make: type[Make]
) -> None:
    """The entry's annotation overrides the template's, on copies only."""
    wanted: Obj = {"labels": {"app": "x"}, "annotations": {"note": "keep", ANNOTATION: "overridden"}}
    template = world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template(**wanted))
    for name in ("one", "two"):
        world.api.add(PODS, make.pod(name, claims=[make.FROM_TEMPLATE, make.FROM_TEMPLATE]))
    await world.settle()
    claims = world.api.of(RESOURCE_CLAIMS)
    assert len(claims) == 4
    for claim in claims:
        assert claim["metadata"]["labels"] == {"app": "x"}
        assert claim["metadata"]["annotations"]["note"] == "keep"
    assert sorted(claim["metadata"]["annotations"][ANNOTATION] for claim in claims) == ["entry-0"] * 2 + ["entry-1"] * 2
    assert world.api[RESOURCE_CLAIM_TEMPLATES, "ns/tmpl"] == template


@pytest.mark.rule("CC-04", "K37-MISC-03")
def test_what_happens_to_a_claim_does_not_change_its_template(make: type[Make]) -> None:
    template = convert(ClaimTemplate, make.template(annotations={"note": "keep"}, labels={"app": "x"}))
    before = json.dumps(template.content())
    claim = claim_from_template(convert(Pod, make.pod()), "entry-0", template, NEWEST)
    for part in (claim["metadata"]["annotations"], claim["metadata"]["labels"], claim["spec"]):
        part.clear()
    assert json.dumps(template.content()) == before


async def test_fields_of_a_newer_api_survive_in_generated_claims(world: World, make: type[Make]) -> None:
    template = make.template()
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["somethingNew"] = {"deep": [1, None]}
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    await world.settle()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert claim["spec"] == template["spec"]["spec"]


async def test_a_missing_template_is_reported_and_its_arrival_helps(world: World, make: type[Make]) -> None:
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.start()
    with pytest.raises(Exception, match="not found"):
        await world.control.generator.handle("ns/pod")
    async with world.running():
        world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
        await world.quiet()
    text = 'resource claim template "tmpl": resourceclaimtemplate.resource.k8s.io "tmpl" not found'
    assert f"PodResourceClaim entry-0: {text}" in world.messages("FailedResourceClaimCreation")
    assert recorded(world)["entry-0"]


@pytest.mark.parametrize(
    ("refusal", "end"),
    [
        ("exceeded quota: claims", "exceeded quota: claims"),
        (
            'User "dra" cannot create resource "resourceclaims"',
            "apply manifests/operator/rbac.yaml, or upgrade the chart",
        ),
    ],
)
async def test_a_refused_creation_is_reported_once_with_a_count(
    world: World, make: type[Make], refusal: str, end: str
) -> None:
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    refusals = iter([Forbidden(403, "Forbidden", refusal)] * 4)
    world.api.before = lambda call: next(refusals, None) if call[:2] == ("create", "resourceclaims") else None
    await world.settle()
    failed = [event for event in world.api.of(EVENTS) if event["reason"] == "FailedResourceClaimCreation"]
    assert [(event["count"], event["type"]) for event in failed] == [(4, "Warning")]
    assert refusal in failed[0]["message"]
    assert failed[0]["message"].endswith(end)
    assert recorded(world)["entry-0"]


async def test_an_entry_that_needs_no_claim_is_respected_and_kept(world: World, make: type[Make]) -> None:
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = make.pod(claims=[make.FROM_TEMPLATE, make.FROM_TEMPLATE])
    pod["status"]["resourceClaimStatuses"] = [{"name": "entry-1"}]
    world.api.add(PODS, pod)
    await world.settle()
    assert set(recorded(world)) == {"entry-0", "entry-1"}
    assert recorded(world)["entry-1"] is None
    assert len(world.api.of(RESOURCE_CLAIMS)) == 1


async def test_a_pod_with_a_preset_node_gets_its_allocated_claim_reserved(world: World, make: type[Make]) -> None:
    """No scheduler sees such a pod, and an unallocated claim stays unallocated (5.5, E2E-012)."""
    world.api.add(NODES, make.node("node-0"))
    for name in ("free", "taken"):
        world.api.add(RESOURCE_CLAIMS, make.claim(name))
    world.api.change(
        RESOURCE_CLAIMS,
        "ns/taken",
        lambda claim: claim.update(
            status={"allocation": {"devices": {}}},
            metadata={**claim["metadata"], "finalizers": [FINALIZER]},
        ),
    )
    world.api.add(PODS, make.pod(claims=[make.use("free"), make.use("taken")], node="node-0"))
    await world.settle()
    assert "status" not in world.api[RESOURCE_CLAIMS, "ns/free"]
    (consumer,) = world.api[RESOURCE_CLAIMS, "ns/taken"]["status"]["reservedFor"]
    assert consumer == {"resource": "pods", "name": "pod", "uid": world.api[PODS, "ns/pod"]["metadata"]["uid"]}


async def test_a_claim_that_takes_no_more_consumers_is_no_bug_of_the_operator(
    world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    """The pod has its node already, so nothing but another pod's end can help: it is tried again, and told once."""
    consumers = [{"apiGroup": "example.com", "resource": "jobs", "name": "j", "uid": str(n)} for n in range(256)]
    full = make.claim("full", finalizers=[FINALIZER])
    world.api.add(RESOURCE_CLAIMS, full | {"status": {"allocation": {"devices": {}}, "reservedFor": consumers}})
    world.api.add(PODS, make.pod(claims=[make.use("full")], node="node-0"))
    world.start()
    async with world.running() as control:
        while control.queues.of("templates").retries < 3:
            world.bring_events()
            await world.tick()
        world.api.change(RESOURCE_CLAIMS, "ns/full", lambda claim: claim["status"]["reservedFor"].pop())
        await world.quiet()
    (told,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert 'failed error="PodResourceClaim entry-0: claim ns/full already has 256 consumers' in told
    assert world.api[RESOURCE_CLAIMS, "ns/full"]["status"]["reservedFor"][-1]["name"] == "pod"


async def test_a_pod_being_deleted_on_its_node_keeps_its_claims(world: World, make: type[Make]) -> None:
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    pod = world.api.add(PODS, make.pod(claims=[make.use("claim")], node="node-0"))
    consumer = {"resource": "pods", "name": "pod", "uid": pod["metadata"]["uid"]}
    world.api.change(
        RESOURCE_CLAIMS,
        "ns/claim",
        lambda claim: claim.update(
            status={"allocation": {"devices": {}}, "reservedFor": [consumer]},
            metadata={**claim["metadata"], "finalizers": [FINALIZER]},
        ),
    )
    world.api.change(PODS, "ns/pod", lambda obj: obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    await world.settle()
    assert world.api[RESOURCE_CLAIMS, "ns/claim"]["status"]["reservedFor"] == [consumer]


NAMES = [("p", "e"), ("p" * 63, "e" * 63), ("p" * 250, "e"), ("p", "e" * 63), ("a." * 60 + "a", "e" * 30)]


@pytest.mark.parametrize(("pod", "entry"), NAMES)
def test_generated_names_leave_room_for_the_random_part(pod: str, entry: str) -> None:
    base = generated_name_base(pod, entry)
    assert len(base) <= 57
    assert base.endswith("-")
    assert base.startswith(pod[:1])
    assert all(label[:1].isalnum() for label in base.split("."))


async def test_pods_that_ask_for_hundreds_of_claims_let_another_one_have_its_claim_in_between(
    world: World, make: type[Make]
) -> None:
    """As many as there are workers: each would be busy for minutes with thousands of claims."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    for number in range(world.times.workers["templates"]):
        world.api.add(PODS, make.pod(f"greedy-{number}", claims=[make.FROM_TEMPLATE] * 400))
    world.api.add(PODS, make.pod("modest", claims=[make.FROM_TEMPLATE]))
    await world.settle()
    made = [call.name for call in world.api.writes if call[:2] == ("create", "resourceclaims")]
    modest = next(number for number, name in enumerate(made) if name.startswith("modest"))
    assert modest <= 100 * world.times.workers["templates"]
    assert len(made) == 400 * world.times.workers["templates"] + 1
    assert all(len(recorded(world, f"ns/greedy-{number}")) == 400 for number in range(4))


async def test_a_recorded_claim_is_known_as_such_before_the_server_has_answered(world: World, make: type[Make]) -> None:
    """Also one that a user made for his pod: whose work it is must be known when the watch shows it."""
    pod = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.api.add(RESOURCE_CLAIMS, make.claim("made", owner=pod["metadata"], annotations={ANNOTATION: "entry-0"}))
    shown: list[bool] = []

    def look(call: Call) -> None:
        if call[:3] == ("update", "pods", "status"):
            shown.append(world.control.records_claim(convert(Pod, world.api[PODS, "ns/pod"]), "made"))

    world.api.after = look
    await world.settle()
    assert recorded(world) == {"entry-0": "made"}
    assert shown == [True]


async def test_claims_that_took_the_names_for_a_pod_are_not_read_again_at_each_attempt(
    world: World, make: type[Make]
) -> None:
    """Who may create claims may give them any names, and make them as large as the server takes."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = world.api.add(PODS, make.pod("pod", [make.FROM_TEMPLATE]))
    entry = pod["spec"]["resourceClaims"][0]["name"]
    base = generated_name_base("pod", entry)
    for attempt in range(NAME_ATTEMPTS):
        world.api.add(RESOURCE_CLAIMS, make.claim(generated_name(base, pod["metadata"]["uid"], entry, attempt)))
    world.start()
    with pytest.raises(GenerationFailed, match="create ResourceClaim pod-entry-0-"):
        await world.control.generator.handle("ns/pod")
    assert ("get", RESOURCE_CLAIMS.plural) not in [(call.verb, call.plural) for call in world.api.calls]
