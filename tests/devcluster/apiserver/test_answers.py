"""What clients see in the answers beyond success or failure: canonical forms, warnings, refusals of queries."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
import pytest
from aiohttp import test_utils, web
from bare_client import CLAIMS, CONFIG_MAPS, DRA, NODES, PATCH, PODS, Client, Json, client_of, config_map, pod
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.registry import NodeServerAddress

NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def _claim(name: str) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "1024Mi"}}}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("1000m", "1"), ("1024Mi", "1Gi"), (2, "2"), (0.5, "500m"), ("1e3", "1e3"), ("0.1", "100m"), ("1.5Gi", "1536Mi")],
)
async def test_quantities_are_kept_in_their_shortest_form(client: Client, sent: str | float, kept: str) -> None:
    body = pod("p")
    body["spec"]["containers"][0]["resources"] = {"limits": {"memory": sent}}
    made = await client.post(PODS, body)
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"memory": kept}, "requests": {"memory": kept}}


async def test_quantities_of_claims_are_kept_in_their_shortest_form_too(client: Client) -> None:
    made = await client.post(CLAIMS, _claim("c"))
    assert made["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"] == {"memory": "1Gi"}


async def test_empty_optional_lists_and_maps_are_not_kept(client: Client) -> None:
    made = await client.post(
        f"{DRA}/deviceclasses", {"metadata": {"name": "c", "labels": {}}, "spec": {"selectors": []}}
    )
    assert made["spec"] == {}
    assert "labels" not in made["metadata"]


async def test_a_deleted_claim_is_the_answer_to_its_deletion(client: Client) -> None:
    await client.post(CLAIMS, _claim("c"))
    answer = await client.call("DELETE", f"{CLAIMS}/c")
    assert (answer.json["kind"], answer.json["metadata"]["name"]) == ("ResourceClaim", "c")


@pytest.mark.parametrize("kind", ["created", "refused"])
async def test_each_unknown_field_has_a_warning_of_its_own_even_beside_a_refusal(client: Client, kind: str) -> None:
    name = "a" if kind == "created" else "A_"
    answer = await client.call("POST", CONFIG_MAPS, {**config_map(name), "one": 1, "two": 2})
    assert answer.code == (201 if kind == "created" else 422)
    assert answer.headers.getall("Warning") == [f'299 - "unknown field \\"{field}\\""' for field in ("one", "two")]


async def test_an_event_of_the_newer_api_says_what_it_is_about_in_both(client: Client) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    event = {"metadata": {"name": "e"}, "regarding": about, "reason": "R", "type": "Normal", "action": "A"}
    event |= {
        "reportingController": "example.com/c",
        "reportingInstance": "i",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    assert (await client.post(NEW_EVENTS, event))["regarding"] == about
    old = await client.get("/api/v1/namespaces/default/events/e")
    assert old["involvedObject"] == about
    assert "regarding" not in old


async def test_an_object_that_ceases_to_match_is_shown_as_it_last_matched(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a", labels={"in": "yes"}))
    since = made["metadata"]["resourceVersion"]
    changed = await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"in": "no"}}})
    async with client.watch(CONFIG_MAPS, labelSelector="in=yes", resourceVersion=since) as watch:
        kind, shown = await watch.next()
    assert (kind, shown["metadata"]["labels"]) == ("DELETED", {"in": "yes"})
    assert shown["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("PUT", f"{CONFIG_MAPS}/a", {"metadata": {}}, 400),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "b", "resourceVersion": "1"}}, 500),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "b"}, "data": {"a b": "x"}}, 422),
        ("POST", NODES, {"metadata": {"name": "n", "namespace": "ignored"}}, 201),
        ("GET", f"{CONFIG_MAPS}?sendInitialEvents=true", None, 422),
        ("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion=1&resourceVersionMatch=NotOlderThan", None, 422),
        ("GET", f"{CONFIG_MAPS}?resourceVersion=0&resourceVersionMatch=Exact", None, 422),
        ("DELETE", "/api/v1/configmaps", None, 405),
        ("DELETE", f"{CONFIG_MAPS}/a", {"dryRun": ["Some"]}, 422),
        ("DELETE", f"{CONFIG_MAPS}/a", {"orphanDependents": True, "propagationPolicy": "Orphan"}, 422),
    ],
)
async def test_requests_at_the_edge(client: Client, method: str, path: str, body: Json | None, code: int) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call(method, path, body)
    assert answer.code == code, answer.body


async def test_a_patch_cannot_give_an_object_another_uid(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", {"metadata": {"uid": "other"}}, kind=PATCH["merge"])
    assert answer.code == 422
    assert answer.json["details"]["causes"][0]["field"] == "metadata.uid"


@pytest.mark.parametrize("change", [{"data": {"a": "other"}}, {"immutable": False}])
async def test_immutable_config_maps_do_not_change(client: Client, change: dict[str, Any]) -> None:
    await client.post(CONFIG_MAPS, {**config_map("a"), "immutable": True})
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", change, kind=PATCH["merge"])
    assert answer.code == 422
    assert [cause["field"] for cause in answer.json["details"]["causes"]] == list(change)


async def test_managed_fields_of_one_moment_stand_in_a_fixed_order(client: Client) -> None:
    await client.post(PODS, pod("p"))
    await client.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}})
    changed = await client.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    entries = changed["metadata"]["managedFields"]
    order = [(entry["time"], entry["manager"], entry.get("subresource", "")) for entry in entries]
    assert len(order) > 1
    assert order == sorted(order)


async def test_what_admission_and_binding_write_has_no_manager(client: Client) -> None:
    await client.post(PODS, pod("p", schedulerName="absent"))
    await client.post(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}})
    bound = await client.get(f"{PODS}/p")
    (entry,) = bound["metadata"]["managedFields"]
    assert bound["spec"]["nodeName"] == "n"
    assert bound["spec"]["tolerations"]
    assert not {"f:nodeName", "f:tolerations", "f:serviceAccountName"} & entry["fieldsV1"]["f:spec"].keys()


async def test_a_pod_that_goes_at_once_still_shows_that_it_was_deleted(client: Client) -> None:
    await client.post(PODS, pod("p", schedulerName="absent"))
    gone = (await client.call("DELETE", f"{PODS}/p")).json["metadata"]
    assert (gone["generation"], gone["deletionGracePeriodSeconds"]) == (2, 0)
    assert "deletionTimestamp" in gone


@pytest.mark.parametrize("subresource", ["exec?command=true", "attach", "portforward"])
async def test_a_pod_without_a_node_has_no_host_to_talk_to(client: Client, subresource: str) -> None:
    await client.post(PODS, pod("p", schedulerName="absent"))
    answer = await client.call("POST", f"{PODS}/p/{subresource}")
    assert (answer.code, answer.message) == (400, "pod p does not have a host assigned")


async def test_a_pod_without_a_node_has_logged_nothing_yet(client: Client) -> None:
    await client.post(PODS, pod("p", schedulerName="absent"))
    assert (await client.call("GET", f"{PODS}/p/log")).code == 204
    assert (await client.call("GET", f"{PODS}/p/log?container=other")).code == 400


@pytest.mark.parametrize("mode", ["", "Strict", "Ignore"])
async def test_an_apply_with_undeclared_fields_is_refused(client: Client, mode: str) -> None:
    path = f"{CONFIG_MAPS}/a?fieldManager=me&fieldValidation={mode}"
    answer = await client.call("PATCH", path, {**config_map("a"), "datum": 1}, kind=PATCH["apply"])
    assert answer.code == 500
    assert ".datum: field not declared in schema" in answer.message


async def test_an_eviction_is_of_the_pod_in_the_path(client: Client) -> None:
    await client.post(PODS, pod("p", schedulerName="absent"))
    assert (await client.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "other"}})).code == 400


async def test_a_pod_names_no_priority_but_that_of_its_class(client: Client) -> None:
    answer = await client.call("POST", PODS, pod("p", priority=5))
    assert (answer.code, answer.reason) == (403, "Forbidden")


async def test_a_negative_grace_period_is_taken_for_a_second(client: Client) -> None:
    assert (await client.post(PODS, pod("p", terminationGracePeriodSeconds=-5)))["spec"][
        "terminationGracePeriodSeconds"
    ] == 1


async def test_a_pod_may_have_the_longest_grace_period_that_there_is(client: Client) -> None:
    await client.post(NODES, {"metadata": {"name": "n"}})
    await client.post(PODS, pod("p", terminationGracePeriodSeconds=2**63 - 1, nodeName="n"))
    meta = (await client.delete(f"{PODS}/p"))["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("9999-12-31T23:59:59Z", 2**63 - 1)


async def test_a_node_offers_all_that_it_has_unless_it_says_otherwise(client: Client) -> None:
    made = await client.post(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": 4}}})
    assert made["status"]["allocatable"] == {"cpu": "4"}


@pytest.mark.parametrize(("version", "gone"), [("v1beta1", "v1.38+"), ("v1beta2", "v1.39+"), ("v1", None)])
@pytest.mark.parametrize("query", ["", "?watch=1&timeoutSeconds=1"])
async def test_versions_on_their_way_out_are_warned_of(
    client: Client, version: str, gone: str | None, query: str
) -> None:
    answer = await client.call("GET", f"/apis/resource.k8s.io/{version}/resourceslices{query}")
    warnings = answer.headers.getall("Warning", [])
    assert [warning.rpartition(" ")[2].strip('"') for warning in warnings] == ([gone] if gone else [])


async def test_an_apply_takes_two_writings_of_a_quantity_for_two_values(client: Client) -> None:
    body = {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1000m"}}}
    await client.post(f"{NODES}?fieldManager=one", body)
    body |= {"apiVersion": "v1", "kind": "Node"}
    answer = await client.call("PATCH", f"{NODES}/n/status?fieldManager=two", body, kind=PATCH["apply"])
    assert (answer.code, answer.reason) == (409, "Conflict")
    body["status"] = {"capacity": {"cpu": "1"}}
    answer = await client.call("PATCH", f"{NODES}/n/status?fieldManager=two", body, kind=PATCH["apply"])
    assert answer.code == 200


# --- the node's own server ---


async def test_sessions_pass_words_on_and_what_is_wrong_with_the_node_is_told(server: DevApiServer) -> None:
    async def echo(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket

    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=server.ca.decode()))
    headers = {"Authorization": f"Bearer {server.token}"}
    async with client_of(server) as client, aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        await client.post(PODS, pod("p", nodeName="n"))
        path = f"{server.url}{PODS}/p/exec?command=sh"
        assert "no node agent has registered it" in (await client.call("GET", f"{PODS}/p/log")).message
        async with test_utils.RawTestServer(echo) as node:
            server.registry.node_servers["n"] = NodeServerAddress(f"{node.host}:{node.port}", "key")
            for asked in ("", "v3.channel.k8s.io"):
                upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": asked}
                async with session.get(path, headers=upgrade) as answer:
                    said = (await answer.json())["message"]
                assert said.startswith("exec needs one of the sub-protocols v5.")
                assert said.endswith(f"not {asked or 'none'}")
            async with session.ws_connect(path, protocols=["v4.channel.k8s.io"]) as socket:
                await socket.send_str("words")
                assert await socket.receive_str() == "WORDS"
        for what in (f"{PODS}/p/log", f"{NODES}/n/proxy/metrics"):
            answered = await client.call("GET", what)
            assert (answered.code, "the node does not answer" in answered.message) == (500, True), what
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(path, protocols=["v4.channel.k8s.io"])
        assert refused.value.status == 500
