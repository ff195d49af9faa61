"""An operator whose rights are taken away says so at ``/readyz`` within ten seconds, also if it has nothing to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import aiohttp
import manifest_accounts
import pytest
from authority import write_kubeconfig
from bare_client import Client
from command import running
from dra_api.kueue import GROUP as KUEUE
from dra_kube import Api, Connection, Forbidden, KubeError, Unauthorized, Unreachable
from dra_operator.allocator import Features
from dra_operator.app.control_plane import (
    LOOK_AT_RIGHTS_SECONDS,
    MANIFEST,
    MANIFEST_OF_ADMISSION,
    RULES,
    Right,
    RightsWatch,
    Work,
    needed,
)
from dra_operator.controllers import OwnControllers
from rbac_cases import SERVERS, rbac_server
from waiting import until

BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/dra-operator"
ACCOUNT = "/api/v1/namespaces/dra-system/serviceaccounts/dra-operator"
SEEN_SECONDS = 10.0
BIND = Right("create", "", "pods/binding")


async def kubeconfig_of_the_account(client: Client, folder: Path) -> Path:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await client.post(f"{ACCOUNT}/token", request))["status"]["token"]
    return write_kubeconfig(folder, {"server": client._url, "insecure-skip-tls-verify": True}, {"token": token})


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_binding_that_is_deleted_is_seen_within_ten_seconds_and_so_is_its_return(
    kind: str, tmp_path: Path
) -> None:
    async with rbac_server(kind, tmp_path) as client:
        await manifest_accounts.grant(client)
        config = await kubeconfig_of_the_account(client, tmp_path)
        words = ("dra-operator", "run", "--kubeconfig", str(config), "--metrics-port", "0")
        async with running(words) as command:
            address = (await command.says(r"metrics and probes on (\S+)"))[1]

            async def readiness() -> tuple[int, str]:
                async with aiohttp.ClientSession(address) as http, http.get("/readyz") as answer:
                    return answer.status, await answer.text()

            async def is_ready() -> bool:
                return (await readiness())[0] == 200

            async def names_the_right() -> bool:
                code, text = await readiness()
                return code == 503 and "missing rights: " in text and "ClusterRole dra-operator" in text

            await until("the operator is ready", is_ready)
            binding: dict[str, Any] = await client.get(BINDING)
            await client.call("DELETE", BINDING)
            async with asyncio.timeout(SEEN_SECONDS):
                await until("the lost rights are named", names_the_right)
            await command.says("missing rights: ")
            meta = {"name": binding["metadata"]["name"]}
            await client.post(BINDING.rpartition("/")[0], binding | {"metadata": meta})
            await until("the operator is ready again", is_ready)


class Reviews:
    """What an API server answers: rules, or an error; and what it says of a right that no rule gives."""

    def __init__(self) -> None:
        self.rules: list[dict[str, Any]] = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        self.error: KubeError | None = None
        self.allows: set[tuple[str, str]] = set()
        self.asked = 0

    async def create(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if resource.kind == "SelfSubjectRulesReview":
            return {"status": {"resourceRules": self.rules, "incomplete": True}}
        asked = body["spec"]["resourceAttributes"]
        part = f"/{asked['subresource']}" if asked["subresource"] else ""
        return {"status": {"allowed": (asked["verb"], f"{asked['resource']}{part}") in self.allows}}


def rule(right: Right, **more: Any) -> dict[str, Any]:
    return {"verbs": [right.verb], "apiGroups": [right.group], "resources": [right.resource], **more}


def all_but(*lost: Right) -> list[dict[str, Any]]:
    return [rule(it) for it in needed(WORK) if it not in lost]


WORK = Work(OwnControllers(), Features(), preemption=False)


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


@pytest.fixture
def watch() -> RightsWatch:
    return RightsWatch(cast(Connection, None), lambda: WORK)


async def look(watch: RightsWatch, reviews: Reviews) -> str:
    await watch.look(cast(Api, reviews))
    return "\n".join(watch.troubles())


@pytest.mark.parametrize("lost", list(needed(WORK)), ids=str)
async def test_each_right_that_is_lost_is_named(lost: Right, watch: RightsWatch, reviews: Reviews) -> None:
    assert await look(watch, reviews) == ""
    reviews.rules = all_but(lost)
    assert f"missing rights: {lost}; " in await look(watch, reviews)
    reviews.rules = all_but()
    assert await look(watch, reviews) == ""


@pytest.mark.parametrize("lost", list(needed(WORK)), ids=str)
async def test_a_right_that_was_never_there_counts_if_the_operator_does_not_work_without(
    lost: Right, watch: RightsWatch, reviews: Reviews
) -> None:
    reviews.rules = all_but(lost)
    assert bool(await look(watch, reviews)) is not needed(WORK)[lost].is_optional


async def test_the_role_that_grants_what_is_missing_is_named(reviews: Reviews) -> None:
    component = MANIFEST_OF_ADMISSION.rpartition("/")[0]
    work = WORK._replace(controllers=OwnControllers(admission=True))
    watch, checks = RightsWatch(cast(Connection, None), lambda: work), Right("list", KUEUE, "workloads")
    reviews.rules = [rule(right) for right in needed(work)]
    assert await look(watch, reviews) == ""
    for lost, files in (
        ({checks}, [component]),
        ({BIND}, [MANIFEST]),
        ({BIND, checks}, [MANIFEST, component]),
    ):
        reviews.rules = [rule(right) for right in needed(work) if right not in lost]
        said = await look(watch, reviews)
        assert [file for file in (MANIFEST, component) if file in said] == files


async def test_a_right_that_another_authorizer_gives_is_not_missed(watch: RightsWatch, reviews: Reviews) -> None:
    reviews.rules = all_but(BIND)
    reviews.allows = {("create", "pods/binding")}
    assert await look(watch, reviews) == ""


@pytest.mark.parametrize(
    "given",
    [rule(BIND, resourceNames=["one"]), rule(BIND, apiGroups=["apps"]), rule(BIND, resources=["pods"]), {}],
    ids=["for one name", "in another group", "without the part", "an empty rule"],
)
async def test_a_rule_that_gives_less_does_not_count(
    given: dict[str, Any], watch: RightsWatch, reviews: Reviews
) -> None:
    reviews.rules = [*all_but(BIND), given]
    assert str(BIND) in await look(watch, reviews)


@pytest.mark.parametrize("given", [{"resources": ["*/binding"]}, {"verbs": ["*"]}, {"apiGroups": ["*"]}], ids=str)
async def test_a_rule_with_an_asterisk_counts(given: dict[str, Any], watch: RightsWatch, reviews: Reviews) -> None:
    reviews.rules = [*all_but(BIND), rule(BIND, **given)]
    assert await look(watch, reviews) == ""


async def test_what_is_missing_is_asked_by_name_once_a_minute(watch: RightsWatch, reviews: Reviews) -> None:
    """An operator without any rights would otherwise ask sixty questions every four seconds."""
    reviews.rules = []
    asked = []
    for _ in range(round(120 / LOOK_AT_RIGHTS_SECONDS)):
        before = reviews.asked
        await look(watch, reviews)
        asked.append(reviews.asked - before)
    assert sorted(asked)[-2:] == [1 + len(needed(WORK))] * 2
    assert sorted(asked)[:-2] == [1] * (len(asked) - 2)


async def test_many_lost_rights_make_one_short_line(watch: RightsWatch, reviews: Reviews) -> None:
    await look(watch, reviews)
    reviews.rules = []
    said = await look(watch, reviews)
    assert said.count("\n") == 0
    assert len(said) < 500
    assert "more; the ClusterRole dra-operator" in said


async def test_an_account_that_is_gone_is_said(watch: RightsWatch, reviews: Reviews) -> None:
    reviews.error = Unauthorized(401, "Unauthorized", "no such account")
    assert "ServiceAccount" in await look(watch, reviews)


async def test_while_the_server_does_not_answer_the_last_answer_counts(watch: RightsWatch, reviews: Reviews) -> None:
    reviews.rules = all_but(BIND)
    said = await look(watch, reviews)
    reviews.error = Unreachable("no answer")
    assert await look(watch, reviews) == said


@pytest.mark.parametrize("status", ["Success", ["x"], {"resourceRules": ["x"]}, {"resourceRules": [{"verbs": 3}]}])
async def test_while_the_answers_are_no_reviews_the_last_answer_counts(
    status: object, watch: RightsWatch, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that runs beside the controllers ends with the first error: the operator must not stop for a proxy."""
    reviews.rules = all_but(BIND)
    said = await look(watch, reviews)

    async def create(*_: object) -> dict[str, Any]:
        return {"kind": "SelfSubjectRulesReview", "status": status}

    monkeypatch.setattr(reviews, "create", create)
    assert await look(watch, reviews) == said != ""


async def test_where_nobody_may_ask_nothing_is_said(watch: RightsWatch, reviews: Reviews) -> None:
    reviews.error = Forbidden(403, "Forbidden", "reviews are not for you")
    assert await look(watch, reviews) == ""


def test_rights_of_controllers_that_are_not_ours_are_not_needed() -> None:
    ours = Work(OwnControllers.of(["placement"]), Features(), preemption=False)
    assert Right("delete", "", "pods") not in needed(ours)
    assert Right("delete", "", "pods") in needed(ours._replace(preemption=True))


def test_two_looks_fit_into_ten_seconds() -> None:
    assert 2 * LOOK_AT_RIGHTS_SECONDS < SEEN_SECONDS
    assert all(list(one.rights()) for one in RULES)
