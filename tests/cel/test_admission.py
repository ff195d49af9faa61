"""Expressions of admission policies: the same language over other variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from dra_cel import CelError, CompileError, EvaluationError, Program, admission_policies
from dra_cel.basics.types import INT, STRING
from dra_cel.libraries.authorization import Authorizer, Decision, resource_check


def decide(attributes: Mapping[str, str]) -> Decision:
    if attributes["verb"] == "explode":
        return Decision(False, error="webhook down")
    return Decision(attributes.get("resource") == "pods" and attributes.get("namespace") == "prod", "because")


BINDINGS: dict[str, Any] = {
    "object": {"spec": {"replicas": 3, "nodeName": "n1", "ports": [80, 443], "ratio": 0.5}},
    "oldObject": None,
    "params": {"max": 5},
    "namespaceObject": {"metadata": {"labels": {"tier": "prod"}}},
    "request": {
        "userInfo": {"username": "system:node:n1", "groups": ["system:nodes"], "extra": {"node": ["n1"]}},
        "operation": "CREATE",
    },
    "variables": {"limit": 4},
    "authorizer": Authorizer(decide),
    "authorizer.requestResource": resource_check(decide, {"resource": "pods", "namespace": "prod"}),
}


@pytest.mark.parametrize(
    "expression",
    [
        "object.spec.replicas <= params.max && object.spec.ratio < 1.0",
        "oldObject == null",
        "!has(object.status) && object.?status.orValue({}) == {}",
        "request.userInfo.username == 'system:node:' + object.spec.nodeName",
        "'system:nodes' in request.userInfo.groups && request.userInfo.extra['node'][0] == 'n1'",
        "object.spec.ports.all(port, port > 0)",
        "variables.limit == 4",
        "namespaceObject.metadata.labels['tier'] == 'prod'",
        "authorizer.group('').resource('pods').namespace('prod').check('get').allowed()",
        "!authorizer.serviceAccount('a', 'b').path('/healthz').check('get').allowed()",
        "authorizer.requestResource.check('get').reason() == 'because'",
        "authorizer.group('').resource('pods').check('explode').errored()",
    ],
)
def test_policies_evaluate(expression: str) -> None:
    assert Program(expression, admission_policies({"limit": INT})).evaluate(BINDINGS) is True


def test_only_two_authorization_checks_fit_into_the_limit() -> None:
    check = "authorizer.group('').resource('pods').namespace('prod').check('get').allowed()"
    environment = admission_policies()
    assert Program(" && ".join([check] * 2), environment).evaluate(BINDINGS) is True
    with pytest.raises(CelError, match="costs more"):
        Program(" && ".join([check] * 3), environment).evaluate(BINDINGS)


def test_the_result_type_is_part_of_the_environment() -> None:
    assert Program("'no ' + request.operation", admission_policies(result=STRING)).evaluate(BINDINGS) == "no CREATE"
    assert Program("object.spec.ports", admission_policies(result=None)).evaluate(BINDINGS) == [80, 443]
    with pytest.raises(CompileError, match="must evaluate to bool"):
        Program("'text'", admission_policies())


@pytest.mark.parametrize(
    "expression",
    [
        "variables.nosuch == 1",
        "request.nosuch == 1",
        "request.uid == ''",
        "device.driver == ''",
        "namespaceObject.nosuch == 1",
        "namespaceObject.metadata.name == 1",
        "cel.bind(x, 1, x == 1)",
    ],
)
def test_unknown_names_and_wrong_types_are_refused(expression: str) -> None:
    with pytest.raises(CompileError):
        Program(expression, admission_policies())


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("authorizer.path('').check('get').allowed()", "path must not be empty"),
        ("params.max == 5", "no such attribute"),
    ],
)
def test_checks_without_a_path_and_missing_variables_fail(expression: str, complaint: str) -> None:
    given = {name: value for name, value in BINDINGS.items() if name != "params"}
    with pytest.raises(EvaluationError, match=complaint):
        Program(expression, admission_policies()).evaluate(given)


def test_authorizers_are_only_equal_to_themselves() -> None:
    assert Program("authorizer == authorizer", admission_policies()).evaluate(BINDINGS) is True
    assert Program("authorizer.path('/a') == authorizer.path('/a')", admission_policies()).evaluate(BINDINGS) is False


def test_a_value_of_unknown_type_is_no_verdict() -> None:
    with pytest.raises(CompileError, match="must evaluate to bool"):
        Program("object.spec.enabled", admission_policies())


def test_no_pattern_is_looked_for_in_what_is_no_unicode_text() -> None:
    with pytest.raises(EvaluationError, match="not valid Unicode"):
        Program("object.name.matches('a')", admission_policies()).evaluate({"object": {"name": "\ud800"}})
