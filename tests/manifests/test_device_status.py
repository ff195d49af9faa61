"""A plugin whose driver reports devices writes status.devices of its own node and driver, and nothing else of a claim.

Each kind of claim is met by each plugin with each write; who may is worked out here. Every release is asked: the oldest
and the newest about all of them, each one between about some, and those in turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from bare_client import CLAIMS, PATCH, Client, claim, path_of
from dra_api.releases import BUILT
from manifest_accounts import DRIVER, ON_NODE_1, REPORTING, Json, furnish, grant, objects, plugin_on
from rbac_cases import RELEASES, ReleaseClient, rbac_server
from waiting import until

OTHER = "nic.example.com"


def by_name(*nodes: str, operator: str = "In") -> Json:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(nodes)}]}


def by_label(node: str) -> Json:
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}


def said(driver: str, word: str = "up") -> Json:
    return {"driver": driver, "pool": "pool", "device": "device", "data": {"link": word}}


def allocation(*terms: Json) -> Json:
    results = [{"request": "gpu", "driver": driver, "pool": "pool", "device": "device"} for driver in (DRIVER, OTHER)]
    selector = {"nodeSelector": {"nodeSelectorTerms": list(terms)}} if terms else {}
    return {"devices": {"results": results}, **selector}


ALLOCATIONS: dict[str, Json | None] = {
    "idle": None,
    "on-node-1": allocation(by_name("node-1")),
    "on-node-2": allocation(by_name("node-2")),
    "anywhere": allocation(),
    "by-label": allocation(by_label("node-1")),
    "either-term": allocation(by_name("node-1"), by_label("node-2")),
    "elsewhere": allocation(by_name("node-1", operator="NotIn")),
    "both-rules": allocation({**by_name("node-1"), **by_label("node-1")}),
}
"""Of claims with devices of two drivers; the kind of node selector differs."""
RESERVED = [{"resource": "pods", "name": "victim", "uid": "u"}]
WRITES: dict[str, Json] = {
    "own": {"devices": [said(DRIVER), said(OTHER)]},
    "own-changed": {"devices": [said(DRIVER, "down"), said(OTHER)]},
    "other": {"devices": [said(OTHER, "down")]},
    "both": {"devices": [said(DRIVER, "down"), said(OTHER, "down")]},
    "others-removed": {"devices": [said(DRIVER)]},
    "all-removed": {"devices": None},
    "deallocated": {"allocation": None},
    "released": {"reservedFor": None},
    "given-to-another": {"reservedFor": [{**RESERVED[0], "name": "thief", "uid": "v"}]},
    "allocated": {"allocation": ON_NODE_1, "devices": None},
    "robbed": {"allocation": None, "reservedFor": None, "devices": None},
    "own-and-released": {"devices": [said(DRIVER, "down"), said(OTHER)], "reservedFor": None},
}
"""Changes of a status that has an allocation, a reservation, and what the other driver says."""
HARMLESS = {"own", "own-changed"}
NODES: Final = ("node-1", "node-2", "")
"""Of the plugins: the last one has a token that names none."""
STEP: Final = 5
"""Each release between the ends is asked about every fifth: in that many steps all writes and claims come by."""
Case = tuple[str, str, str]
"""A node, a claim and a write."""


def asked_of(release: str) -> Sequence[Case]:
    """Return what a release is asked, and each release the writes that are allowed."""
    every, releases = [*product(NODES, ALLOCATIONS, WRITES)], [*BUILT]
    if release in (releases[0], releases[-1]) or release not in releases:
        return every
    some = every[releases.index(release) :: STEP]
    return [*some, *(it for it in every if is_allowed(*it) and it not in some)]


def is_allowed(node: str, name: str, write: str) -> bool:
    return write in HARMLESS and name == f"on-{node}"


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Return the name of a release, or of a kind of real server."""
    return str(request.param)


@pytest.fixture
async def client(release: str, tmp_path: Path) -> AsyncIterator[ReleaseClient]:
    async with rbac_server(release, tmp_path) as client:
        await grant(client)
        await furnish(client)
        for name, allocated in ALLOCATIONS.items():
            await client.post(CLAIMS, claim(name))
            if allocated:
                status = {"allocation": allocated, "reservedFor": RESERVED, "devices": [said(OTHER)]}
                await client.patch(f"{CLAIMS}/{name}/status", {"status": status})
        yield client


