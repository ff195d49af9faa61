"""One admission policy, and the request that its expressions see.

A write as admission sees it: what is done to which object, by whom, and what the object was and becomes.

One policy, compiled: match conditions, variables and validations.

An expression that does not compile, or fails, is treated as ``failurePolicy`` says: the request is denied (``Fail``),
or the expression has no say (``Ignore``). Variables are evaluated when an expression asks for them, at most once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dra_cel import CelError, EvaluationError, Program, admission_policies
from dra_cel.basics.types import BOOL, DYN, STRING, Type

from dra_devcluster.apiserver.authorization import User
from dra_devcluster.apiserver.errors import Json, StatusError, forbidden
from dra_devcluster.apiserver.storage.metadata import to_served
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
        """New and old object in the version of ``resource``."""
        if self.posted is not None:
            return self.obj, None
        new, old = (None if obj is None else to_served(resource, obj) for obj in (self.obj, self.old))
        return new, old

    def described(self, resource: Resource) -> Json:
        """The variable ``request``, for a policy that knows the object in the version of ``resource``."""
        info = self.user.info
        described: Json = {
            "operation": self.operation,
            "userInfo": info,
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
        """The answer to a request that a policy denies."""
        error = forbidden(self.resource.group, self.resource.plural, self.name, message, [{"message": message}])
        return StatusError(_CODES.get(reason, 422), reason, error.message, error.details)


def _resource(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


_POLICY_COST = 10_000_000
"""Cost of all expressions of one policy for one request."""
_OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"
_MESSAGE_BYTES = 5 * 1024


class Denial(NamedTuple):
    """Why a policy denies a request, and the reason of the Status."""

    message: str
    reason: str = "Invalid"


@dataclass(frozen=True, slots=True)
class _Expression:
    """An expression where it stands, and its program, or why it has none."""

    field: str
    text: str
    program: Program | CelError

    @classmethod
    def of(cls, field: str, text: str, types: Mapping[str, Type], result: Type | None = BOOL) -> _Expression:
        try:
            return cls(field, text, Program(text, admission_policies(types, result=result)))
        except CelError as error:
            return cls(field, text, error)

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
            raise expression.program
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
    """The expressions of a ValidatingAdmissionPolicy."""

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
