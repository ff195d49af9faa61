"""Lists: selectors, pages, revisions, and the shapes a client may ask for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import orjson
import pytest
from bare_client import CONFIG_MAPS, DRA, EVENTS, NODES, PODS, Client, Json, config_map, names, pod
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.endpoints.call import render_list
from dra_devcluster.apiserver.selectors import selects
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.verbs.read import Page
from dra_devcluster.apiserver.wire import wanted
from rbac_cases import SERVERS, rbac_server

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


async def make_labelled(client: Client) -> None:
    for name, labels in (
        ("a", {"app": "x", "tier": "1"}),
        ("b", {"app": "x", "tier": "2"}),
        ("c", {"app": "y"}),
        ("d", {}),
    ):
        await client.post(CONFIG_MAPS, config_map(name, labels=labels))


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=x", "ab"),
        ("app==x", "ab"),
        ("app!=x", "cd"),
        ("app", "abc"),
        ("!app", "d"),
        ("app in (x, y)", "abc"),
        ("app in (x),tier=2", "b"),
        ("app notin (x)", "cd"),
        ("app,tier notin (1,3)", "bc"),
        ("tier>1", "b"),
        ("tier<2", "a"),
        ("", "abcd"),
    ],
)
async def test_label_selectors(client: Client, selector: str, expected: str) -> None:
    await make_labelled(client)
    assert names(await client.get(CONFIG_MAPS, labelSelector=selector)) == list(expected)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=n1", ["a"]),
        ("spec.nodeName=", ["c"]),
        ("spec.nodeName!=n1", ["b", "c"]),
        ("status.phase=Pending,spec.nodeName!=", ["a", "b"]),
        ("spec.schedulerName=mine", ["c"]),
        ("metadata.name=b", ["b"]),
        ("metadata.namespace=other", []),
    ],
)
async def test_field_selectors_of_pods(client: Client, selector: str, expected: list[str]) -> None:
    await client.post(PODS, pod("a", nodeName="n1"))
    await client.post(PODS, pod("b", nodeName="n2"))
    await client.post(PODS, pod("c", schedulerName="mine"))
    assert names(await client.get(PODS, fieldSelector=selector)) == expected
    assert names(await client.get("/api/v1/pods", fieldSelector=selector)) == expected


async def test_field_selectors_of_events_and_nodes(client: Client) -> None:
    for number, about in enumerate(("p", "q")):
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"e{number}"},
            "involvedObject": {"kind": "Pod", "name": about, "namespace": "default"},
            "reason": "Because",
            "type": "Normal",
        }
        await client.post(EVENTS, body)
    selector = "involvedObject.name=q,reason=Because,type=Normal"
    assert names(await client.get(EVENTS, fieldSelector=selector)) == ["e1"]
    for name, off in (("n1", True), ("n2", False)):
        await client.post(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": off}}
        )
    assert names(await client.get(NODES, fieldSelector="spec.unschedulable=true")) == ["n1"]
    assert names(await client.get(NODES, fieldSelector="spec.unschedulable=false")) == ["n2"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"labelSelector": "a==b=c"}, "unable to parse requirement"),
        ({"labelSelector": "a in x"}, "unable to parse requirement"),
        ({"labelSelector": "-a"}, "unable to parse requirement"),
        ({"labelSelector": "a=b,"}, "unable to parse requirement"),
        ({"fieldSelector": "spec.replicas=1"}, '"spec.replicas" is not a known field selector: only "metadata.name"'),
        ({"fieldSelector": "metadata.name"}, "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ({"limit": "many"}, 'parsing "many": invalid syntax'),
        ({"resourceVersion": "x"}, "resourceVersion"),
        ({"continue": "nonsense"}, "continue key is not valid"),
        ({"continue": "AAAA"}, "continue key is not valid"),
        ({"continue": "bnVsbA"}, "continue key is not valid"),
    ],
)
async def test_queries_that_make_no_sense_are_bad_requests(client: Client, query: dict[str, str], message: str) -> None:
    answer = await client.call("GET", CONFIG_MAPS, **query)
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert message in answer.message


async def test_pages_show_every_object_once(client: Client) -> None:
    for number in range(7):
        await client.post(CONFIG_MAPS, config_map(f"c{number}"))
    seen, token, remaining = [], "", []
    while True:
        page = await client.get(CONFIG_MAPS, limit="3", **({"continue": token} if token else {}))
        seen += names(page)
        remaining.append(page["metadata"].get("remainingItemCount"))
        token = page["metadata"].get("continue", "")
        if not token:
            break
        await client.patch(f"{CONFIG_MAPS}/c0", {"data": {"touched": str(len(seen))}})
    assert seen == [f"c{number}" for number in range(7)]
    assert remaining == [4, 1, None]


async def test_later_pages_name_the_revision_of_the_first(client: Client) -> None:
    for number in range(3):
        await client.post(CONFIG_MAPS, config_map(f"c{number}"))
    first = await client.get(CONFIG_MAPS, limit="2")
    await client.post(CONFIG_MAPS, config_map("c9"))
    second = await client.get(CONFIG_MAPS, limit="2", **{"continue": first["metadata"]["continue"]})
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_revision_of_the_future_is_refused(client: Client) -> None:
    answer = await client.call("GET", CONFIG_MAPS, resourceVersion="999999")
    assert answer.code == 504
    assert answer.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_items_of_builtin_lists_do_not_repeat_their_kind(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    listed = await client.get(CONFIG_MAPS)
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert set(listed["items"][0]) == {"metadata", "data"}


async def test_tables_have_columns_cells_and_the_metadata_of_their_objects(client: Client) -> None:
    await client.post(PODS, pod("p"))
    table = await client.get(PODS, accept=TABLE)
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]][:5] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    (row,) = table["rows"]
    assert row["cells"][:4] == ["p", "0/1", "Pending", "0"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    whole = await client.get(f"{PODS}/p", accept=TABLE, includeObject="Object")
    assert whole["rows"][0]["object"]["spec"]


async def test_metadata_alone_can_be_had(client: Client) -> None:
    made = await client.post(PODS, pod("p", schedulerName="absent"))
    listed = await client.get(PODS, accept=METADATA_LIST)
    assert listed["kind"] == "PartialObjectMetadataList"
    expected = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]}
    assert listed["items"] == [expected]
    assert await client.get(f"{PODS}/p", accept=METADATA) == expected


@pytest.mark.parametrize(
    ("accept", "code"),
    [
        ("application/vnd.kubernetes.protobuf", 406),
        ("text/html", 406),
        (METADATA.replace("v=v1", "v=v2"), 406),
        ("*/*", 200),
    ],
)
async def test_only_json_and_yaml_are_served(client: Client, accept: str, code: int) -> None:
    answer = await client.call("GET", CONFIG_MAPS, accept=accept)
    assert answer.code == code


async def test_yaml_is_served_when_asked_for(client: Client) -> None:
    answer = await client.call("GET", "/api/v1/namespaces/default", accept="application/yaml")
    assert answer.headers["Content-Type"].startswith("application/yaml")
    assert answer.body.startswith(b"kind: Namespace")


@pytest.mark.parametrize("kind", SERVERS)
async def test_metadata_of_an_object_and_of_a_list_have_different_names(kind: str, tmp_path: Path) -> None:
    slices = f"{DRA}/resourceslices"
    expected = {
        (PODS, METADATA): (
            406,
            "you requested PartialObjectMetadata, but the requested object is a list (*core.PodList)",
        ),
        (slices, METADATA): (
            406,
            "you requested PartialObjectMetadata, but the requested object is a list (*resource.ResourceSliceList)",
        ),
        (f"{PODS}/p", METADATA_LIST): (
            406,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Pod)",
        ),
        (PODS, METADATA_LIST): (200, ""),
        (f"{PODS}/p", METADATA): (200, ""),
    }
    async with rbac_server(kind, tmp_path) as client:
        await client.post(PODS, pod("p", schedulerName="none"))
        for (path, accept), (code, message) in expected.items():
            answer = await client.call("GET", path, accept=accept)
            assert (answer.code, answer.json.get("message", "")) == (code, message)
        for accept in (METADATA.replace(";v=v1", ""), METADATA.replace(";g=meta.k8s.io", "")):
            assert (await client.call("GET", f"{PODS}/p", accept=accept)).code == 406


@pytest.mark.parametrize("accept", [TABLE, METADATA_LIST])
def test_rows_of_large_objects_are_made_one_by_one_and_others_have_a_turn_in_between(accept: str) -> None:
    """Ten thousand claims may have a megabyte each, of which a row shows a few letters."""
    server = DevApiServer()
    claims = server.registry.store.collection("resource.k8s.io", "resourceclaims")
    resource = server.registry.of_collection(claims)
    assert resource is not None
    config = [{"opaque": {"driver": "d.example.com", "parameters": {f"p{it}": [it] for it in range(10_000)}}}]
    for number in range(10):
        meta = {"name": f"c{number}", "namespace": "ns", "uid": str(number), "resourceVersion": "1"}
        claims.restore(Stored({"metadata": meta, "status": {"devices": config}}, 1, {}))
    tracemalloc.start()
    try:
        page = Page([*claims.all()], 1)
        chunks = [*render_list(resource, page, wanted(accept), {"includeObject": "None"})]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    shown = orjson.loads(b"".join(chunks))
    assert len(shown.get("rows") or shown["items"]) == 10
    assert len(chunks) >= 4
    assert peak < 6 << 20  # two of them at most, decoded; all would have 17 MiB


def test_rows_of_objects_with_many_labels_need_none_of_them_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks at the states of claims every second must not have megabytes of labels decoded for that."""
    server = DevApiServer()
    claims = server.registry.store.collection("resource.k8s.io", "resourceclaims")
    resource = server.registry.of_collection(claims)
    assert resource is not None
    labels = {f"label-{number}": "x" * 60 for number in range(5_000)}
    for number in range(4):
        meta = {"name": f"c{number}", "namespace": "ns", "uid": "1", "resourceVersion": "1", "labels": labels}
        spec = {"devices": {"config": [{"opaque": {"parameters": "x" * 100_000}}] * (number % 2)}}
        claims.restore(Stored({"metadata": meta, "spec": spec, "status": {"allocation": {}}}, 1, {}))
    decoded, decode = 0, Stored.decode

    def counted(stored: Stored) -> dict[str, object]:
        nonlocal decoded
        decoded += 1
        return decode(stored)

    monkeypatch.setattr(Stored, "decode", counted)
    for _ in range(3):
        page = Page([*claims.all()], 1)
        text = b"".join(render_list(resource, page, wanted(TABLE), {"includeObject": "None"}))
        assert [row["cells"][:2] for row in orjson.loads(text)["rows"]] == [[f"c{it}", "allocated"] for it in range(4)]
    assert not decoded
    assert len([*render_list(resource, page, wanted(TABLE), {"includeObject": "None"})]) == 1, (
        "no turn for each of them"
    )
    whole = b"".join(render_list(resource, page, wanted(TABLE), {}))
    assert all(row["object"]["metadata"]["labels"] == labels for row in orjson.loads(whole)["rows"])