async def refusal(plugin: Client, name: str, write: Json, kind: str = "merge") -> str:
    """Return why the plugin may not write this, or nothing if it may."""
    body: Json = {"status": write}
    options: dict[str, Any] = {"kind": PATCH[kind], "dryRun": "All"}
    if kind == "apply":
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, **body}
        options |= {"fieldManager": "thief", "force": "true"}
    answer = await plugin.call("PATCH", f"{CLAIMS}/{name}/status", body, **options)
    return "" if answer.code < 300 else f"{answer.code} {answer.message}"


async def test_without_the_component_no_plugin_writes_the_status_of_a_claim(client: ReleaseClient) -> None:
    """The right is asked for before anything of the write is looked at: each node, claim and write comes once."""
    for node, name, write in [*product(NODES, ALLOCATIONS, ("own",)), *product(("node-1",), ("on-node-1",), WRITES)]:
        why = await refusal(plugin_on(client, node), name, WRITES[write])
        assert 'cannot patch resource "resourceclaims/status"' in why, (node, name, write)


async def apply_component(client: ReleaseClient) -> None:
    """Create its objects, and wait until a real server has heard of them, which it does by watches.

    From 1.36 on the server asks before the policy does.
    """
    for obj in objects(REPORTING):
        await client.post(path_of(obj), obj)

    async def in_force() -> bool:
        own = await refusal(plugin_on(client, "node-1"), "on-node-1", WRITES["own"])
        other = await refusal(plugin_on(client, ""), "on-node-1", WRITES["own"])
        return not own and ("no node association" in other or "resourceclaims/driver" in other)

    await until("the rights and the policy are in force", in_force)


async def test_with_the_component_it_writes_what_it_says_of_its_own_devices(
    client: ReleaseClient, release: str
) -> None:
    await apply_component(client)
    wrong = []
    for node, name, write in asked_of(release):
        if name == "idle" and write not in ("own", "allocated", "given-to-another"):
            continue  # changes nothing of it
        why = await refusal(plugin_on(client, node), name, WRITES[write])
        if bool(why) == is_allowed(node, name, write) or (why and not why.startswith(("403", "422"))):
            wrong.append((node, name, write, why))
    assert not wrong, "\n".join(map(str, wrong))


async def test_a_plugin_applies_its_part_as_the_library_does(client: ReleaseClient) -> None:
    await apply_component(client)
    own = {"devices": [said(DRIVER)]}
    assert await refusal(plugin_on(client, "node-1"), "on-node-1", own, "apply") == ""
    for node in ("node-2", ""):
        assert await refusal(plugin_on(client, node), "on-node-1", own, "apply")
    assert await refusal(plugin_on(client, "node-1"), "on-node-1", {"devices": [said(OTHER, "down")]}, "apply")
    assert await refusal(plugin_on(client, "node-1"), "on-node-1", {"allocation": ALLOCATIONS["on-node-2"]}, "apply")


async def test_others_are_not_concerned(client: ReleaseClient) -> None:
    await apply_component(client)
    for name, write in product(ALLOCATIONS, ("own-changed", "both", "robbed")):
        assert "ValidatingAdmissionPolicy" not in await refusal(client, name, WRITES[write])


def test_each_right_to_write_of_a_plugin_is_tried() -> None:
    assert set(rights()) == {
        ("events", "create"),  # in its own namespace alone: test_least_privilege.py
        ("resourceclaims/status", "patch"),  # here
        ("resourceclaims/driver", "associated-node:patch"),  # here: asked by the server, beside the former
        *(("resourceslices", verb) for verb in ("create", "update", "delete")),  # test_policy.py
    }


def rights() -> Iterator[tuple[str, str]]:
    for obj in [*objects(), *objects(REPORTING)]:
        if obj["kind"] in ("ClusterRole", "Role") and obj["metadata"]["name"].startswith("dra-plugin"):
            for rule in obj["rules"]:
                verbs = [verb for verb in rule["verbs"] if verb not in ("get", "list", "watch")]
                yield from product(rule["resources"], verbs)
