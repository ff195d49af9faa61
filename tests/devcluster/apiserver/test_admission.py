"""Admission policies decide as those of a real server do: the same policies and requests, on both if there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bare_client import CONFIG_MAPS, NAMESPACES, PATCH, Answer, Client, config_map
from rbac_cases import SERVERS, rbac_server
from waiting import until

Json = dict[str, Any]
API = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{API}/validatingadmissionpolicies", f"{API}/validatingadmissionpolicybindings"
NO = [{"expression": "false", "message": "never"}]
PARAM_KIND = {"apiVersion": "v1", "kind": "ConfigMap"}


class Case(NamedTuple):
    """A policy about config maps with the label ``case``, and what it answers to the creation of one.

    ``said`` is what follows "denied request: "; None if it is not denied.
    """

    spec: Json
    said: str | None
    binding: Json | None = None
    code: int = 422
    reason: str = "Invalid"
    warning: str = ""


def checks(*expressions: str, **more: Any) -> Json:
    return {"validations": [{"expression": expression} for expression in expressions], **more}


CASES = {
    "allowed": Case(checks("object.data.a == 'b'"), None),
    "expression": Case(checks("object.data.a ==  'c' "), "failed expression: object.data.a ==  'c'"),
    "message": Case({"validations": NO}, "never"),
    "reason": Case({"validations": [{**NO[0], "reason": "Forbidden"}]}, "never", code=403, reason="Forbidden"),
    "computed": Case({"validations": [{**NO[0], "messageExpression": "'no ' + object.metadata.name"}]}, "no computed"),
    "two-lines": Case({"validations": [{**NO[0], "messageExpression": "'a\\nb'"}]}, "never"),
    "failing-message": Case({"validations": [{**NO[0], "messageExpression": "string(object.nothing)"}]}, "never"),
    "first": Case({"validations": [{"expression": "true"}, *NO, {"expression": "1 == 2"}]}, "never"),
    "error": Case(checks("object.nothing == 1"),
                  "expression 'object.nothing == 1' resulted in error: no such key: nothing"),
    "ignored-error": Case(checks("object.nothing == 1", failurePolicy="Ignore"), None),
    "ignored-and-false": Case(checks("object.nothing == 1", "1 == 2", failurePolicy="Ignore"),
                              "failed expression: 1 == 2"),
    "condition": Case({"validations": NO, "matchConditions": [{"name": "c", "expression": "object.data.a == 'x'"}]},
                      None),
    "conditions": Case({"validations": NO, "matchConditions": [{"name": "c", "expression": "object.data.a == 'b'"}]},
                       "never"),
    "condition-error": Case({"validations": NO, "matchConditions": [{"name": "c", "expression": "object.x == 1"}]},
                            "expression 'object.x == 1' resulted in error: no such key: x"),
    "false-wins": Case({"validations": NO, "matchConditions": [
        {"name": "c", "expression": "object.x == 1"}, {"name": "d", "expression": "false"}]}, None),
    "variables": Case(checks("variables.long == 'bb'", variables=[
        {"name": "short", "expression": "object.data.a"},
        {"name": "long", "expression": "variables.short + variables.short"}]), None),
    "unused-variable": Case(checks("true", variables=[{"name": "bad", "expression": "object.x"}]), None),
    "user": Case(checks("request.userInfo.username == 'jane' && 'system:authenticated' in request.userInfo.groups"),
                 None),
    "request": Case(checks(
        "request.operation == 'CREATE' && request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps'"
        " && request.namespace == 'default' && request.name == 'request' && request.dryRun && oldObject == null"
        " && !has(request.subResource)"), None),
    "namespace": Case(checks("namespaceObject.metadata.name == 'default' && namespaceObject.status.phase == 'Active'"
                             " && namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'default'"),
                      None),
    "authorizer": Case(checks(
        "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()"), None),
    "authorizer-no": Case(checks(
        "authorizer.serviceAccount('default', 'default').group('').resource('secrets').check('get').allowed()",
    ), "failed expression: authorizer.serviceAccount('default', 'default').group('').resource('secrets').check('get')"
       ".allowed()"),
    "request-resource": Case(checks("authorizer.requestResource.check('create').allowed()"), None),
    "warning": Case({"validations": NO}, None, {"validationActions": ["Warn"]}, warning="never"),
    "audited": Case({"validations": NO}, None, {"validationActions": ["Audit"]}),
    "params": Case(checks("object.data.a == params.data.wanted", paramKind=PARAM_KIND),
                   "failed expression: object.data.a == params.data.wanted",
                   {"paramRef": {"name": "params", "parameterNotFoundAction": "Deny"}}),
    "no-params": Case(checks("true", paramKind=PARAM_KIND),
                      "failed to configure binding: no params found for policy binding with `Deny` "
                      "parameterNotFoundAction", {"paramRef": {"name": "none", "parameterNotFoundAction": "Deny"}}),
    "no-params-allowed": Case(checks("false", paramKind=PARAM_KIND), None,
                              {"paramRef": {"name": "none", "parameterNotFoundAction": "Allow"}}),
    "each-param": Case(checks("params.data.wanted == 'c'", paramKind=PARAM_KIND),
                       "failed expression: params.data.wanted == 'c'",
                       {"paramRef": {"selector": {"matchLabels": {"for": "params"}}, "namespace": "default",
                                     "parameterNotFoundAction": "Deny"}}),
    "other-namespace": Case({"validations": NO}, None, {"matchResources": {"namespaceSelector": {"matchLabels": {
        "kubernetes.io/metadata.name": "other"}}}}),
    "own-namespace": Case({"validations": NO}, "never", {"matchResources": {"namespaceSelector": {"matchLabels": {
        "kubernetes.io/metadata.name": "default"}}}}),
    "excluded": Case({"validations": NO}, None, {"matchResources": {"excludeResourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["config*", "configmaps"]}]}}),
    "by-name": Case({"validations": NO}, None, {"matchResources": {"resourceRules": [{
        "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"], "resourceNames": ["x"]}]}}),
    "last": Case({"validations": NO}, "never"),
}  # fmt: skip


def rule(*operations: str) -> Json:
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": list(operations), "resources": ["configmaps"]}


def policy(name: str, spec: Json, *operations: str) -> Json:
    constraints = {"resourceRules": [rule(*(operations or ("CREATE",)))],
                   "objectSelector": {"matchLabels": {"case": name}}}  # fmt: skip
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": constraints, **spec},
    }


def binding(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], **spec},
    }


async def try_case(client: Client, name: str) -> Answer:
    obj = config_map(name, labels={"case": name})
    return await client.call("POST", CONFIG_MAPS, obj, dryRun="All")


async def in_force(client: Client, name: str) -> None:
    """Wait until a policy that denies is in force: a real server hears of policies by watches."""

    async def denied() -> bool:
        return (await try_case(client, name)).code == 422

    await until(f"the policy {name} is in force", denied)


@pytest.fixture(params=SERVERS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server(request.param, tmp_path) as client:
        yield client


async def test_policies_decide_as_on_a_real_server(client: Client) -> None:
    await client.post(CONFIG_MAPS, {**config_map("params", labels={"for": "params"}), "data": {"wanted": "c"}})
    await client.post(CONFIG_MAPS, {**config_map("more-params", labels={"for": "params"}), "data": {"wanted": "d"}})
    for name, case in CASES.items():
        await client.post(POLICIES, policy(name, case.spec))
        await client.post(BINDINGS, binding(name, **(case.binding or {})))
    await in_force(client, "last")
    jane = client.impersonating("jane", "system:masters", "system:authenticated")
    for name, case in CASES.items():
        answer = await try_case(jane, name)
        if case.said is None:
            assert answer.code == 201, (name, answer.body)
            warnings = answer.headers.getall("Warning", [])
            said = f"Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{name}': {case.warning}"
            assert warnings == ([f'299 - "{said}"'] if case.warning else []), name
        else:
            why = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {case.said}"
            assert answer.message == f'configmaps "{name}" is forbidden: {why}'
            assert (answer.code, answer.reason) == (case.code, case.reason)


async def test_updates_and_deletions_show_what_was_there(client: Client) -> None:
    grown = (
        "request.operation == 'DELETE' ? oldObject.data.a == 'z' && object == null : object.data.a > oldObject.data.a"
    )
    await client.post(POLICIES, policy("grow", checks(grown), "UPDATE", "DELETE"))
    await client.post(BINDINGS, binding("grow"))
    await client.post(POLICIES, policy("last", {"validations": NO}))
    await client.post(BINDINGS, binding("last"))
    await in_force(client, "last")
    path = f"{CONFIG_MAPS}/c"
    await client.post(CONFIG_MAPS, config_map("c", labels={"case": "grow"}))
    for value, code in (("a", 422), ("c", 200), ("b", 422)):
        patch = {"data": {"a": value}}
        assert (await client.call("PATCH", path, patch, kind=PATCH["merge"])).code == code
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "a"}}
    options = {"kind": PATCH["apply"], "fieldManager": "t", "force": "true"}
    assert (await client.call("PATCH", path, applied, **options)).code == 422
    assert (await client.call("DELETE", path)).code == 422
    assert (await client.call("DELETE", CONFIG_MAPS, labelSelector="case=grow")).code == 422
    # Taking the label away is an update of an object that had it.
    assert (await client.call("PATCH", path, {"metadata": {"labels": None}}, kind=PATCH["merge"])).code == 422
    await client.patch(path, {"data": {"a": "z"}})
    await client.delete(path)


async def test_a_policy_that_goes_stops_denying(client: Client) -> None:
    await client.post(POLICIES, policy("gone", {"validations": NO}))
    assert (await try_case(client, "gone")).code == 201, "without a binding it has no effect"
    await client.post(BINDINGS, binding("gone"))
    await in_force(client, "gone")
    await client.delete(f"{BINDINGS}/gone")

    async def allowed() -> bool:
        return (await try_case(client, "gone")).code == 201

    await until("nothing is denied", allowed)


WRONG: list[tuple[str, Json, str]] = [
    (POLICIES, policy("p", {"validations": []}),
     'ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: [spec.validations: Required value: '
     "validations or auditAnnotations must contain at least one item, spec.auditAnnotations: Required value: "
     "validations or auditAnnotations must contain at least one item]"),
    (POLICIES, policy("p", {"validations": NO, "matchConstraints": {}}),
     'ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.matchConstraints.resourceRules: '
     "Required value"),
    (BINDINGS, binding("p", validationActions=[]),
     'ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "p" is invalid: spec.validationActions: Required '
     "value: at least one validation action is required"),
    (BINDINGS, binding("p", validationActions=["Deny", "Warn"]),
     'ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "p" is invalid: spec.validationActions: Invalid '
     'value: ["Deny","Warn"]: must not contain both Deny and Warn (repeating the same validation failure information '
     "in the API response and headers serves no purpose)"),
    (BINDINGS, binding("p", paramRef={"name": "a"}),
     'ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "p" is invalid: '
     "spec.paramRef.parameterNotFoundAction: Required value"),
    (BINDINGS, binding("p", paramRef={"parameterNotFoundAction": "Deny"}),
     'ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "p" is invalid: spec.paramRef: Required value: one '
     "of name or selector must be specified"),
]  # fmt: skip
UNCOMPILED: list[tuple[str, Json]] = [
    ("spec.validations[0].expression", checks("object.a ==")),
    ("spec.validations[0].expression", checks("'text'")),
    ("spec.validations[0].expression", checks("variables.none == 1")),
    ("spec.validations[0].messageExpression", {"validations": [{**NO[0], "messageExpression": "1"}]}),
    ("spec.variables[0].expression", checks("true", variables=[{"name": "v", "expression": "nothing"}])),
    ("spec.matchConditions[0].expression", {"validations": NO, "matchConditions": [{"name": "c", "expression": "1"}]}),
]


async def test_malformed_policies_are_refused(client: Client) -> None:
    for path, obj, message in WRONG:
        answer = await client.call("POST", path, obj)
        assert (answer.code, answer.message) == (422, message)
    for field, spec in UNCOMPILED:
        answer = await client.call("POST", POLICIES, policy("p", spec))
        assert (answer.code, answer.json["details"]["causes"][0]["field"]) == (422, field), answer.body
    assert (await client.call("GET", f"{POLICIES}/p")).code == 404


async def test_what_is_left_out_of_a_policy_is_filled_in(client: Client) -> None:
    made = await client.post(POLICIES, policy("p", {"validations": NO}))
    assert made["spec"]["failurePolicy"] == "Fail"
    constraints = made["spec"]["matchConstraints"]
    assert (constraints["matchPolicy"], constraints["namespaceSelector"]) == ("Equivalent", {})
    assert constraints["resourceRules"][0]["scope"] == "*"


async def test_the_servers_own_controllers_are_not_judged(tmp_path: Path) -> None:
    async with rbac_server("development", tmp_path) as client:
        everything = {"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"],
                                         "resources": ["*", "*/*"]}]}  # fmt: skip
        await client.post(POLICIES, policy("all", {"validations": NO, "matchConstraints": everything}))
        await client.post(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late"}})
        await client.post(BINDINGS, binding("all"))
        assert (await client.call("POST", CONFIG_MAPS, config_map("c"))).code == 422
        await client.until("/api/v1/namespaces/late/serviceaccounts/default", lambda answer: answer.code == 200)
        await client.delete(f"{BINDINGS}/all")  # a policy cannot keep itself from being removed
        await client.post(CONFIG_MAPS, config_map("c"))


async def test_bindings_and_variables_that_cannot_be_used_deny(tmp_path: Path) -> None:
    cases: dict[str, tuple[Json, Json, str]] = {
        "no-kind": (
            checks("true", paramKind={"apiVersion": "example.com/v1", "kind": "Toy"}),
            {"paramRef": {"name": "x", "parameterNotFoundAction": "Allow"}},
            "failed to configure binding: paramKind kind `example.com/v1, Kind=Toy` not known",
        ),
        "wide": (
            checks("true", paramKind={"apiVersion": "v1", "kind": "Node"}),
            {"paramRef": {"name": "x", "namespace": "default", "parameterNotFoundAction": "Allow"}},
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
        ),
        "variable": (
            checks("variables.v == 1", variables=[{"name": "v", "expression": "object.nothing"}]),
            {},
            'composited variable "v" fails',
        ),
    }
    async with rbac_server("development", tmp_path) as client:
        for name, (spec, bound, _) in cases.items():
            await client.post(POLICIES, policy(name, spec))
            await client.post(BINDINGS, binding(name, **bound))
        for name, (_, _, said) in cases.items():
            answer = await try_case(client, name)
            assert (name, answer.code, said in answer.message) == (name, 422, True), answer.body


async def test_policies_about_what_is_in_no_namespace(tmp_path: Path) -> None:
    """A namespace is chosen by its own labels, and anything else of the whole cluster by no selector of namespaces."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["namespaces", "nodes"]}]
    chosen = {"resourceRules": rules, "namespaceSelector": {"matchLabels": {"watched": "yes"}}}
    async with rbac_server("development", tmp_path) as client:
        await client.post(POLICIES, policy("all", {"validations": NO, "matchConstraints": chosen}))
        await client.post(BINDINGS, binding("all"))
        for path, labels, code in (
            (NAMESPACES, {}, 201),
            (NAMESPACES, {"watched": "yes"}, 422),
            ("/api/v1/nodes", {}, 422),
        ):
            answer = await client.call("POST", path, {"metadata": {"name": "n", "labels": labels}}, dryRun="All")
            assert (path, labels, answer.code) == (path, labels, code), answer.body
        params = {"paramRef": {"name": "x", "parameterNotFoundAction": "Allow"}}
        with_params = {"validations": NO, "matchConstraints": {"resourceRules": rules}, "paramKind": PARAM_KIND}
        await client.delete(f"{BINDINGS}/all")
        await client.post(POLICIES, policy("params", with_params))
        await client.post(BINDINGS, binding("params", **params))
        answer = await client.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}}, dryRun="All")
        assert "cannot use namespaced paramRef in policy binding that matches cluster-scoped" in answer.message


async def test_a_policy_that_is_too_expensive_denies_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dra_devcluster.apiserver.admission._POLICY_COST", 3)
    async with rbac_server("development", tmp_path) as client:
        await client.post(POLICIES, policy("dear", checks("object.data.a == 'b'", "object.data.a == 'b'", "1 == 2")))
        await client.post(BINDINGS, binding("dear"))
        answer = await try_case(client, "dear")
    assert answer.message.count("denied request") == 1
    assert answer.message.endswith("running out of cost budget, no further validation rules will be run")