async def test_numbers_of_a_query_have_64_bits(client: Client) -> None:
    for text, code in ((f"{2**63 - 1}", 200), (f"{2**63}", 400), (f"-{2**63}", 200), (f"-{2**63 + 1}", 400)):
        assert (text, (await client.call("GET", CONFIG_MAPS, limit=text)).code) == (text, code)
    assert (await client.call("GET", CONFIG_MAPS, timeoutSeconds="soon")).code == 400


async def test_a_list_has_no_other_page_if_all_fits_into_one(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.post(CONFIG_MAPS, config_map(name))
    assert "continue" not in (await client.get(CONFIG_MAPS, limit="3"))["metadata"]
    first = await client.get(CONFIG_MAPS, limit="2")
    token, revision = first["metadata"]["continue"], first["metadata"]["resourceVersion"]
    assert first["metadata"]["remainingItemCount"] == 1
    chosen = (await client.get(CONFIG_MAPS, limit="1", labelSelector="!none"))["metadata"]
    assert ("continue" in chosen, "remainingItemCount" in chosen) == (True, False)
    answer = await client.call("GET", CONFIG_MAPS, limit="2", resourceVersion=revision, **{"continue": token})
    assert (answer.code, "is not allowed when using continue" in answer.message) == (400, True)
    rest = await client.get(CONFIG_MAPS, limit="1", **{"continue": token})
    assert (names(rest), "continue" in rest["metadata"]) == (["c"], False)
    exact = {"resourceVersion": revision, "resourceVersionMatch": "Exact"}
    assert (await client.call("GET", CONFIG_MAPS, **exact)).code == 200
    await client.post(CONFIG_MAPS, config_map("d"))
    answer = await client.call("GET", CONFIG_MAPS, **exact)
    assert (answer.code, answer.reason) == (410, "Expired")


def test_a_term_that_says_nothing_chooses_no_node() -> None:
    node: Json = {"metadata": {"name": "n", "labels": {"cores": "8"}}}
    above, below = ({"key": "cores", "operator": operator, "values": ["8"]} for operator in ("Gt", "Lt"))
    name: Json = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    cases: list[tuple[list[Json], bool]] = [
        ([], False),
        ([{}], False),
        ([{}, name], True),
        ([{"matchExpressions": [above]}, {"matchExpressions": [below]}], False),
        ([{"matchExpressions": [{**above, "values": ["7"]}]}], True),
        ([{"matchExpressions": [{**below, "values": ["9"]}], **name}], True),
        ([{"matchExpressions": [above], **name}], False),
    ]
    for terms, is_chosen in cases:
        assert selects({"nodeSelectorTerms": terms}, node) is is_chosen, terms
