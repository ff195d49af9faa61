"""Validating admission policies: expressions in CEL that decide whether a write is accepted.

::

    policies = Policies(registry)
    policies.check(request)       # raises the refusal that the first policy asks for

A policy and its bindings say which requests they are about: resources, operations, names, and labels of object and
namespace. A policy without a binding has no effect. Policies are compiled once, and again after a change of one of
them. An expression that does not compile, or fails, is treated as ``failurePolicy`` says: the request is denied
(``Fail``), or the expression has no say (``Ignore``). Variables are evaluated when an expression asks for them, at most
once.

Webhooks and mutating policies have no effect. Audit annotations are accepted, but there is no audit log to hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from dra_api.cache import Cache
from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.selectors import Selector
from dra_cel import CelError, EvaluationError, Program, admission_policies
from dra_cel.basics.types import BOOL, DYN, STRING, Type
from dra_cel.libraries.authorization import Authorizer, Decision, resource_check

from dra_devcluster.apiserver.errors import Json, StatusError, forbidden
from dra_devcluster.apiserver.metadata import to_served
from dra_devcluster.apiserver.rbac import Attributes, User
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection
from dra_devcluster.apiserver.structure import Resource

Operation = Literal["CREATE", "UPDATE", "DELETE"]
GroupVersionKind = tuple[str, str, str]
_CODES = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """``obj`` and ``old`` are in the stored shape; of a deletion only ``old`` is there, of a creation only ``obj``.

    ``posted`` is the kind (group, version, kind) of a body that is not the object itself, as of an Eviction.
    """

    operation: Operation
    resource: Resource
    subresource: str
    namespace: str
    name: str
    user: User
    obj: Json | None = None
    old: Json | None = None
    posted: GroupVersionKind | None = None
    dry_run: bool = False
    generated: bool = False

    def objects_as(self, resource: Resource) -> tuple[Json | None, Json | None]:
        if self.posted is not None:
            return self.obj, None
        new, old = (None if obj is None else to_served(resource, obj) for obj in (self.obj, self.old))
        return new, old

    def described(self, resource: Resource) -> Json:
        """The variable ``request``, for a policy that knows the object in the version of ``resource``."""
        described: Json = {
            "operation": self.operation,
            "userInfo": self.user.info,
            "dryRun": self.dry_run,
            "options": {},
            "kind": self._kind(resource),
            "requestKind": self._kind(self.resource),
            "resource": _resource(resource),
            "requestResource": _resource(self.resource),
            "name": "" if self.generated else self.name,
            "namespace": self.namespace,
        }
        if self.subresource:
            described |= {"subResource": self.subresource, "requestSubResource": self.subresource}
        return {key: value for key, value in described.items() if value not in ("", None)}

    def _kind(self, resource: Resource) -> Json:
        group, version, kind = self.posted or (resource.group, resource.version, resource.kind)
        return {"group": group, "version": version, "kind": kind}

    def refusal(self, message: str, reason: str) -> StatusError:
        error = forbidden(self.resource.group, self.resource.plural, self.name, message, [{"message": message}])
        return StatusError(_CODES.get(reason, 422), reason, error.message, error.details)


def _resource(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


_POLICY_COST = 10_000_000
"""Cost of all expressions of one policy for one request."""
_OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"
_MESSAGE_BYTES = 5 * 1024
_KNOWN_PROGRAM_BYTES = 16 << 20
"""Limit of all remembered expressions. The policies of the manifests have some 80: 3 MB."""
_ERROR_BYTES = 4096
"""Of an expression that does not compile, beside its text."""


class Denial(NamedTuple):
    """Why a policy denies a request, and the reason of the Status."""

    message: str
    reason: str = "Invalid"


_Compiled = Program | CelError
_programs: Final[Cache[tuple[str, object, object], _Compiled]] = Cache(
    _KNOWN_PROGRAM_BYTES,
    lambda key, known: known.memory if isinstance(known, Program) else _ERROR_BYTES + 8 * len(key[0]),
)


def _compiled(text: str, types: Mapping[str, Type], result: Type | None) -> _Compiled:
    """Return the program, or why there is none.

    After a change of one policy all of them are compiled, at validation and for the next request. Nearly all of their
    expressions are as before, and one takes milliseconds.
    """
    key = text, tuple(types.items()), result
    known = _programs.get(key)
    if known is not None:
        return known
    try:
        return _programs.put(key, Program(text, admission_policies(types, result=result)))
    except CelError as error:
        return _programs.put(key, error.with_traceback(None))  # or it would hold what compilation held


@dataclass(frozen=True, slots=True)
class _Expression:
    """An expression where it stands, and its program, or why it has none."""

    field: str
    text: str
    program: _Compiled

    @classmethod
    def of(cls, field: str, text: str, types: Mapping[str, Type], result: Type | None = BOOL) -> _Expression:
        return cls(field, text, _compiled(text, types, result))

    @property
    def type(self) -> Type:
        return DYN if isinstance(self.program, CelError) else self.program.output_type


class _Validation(NamedTuple):
    expression: _Expression
    message: str
    message_expression: _Expression | None
    reason: str


class _Run:
    """One evaluation of a policy: its values, and what is left of the budget."""

    def __init__(self, values: Mapping[str, Any], variables: Mapping[str, _Expression]) -> None:
        self.left = _POLICY_COST
        self._values = {**values, "variables": _Variables(variables, self)}

    def evaluate(self, expression: _Expression) -> Any:
        """Raises CelError, also when the budget is spent."""
        if isinstance(expression.program, CelError):
            raise expression.program.with_traceback(None)  # it is raised for each request
        value, cost = expression.program.trace(self._values)
        self.left -= cost
        if self.left < 0:
            raise EvaluationError("cost-limit", _OUT_OF_BUDGET)
        if isinstance(value, EvaluationError):
            raise EvaluationError(value.kind, f"expression '{expression.text}' resulted in error: {value}")
        return value


class _Variables(dict[str, Any]):
    """The values of variables, each computed at its first use."""

    def __init__(self, expressions: Mapping[str, _Expression], run: _Run) -> None:
        super().__init__()
        self._expressions, self._run = expressions, run

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self and key in self._expressions:
            try:
                self[key] = self._run.evaluate(self._expressions[key])
            except CelError as error:
                raise EvaluationError(error.kind, f'composited variable "{key}" fails: {error}') from error
        return super().get(key, default)


class Policy:
    def __init__(self, obj: Json) -> None:
        self.name: str = obj["metadata"].get("name", "")
        self.spec: Json = obj.get("spec") or {}
        self.fails = self.spec.get("failurePolicy", "Fail") == "Fail"
        types: dict[str, Type] = {}
        self._variables: dict[str, _Expression] = {}
        for field, variable in self._entries("variables"):
            expression = _Expression.of(f"{field}.expression", variable["expression"], types, None)
            types[variable["name"]] = expression.type
            self._variables[variable["name"]] = expression
        self._conditions = [
            _Expression.of(f"{field}.expression", condition["expression"], {})
            for field, condition in self._entries("matchConditions")
        ]
        self._validations = [self._validation(*entry, types) for entry in self._entries("validations")]

    def _entries(self, part: str) -> Iterator[tuple[str, Json]]:
        return ((f"spec.{part}[{index}]", entry) for index, entry in enumerate(self.spec.get(part) or ()))

    def _validation(self, field: str, entry: Json, types: Mapping[str, Type]) -> _Validation:
        said = entry.get("messageExpression")
        return _Validation(
            _Expression.of(f"{field}.expression", entry["expression"], types),
            (entry.get("message") or "").strip(),
            _Expression.of(f"{field}.messageExpression", said, types, STRING) if said else None,
            entry.get("reason") or "Invalid",
        )

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        """Field, expression and complaint for each expression that is not acceptable."""
        messages = [entry.message_expression for entry in self._validations if entry.message_expression]
        checks = [entry.expression for entry in self._validations]
        for expression in [*self._conditions, *self._variables.values(), *checks, *messages]:
            if isinstance(expression.program, CelError):
                yield expression.field, expression.text, f"compilation failed: {expression.program}"

    def denials(self, values: Mapping[str, Any]) -> list[Denial]:
        """What the policy objects to; ``values`` are all variables but ``variables``."""
        run, found = _Run(values, self._variables), list[Denial]()
        try:
            if not self._applies(run):
                return []
        except CelError as error:
            return self._failure(error)
        for validation in self._validations:
            try:
                if run.evaluate(validation.expression) is not True:
                    found.append(Denial(_message(validation, run), validation.reason))
            except CelError as error:
                found += self._failure(error)
            if run.left < 0:
                break
        return found

    def _failure(self, error: CelError) -> list[Denial]:
        return [Denial(str(error))] if self.fails else []

    def _applies(self, run: _Run) -> bool:
        """Whether all match conditions hold. One that is false wins over one that fails. Raises CelError."""
        failure = None
        for condition in self._conditions:
            try:
                if run.evaluate(condition) is not True:
                    return False
            except CelError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return True


def _message(validation: _Validation, run: _Run) -> str:
    """From the expression for it if that gives one line of text, else from the policy, else the failed expression."""
    text = ""
    if validation.message_expression is not None:
        try:
            text = str(run.evaluate(validation.message_expression)).strip()
        except CelError:
            text = ""
    if "\n" in text or len(text.encode()) > _MESSAGE_BYTES:
        text = ""
    return text or validation.message or f"failed expression: {validation.expression.text.strip()}"


_NAME_LABEL = "kubernetes.io/metadata.name"


def matched(wanted: Json, request: AdmissionRequest, registry: Registry) -> Resource | None:
    """The resource, in the version that a rule names, as which the request is judged; None if it is not matched.

    ``wanted`` is a MatchResources. With the policy ``Equivalent`` a rule for one version covers all of them.
    """
    if not _labels_match(wanted, request, registry):
        return None
    equivalent = wanted.get("matchPolicy", "Equivalent") == "Equivalent"
    versions = [request.resource, *(_others(request.resource, registry) if equivalent else ())]
    if _by_rules(wanted.get("excludeResourceRules") or (), request, versions):
        return None
    rules = wanted.get("resourceRules")
    return _by_rules(rules, request, versions) if rules else request.resource


def _others(resource: Resource, registry: Registry) -> Iterable[Resource]:
    place = (resource.group, resource.plural)
    return (
        other
        for other in registry.structure.resources()
        if (other.group, other.plural) == place and other.version != resource.version
    )


def _by_rules(rules: Iterable[Json], request: AdmissionRequest, versions: Iterable[Resource]) -> Resource | None:
    return next((version for version in versions for rule in rules if _is_about(rule, request, version)), None)


def _is_about(rule: Json, request: AdmissionRequest, resource: Resource) -> bool:
    names, scope = rule.get("resourceNames"), "Namespaced" if resource.namespaced else "Cluster"
    return (
        _has(rule.get("operations"), request.operation)
        and _has(rule.get("apiGroups"), resource.group)
        and _has(rule.get("apiVersions"), resource.version)
        and rule.get("scope", "*") in ("*", scope)
        and any(_covers(pattern, request) for pattern in rule.get("resources") or ())
        and (not names or request.name in names)
    )


def _covers(pattern: str, request: AdmissionRequest) -> bool:
    plural, _, subresource = pattern.partition("/")
    return plural in ("*", request.resource.plural) and subresource in ("*", request.subresource)


def _has(words: list[str] | None, word: str) -> bool:
    return not {"*", word}.isdisjoint(words or ())


def _labels_match(wanted: Json, request: AdmissionRequest, registry: Registry) -> bool:
    by_object = _selector(wanted.get("objectSelector"))
    objects = [obj for obj in (request.obj, request.old) if obj is not None]
    if by_object and not any(by_object.matches(obj.get("metadata", {}).get("labels") or {}) for obj in objects):
        return False
    by_namespace = _selector(wanted.get("namespaceSelector"))
    if by_namespace is None:
        return True
    if (request.resource.group, request.resource.plural) == ("", "namespaces"):
        return any(by_namespace.matches(obj.get("metadata", {}).get("labels") or {}) for obj in objects[:1])
    if not request.resource.namespaced:
        return True
    stored = registry.store.collection("", "namespaces").get("", request.namespace)
    return by_namespace.matches(stored.labels if stored else {_NAME_LABEL: request.namespace})


def _selector(wanted: Json | None) -> Selector | None:
    """None for a selector that selects everything."""
    return Selector.of(convert(LabelSelector, wanted)) if wanted else None


_GROUP = "admissionregistration.k8s.io"
_POLICIES, _BINDINGS = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
_NAMESPACE_METADATA = (
    "name",
    "generateName",
    "labels",
    "annotations",
    "finalizers",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


class _Misconfigured(Exception):
    """A binding cannot be used for a request; the text says why."""


class _Bound(NamedTuple):
    policy: Policy
    binding: Json


class Policies:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._bound: list[_Bound] | None = None
        registry.store.listen(self._forget)

    def _forget(self, collection: Collection, change: Change) -> None:
        if collection.group == _GROUP:
            self._bound = None

    def check(self, request: AdmissionRequest) -> list[str]:
        """Raises the refusal that the first policy asks for; gives back the warnings of the others."""
        if request.resource.group == _GROUP:
            return []  # a wrong policy must not keep itself from being corrected
        warnings = []
        refusals = []
        for bound in self._all():
            name = bound.binding["metadata"]["name"]
            actions = bound.binding["spec"].get("validationActions") or ()
            for denial in self._denials(bound, request):
                whose = f"ValidatingAdmissionPolicy '{bound.policy.name}' with binding '{name}'"
                if "Deny" in actions:
                    refusals.append(request.refusal(f"{whose} denied request: {denial.message}", denial.reason))
                if "Warn" in actions:
                    warnings.append(f"Validation failed for {whose}: {denial.message}")
        if refusals:
            raise refusals[0]
        return warnings

    def _all(self) -> list[_Bound]:
        if self._bound is None:
            policies = {stored.name: Policy(stored.decode()) for stored in self._stored(_POLICIES)}
            bindings = [stored.decode() for stored in self._stored(_BINDINGS)]
            self._bound = [
                _Bound(policies[name], binding)
                for binding in bindings
                if (name := binding["spec"].get("policyName", "")) in policies
            ]
        return self._bound

    def _stored(self, plural: str) -> Iterable[Any]:
        return self._registry.store.collection(_GROUP, plural).all()

    def _denials(self, bound: _Bound, request: AdmissionRequest) -> list[Denial]:
        policy, spec = bound.policy, bound.binding["spec"]
        resource = matched(policy.spec.get("matchConstraints") or {}, request, self._registry)
        if resource is None or matched(spec.get("matchResources") or {}, request, self._registry) is None:
            return []
        try:
            parameters = self._parameters(policy.spec.get("paramKind"), spec.get("paramRef"), request)
        except _Misconfigured as error:
            return [Denial(f"failed to configure binding: {error}")] if policy.fails else []
        values = self._values(request, resource)
        return [denial for found in parameters for denial in policy.denials({**values, "params": found})]

    def _values(self, request: AdmissionRequest, resource: Resource) -> Mapping[str, Any]:
        def decide(asked: Mapping[str, str]) -> Decision:
            who = User(asked["user"]) if "user" in asked else request.user
            keys = ("group", "resource", "subresource", "namespace", "name", "path")
            place = {key: asked[key] for key in keys if key in asked}
            question = Attributes(who, asked["verb"], field_selector=asked.get("fieldSelector", ""), **place)
            answer = self._registry.authorization.judge(question)
            return Decision(answer.allowed, answer.reason)

        new, old = request.objects_as(resource)
        asked = {
            "group": resource.group,
            "resource": resource.plural,
            "subresource": request.subresource,
            "namespace": request.namespace,
            "name": request.name,
        }
        return {
            "object": new,
            "oldObject": old,
            "request": request.described(resource),
            "namespaceObject": self._namespace(request),
            "authorizer": Authorizer(decide),
            "authorizer.requestResource": resource_check(decide, {k: v for k, v in asked.items() if v}),
        }

    def _namespace(self, request: AdmissionRequest) -> Json | None:
        if not request.resource.namespaced:
            return None
        stored = self._registry.store.collection("", "namespaces").get("", request.namespace)
        if stored is None:
            return None
        obj = stored.decode()
        meta = {key: obj["metadata"][key] for key in _NAMESPACE_METADATA if key in obj["metadata"]}
        status = {"phase": (obj.get("status") or {}).get("phase", "Active")}
        return {"metadata": meta, "spec": obj.get("spec") or {}, "status": status}

    def _parameters(self, kind: Json | None, wanted: Json | None, request: AdmissionRequest) -> list[Json | None]:
        """The objects with which the policy is evaluated, each on its own. Raises _Misconfigured."""
        if not kind or not wanted:
            return [None]
        group, _, version = kind.get("apiVersion", "").rpartition("/")
        resource = self._registry.structure.by_kind(group, version, kind.get("kind", ""))
        if resource is None:
            raise _Misconfigured(f"paramKind kind `{kind.get('apiVersion')}, Kind={kind.get('kind')}` not known")
        namespace = (wanted.get("namespace") or request.namespace) if resource.namespaced else ""
        if resource.namespaced and not namespace:
            raise _Misconfigured(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            )
        if not resource.namespaced and wanted.get("namespace"):
            raise _Misconfigured("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        collection = self._registry.collection(resource)
        if wanted.get("name"):
            stored = collection.get(namespace, wanted["name"])
            found = [] if stored is None else [stored]
        else:
            selector = Selector.of(convert(LabelSelector, wanted.get("selector") or {}))
            found = [each for each in collection.all(namespace) if selector.matches(each.labels)]
        if not found and wanted.get("parameterNotFoundAction", "Deny") == "Deny":
            raise _Misconfigured("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [to_served(resource, stored.decode()) for stored in found]
