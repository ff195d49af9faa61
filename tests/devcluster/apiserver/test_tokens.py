"""Tokens of service accounts: what they say of pods and nodes, and when they end; as on a real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from bare_client import NODES, PODS, Client, pod
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.identity import ISSUER
from rbac_cases import ACCOUNTS, SERVERS, new_account, rbac_server, token_of, whoami

SECRETS = "/api/v1/namespaces/default/secrets"
EXTRA = "authentication.kubernetes.io"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}


@pytest.fixture(params=SERVERS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """With the service account ``robot``, its pod ``bound`` on ``node-1``, and its pod ``waiting`` on none."""
    async with rbac_server(request.param, tmp_path) as client:
        await new_account(client, "robot")
        await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
        await client.post(PODS, pod("bound", nodeName="node-1", serviceAccountName="robot"))
        await client.post(PODS, pod("waiting", serviceAccountName="robot", schedulerName="none"))
        yield client


async def test_a_token_says_which_pod_and_node_its_user_is_on(client: Client) -> None:
    pod_uid = (await client.get(f"{PODS}/bound"))["metadata"]["uid"]
    node_uid = (await client.get(f"{NODES}/node-1"))["metadata"]["uid"]
    of_pod = {f"{EXTRA}/pod-name": ["bound"], f"{EXTRA}/pod-uid": [pod_uid]}
    of_node = {f"{EXTRA}/node-name": ["node-1"], f"{EXTRA}/node-uid": [node_uid]}
    await client.post(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})
    for bound, expected in (
        (None, {}),
        ({"kind": "Pod", "apiVersion": "v1", "name": "bound"}, of_pod | of_node),
        ({"kind": "Pod", "apiVersion": "v1", "name": "bound", "uid": pod_uid}, of_pod | of_node),
        ({"kind": "Node", "apiVersion": "v1", "name": "node-1"}, of_node),
        ({"kind": "Secret", "apiVersion": "v1", "name": "s"}, {}),
    ):
        token = await token_of(client, "robot", **({"boundObjectRef": bound} if bound else {}))
        user = await whoami(client.with_token(token))
        claims = jwt.decode(token, options={"verify_signature": False})
        extra = user.pop("extra")
        assert extra.pop(f"{EXTRA}/credential-id") == [f"JTI={claims['jti']}"]
        assert extra == expected, bound
        assert user["username"] == claims["sub"] == "system:serviceaccount:default:robot"
        assert user["groups"] == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
        assert claims["kubernetes.io"]["serviceaccount"] == {"name": "robot", "uid": user["uid"]}
        assert claims["exp"] - claims["iat"] == 3600


async def test_a_token_of_a_pod_without_a_node_names_none(client: Client) -> None:
    token = await token_of(client, "robot", boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "waiting"})
    extra = (await whoami(client.with_token(token)))["extra"]
    assert {key.removeprefix(f"{EXTRA}/") for key in extra} == {"credential-id", "pod-name", "pod-uid"}


IMPOSSIBLE: list[tuple[dict[str, Any], int, str]] = [
    ({"expirationSeconds": 5}, 422, 'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid '
     "value: 5: may not specify a duration less than 10 minutes"),
    ({"expirationSeconds": 2**32 + 1}, 422, 'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: '
     "Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"),
    ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}, 404, 'pods "none" not found'),
    ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "bound", "uid": "x"}}, 409,
     'Operation cannot be fulfilled on Pod "bound": the UID in the bound object reference (x) does not match the UID '
     "in record. The object might have been deleted and then recreated"),
    ({"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "c"}}, 400,
     "cannot bind token to object of type /v1, Kind=ConfigMap"),
]  # fmt: skip


async def test_impossible_requests_are_refused_with_the_words_of_a_real_server(client: Client) -> None:
    path = f"{ACCOUNTS}/robot/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    for spec, code, message in IMPOSSIBLE:
        answer = await client.call("POST", path, {**request, "spec": spec})
        assert (answer.code, answer.message) == (code, message), spec
    spec = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "bound"}}
    answer = await client.call("POST", f"{ACCOUNTS}/default/token", {**request, "spec": spec})
    why = 'cannot bind token for serviceaccount "default" to pod running with different serviceaccount name.'
    assert (answer.code, answer.message) == (400, why)


async def test_a_request_for_another_account_is_refused(client: Client) -> None:
    for meta, code in (({"name": "other"}, 422), ({"namespace": "other"}, 422), ({"uid": "other"}, 409)):
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": meta, "spec": {}}
        assert (meta, (await client.call("POST", f"{ACCOUNTS}/robot/token", body)).code) == (meta, code)


async def test_a_token_outlives_the_end_of_its_pod_by_a_leeway_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with rbac_server("development", tmp_path) as client:
        await client.post(PODS, pod("p", nodeName="n", terminationGracePeriodSeconds=30))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
        user = client.with_token(await token_of(client, "default", boundObjectRef=bound))
        await client.delete(f"{PODS}/p")
        assert await user.code("/version") == 200
        monkeypatch.setattr("dra_devcluster.apiserver.identity._LEEWAY_SECONDS", -60)
        assert await user.code("/version") == 401


async def test_a_token_ends_with_what_it_is_bound_to(client: Client) -> None:
    for kind, path in (("Pod", f"{PODS}/bound"), ("Node", f"{NODES}/node-1"), ("", f"{ACCOUNTS}/robot")):
        name = path.rpartition("/")[2]
        bound = {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name}} if kind else {}
        robot = client.with_token(await token_of(client, "robot", **bound))
        assert await robot.code("/version") == 200
        await client.delete(path, {"gracePeriodSeconds": 0})
        await robot.until("/version", lambda answer: answer.code == 401)


async def test_reviews_say_whose_a_token_is_and_for_whom(client: Client) -> None:
    token = await token_of(client, "robot", audiences=["me"])
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    good = await client.post(path, {**REVIEW, "spec": {"token": token, "audiences": ["me"]}})
    assert good["status"]["authenticated"] is True
    assert good["status"]["audiences"] == ["me"]
    assert good["status"]["user"]["username"] == "system:serviceaccount:default:robot"
    other = await client.post(path, {**REVIEW, "spec": {"token": token, "audiences": ["you"]}})
    assert 'token audiences ["me"] is invalid for the target audiences ["you"]' in other["status"]["error"]
    nonsense = await client.post(path, {**REVIEW, "spec": {"token": "nonsense"}})
    assert nonsense["status"] == {"user": {}, "error": "invalid bearer token"}
    assert await client.with_token(token).code("/version") == 401, "it is not meant for the API server"


async def test_a_token_ends_with_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with rbac_server("development", tmp_path) as client:
        robot = client.with_token(await token_of(client, "default", expirationSeconds=600))
        assert await robot.code("/version") == 200
        later = time.time() + 601
        monkeypatch.setattr("dra_devcluster.apiserver.identity.time.time", lambda: later)
        assert await robot.code("/version") == 401


async def test_a_token_of_another_server_is_no_token(tmp_path: Path) -> None:
    async with rbac_server("development", tmp_path) as one, rbac_server("development", tmp_path) as other:
        assert await other.with_token(await token_of(one, "default")).code("/version") == 401


async def test_a_forged_token_is_refused() -> None:
    async with DevApiServer(authorization="rbac") as server:
        forged = jwt.encode({"sub": "kubernetes-admin", "iss": ISSUER}, "", "none")
        assert server.tokens.user(f"Bearer {forged}") is None
