"""Objects that the server refuses, with the field and the reason; a real one refuses them for the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bare_client import CONFIG_MAPS, PATCH, PODS, Client, Json, causes, config_map, pod
from rbac_cases import SERVERS, rbac_server

INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
UNSUPPORTED = "FieldValueNotSupported"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS, CRON_JOBS = (f"/apis/batch/v1/namespaces/default/{kind}" for kind in ("jobs", "cronjobs"))
SETS = "/apis/apps/v1/namespaces/default/replicasets"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
Cases = list[tuple[str, Json, list[tuple[str, str]]]]


@pytest.fixture(params=SERVERS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server(request.param, tmp_path) as client:
        yield client


async def refused(client: Client, cases: Cases) -> None:
    """Each object is refused for these reasons."""
    for path, body, faults in cases:
        answer = await client.call("POST", path, body, dryRun="All")
        assert (body, answer.code, causes(answer.json)) == (body, 422, faults), answer.json


def owner(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"u-{name}", "controller": True}


CONTAINER = {"name": "main", "image": "example.com/app:1"}
MAIN = "spec.containers[0]"
TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def spec_of(**change: Any) -> Json:
    return pod("p", schedulerName="none", **change)


def with_terms(*terms: Json) -> Json:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return spec_of(affinity={"nodeAffinity": wanted})


def container(**change: Any) -> Json:
    return spec_of(containers=[{**CONTAINER, **change}])


async def test_pods_that_cannot_be(both: Client) -> None:
    two = {"key": "a", "operator": "Gt", "values": ["1", "2"]}
    cases: Cases = [
        (
            CONFIG_MAPS,
            config_map("c", ownerReferences=[owner("a"), owner("b")]),
            [("metadata.ownerReferences", INVALID)],
        ),
        (PODS, container(image=" app:1"), [(f"{MAIN}.image", INVALID)]),
        (PODS, container(ports=[{"containerPort": 70000}]), [(f"{MAIN}.ports[0].containerPort", INVALID)]),
        (PODS, container(ports=[{"containerPort": 1, "protocol": "X"}]), [(f"{MAIN}.ports[0].protocol", UNSUPPORTED)]),
        (
            PODS,
            container(livenessProbe={"httpGet": {"port": 1, "scheme": "ftp"}}),
            [(f"{MAIN}.livenessProbe.httpGet.scheme", UNSUPPORTED)],
        ),
        (PODS, spec_of(tolerations=[{"key": "a b", "operator": "Exists"}]), [("spec.tolerations[0].key", INVALID)]),
        (
            PODS,
            spec_of(tolerations=[{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]),
            [("spec.tolerations[0].effect", INVALID)],
        ),
        (PODS, spec_of(tolerations=[{"key": "a", "operator": "In"}]), [("spec.tolerations[0].operator", UNSUPPORTED)]),
        (
            PODS,
            spec_of(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
            [("spec.tolerations[0].operator", INVALID)],
        ),
        (PODS, with_terms(), [(TERMS, REQUIRED)]),
        (PODS, with_terms({"matchExpressions": [two]}), [(f"{TERMS}[0].matchExpressions[0].values", REQUIRED)]),
    ]
    await refused(both, cases)


def job_spec(**change: Any) -> Json:
    return {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}, **change}


def job(**change: Any) -> Json:
    return {"metadata": {"name": "j"}, "spec": job_spec(**change)}


def replica_set(*, policy: str = "Always", label: str = "x") -> Json:
    template = {"metadata": {"labels": {"app": label}}, "spec": {"restartPolicy": policy, "containers": [CONTAINER]}}
    return {"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}}


def failures(*rules: Json) -> Json:
    return {"rules": list(rules)}


async def test_workloads_that_cannot_be(both: Client) -> None:
    codes = {"action": "FailJob", "onExitCodes": {"operator": "Is", "values": [1]}}
    odd = {"action": "Sigh", "onExitCodes": {"operator": "In", "values": [1]}}
    cases: Cases = [
        (SETS, replica_set(label="y"), [("spec.template.metadata.labels", INVALID)]),
        (SETS, replica_set(policy="Never"), [("spec.template.spec.restartPolicy", UNSUPPORTED)]),
        (JOBS, job(podReplacementPolicy="Soon"), [("spec.podReplacementPolicy", UNSUPPORTED)]),
        (JOBS, job(podFailurePolicy=failures(odd)), [("spec.podFailurePolicy.rules[0].action", UNSUPPORTED)]),
        (
            JOBS,
            job(podFailurePolicy=failures(codes)),
            [("spec.podFailurePolicy.rules[0].onExitCodes.operator", UNSUPPORTED)],
        ),
        (
            CRON_JOBS,
            {"metadata": {"name": "c" * 53}, "spec": {"schedule": "@daily", "jobTemplate": {"spec": job_spec()}}},
            [("metadata.name", INVALID)],
        ),
        (
            CRON_JOBS,
            {"metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": job_spec()}}},
            [("spec.schedule", REQUIRED)],
        ),
    ]
    await refused(both, cases)


async def test_what_of_a_workload_stays(both: Client) -> None:
    await both.post(SETS, replica_set())
    await both.post(JOBS, job(suspend=True))
    other = {"matchLabels": {"app": "y"}}
    moved = {"selector": other, "template": {"metadata": {"labels": {"app": "y"}}}}
    for path, change, faults in (
        (f"{SETS}/r", moved, [("spec.selector", INVALID)]),
        (f"{JOBS}/j", {"completions": 7}, [("spec.completions", INVALID)]),
        (f"{JOBS}/j", {"completionMode": "Indexed", "completions": 1}, [("spec.completionMode", INVALID)]),
    ):
        answer = await both.call("PATCH", path, {"spec": change}, kind=PATCH["merge"])
        assert (change, answer.code, causes(answer.json)) == (change, 422, faults), answer.json


def binding(role: Json | None = None, **subject: str) -> Json:
    known = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "u", **subject}]
    return {"metadata": {"name": "b"}, "roleRef": {**known, **(role or {})}, "subjects": subjects}


async def test_bindings_that_cannot_be(both: Client) -> None:
    cases: Cases = [
        (BINDINGS, binding({"apiGroup": "x"}), [("roleRef.apiGroup", UNSUPPORTED)]),
        (BINDINGS, binding({"name": ""}), [("roleRef.name", REQUIRED)]),
        (BINDINGS, binding(apiGroup="x"), [("subjects[0].apiGroup", UNSUPPORTED)]),
        (BINDINGS, binding(kind="ServiceAccount", namespace="n"), [("subjects[0].apiGroup", UNSUPPORTED)]),
        (
            BINDINGS,
            binding(kind="ServiceAccount", namespace="n", apiGroup="", name="A"),
            [("subjects[0].name", INVALID)],
        ),
    ]
    await refused(both, cases)
    await both.post(BINDINGS, binding())
    answer = await both.call("PATCH", f"{BINDINGS}/b", {"roleRef": {"name": "other"}}, kind=PATCH["merge"])
    assert (answer.code, causes(answer.json)) == (422, [("roleRef", INVALID)])


def policy(**change: Any) -> Json:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}], **change}
    return {"metadata": {"name": "p"}, "spec": spec}


def policy_binding(**change: Any) -> Json:
    return {"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"], **change}}


async def test_policies_that_cannot_be(both: Client) -> None:
    rules, bindings = f"{POLICIES}/validatingadmissionpolicies", f"{POLICIES}/validatingadmissionpolicybindings"
    chosen = {"name": "a", "selector": {}, "parameterNotFoundAction": "Deny"}
    cases: Cases = [
        (rules, policy(matchConstraints=None), [("spec.matchConstraints", REQUIRED)]),
        (rules, policy(validations=[{"message": "m"}]), [("spec.validations[0].expression", REQUIRED)]),
        (bindings, policy_binding(policyName=""), [("spec.policyName", REQUIRED)]),
        (
            bindings,
            policy_binding(paramRef=chosen),
            [("spec.paramRef.name", FORBIDDEN), ("spec.paramRef.selector", FORBIDDEN)],
        ),
    ]
    await refused(both, cases)


def definition(*versions: Json, scope: str = "Namespaced") -> Json:
    names = {"plural": "toys", "singular": "toy", "kind": "Toy", "listKind": "ToyList"}
    group = {"group": "example.com", "scope": scope, "names": names, "versions": list(versions)}
    return {"metadata": {"name": "toys.example.com"}, "spec": group}


def version(name: str, kind: str = "object", *, storage: bool = True) -> Json:
    schema = {"openAPIV3Schema": {"type": kind}}
    return {"name": name, "served": True, "storage": storage, "schema": schema}


async def test_definitions_that_cannot_be(both: Client) -> None:
    twice = definition(version("v1"), version("v1", storage=False))
    alike = definition(version("v1", "string"), version("v2", "string", storage=False))
    other = definition(version("v1"), version("v2", "string", storage=False))
    cases: Cases = [
        (DEFINITIONS, definition(version("v1", "string")), [("spec.validation.openAPIV3Schema.type", INVALID)]),
        (DEFINITIONS, alike, [("spec.validation.openAPIV3Schema.type", INVALID)]),
        (DEFINITIONS, other, [("spec.versions[1].schema.openAPIV3Schema.type", INVALID)]),
        (DEFINITIONS, twice, [("spec.versions", INVALID)]),
    ]
    await refused(both, cases)
