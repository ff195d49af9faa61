"""Authorization checks of admission policies: ``authorizer.group("").resource("pods").check("get").allowed()``.

Building a check costs nothing but its steps; ``check`` asks the ``decide`` function that the authorizer was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from dra_cel.basics.declarations import Estimate, Function, Rule, exactly, method
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, STRING, Type, struct
from dra_cel.basics.values import Opaque

AUTHORIZER: Final = struct("kubernetes.authorization.Authorizer")
PATH_CHECK: Final = struct("kubernetes.authorization.PathCheck")
GROUP_CHECK: Final = struct("kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = struct("kubernetes.authorization.ResourceCheck")
DECISION: Final = struct("kubernetes.authorization.Decision")
_CHECK_COST: Final = 350_000


class _ByIdentity(Opaque):
    """Values that are only equal to themselves."""

    __slots__ = ()

    def identity(self) -> Any:
        return id(self)


@dataclass(frozen=True, slots=True, eq=False)
class Decision(_ByIdentity):
    """The answer to a check, or ``error`` if there is no answer."""

    allowed: bool
    reason: str = ""
    error: str = ""
    cel_type: ClassVar[Type] = DECISION


Decide = Callable[[Mapping[str, str]], Decision]
"""Takes ``verb`` and either ``path`` or ``group``, ``resource``, ``subresource``, ``namespace``, ``name``; also
``user`` if the check is for a service account."""


@dataclass(frozen=True, slots=True, eq=False)
class Authorizer(_ByIdentity):
    """The value of the variable ``authorizer``."""

    decide: Decide
    attributes: tuple[tuple[str, str], ...] = ()
    cel_type: ClassVar[Type] = AUTHORIZER


@dataclass(frozen=True, slots=True, eq=False)
class _PathCheck(Authorizer):
    cel_type: ClassVar[Type] = PATH_CHECK


@dataclass(frozen=True, slots=True, eq=False)
class _GroupCheck(Authorizer):
    cel_type: ClassVar[Type] = GROUP_CHECK


@dataclass(frozen=True, slots=True, eq=False)
class _ResourceCheck(Authorizer):
    cel_type: ClassVar[Type] = RESOURCE_CHECK


def resource_check(decide: Decide, attributes: Mapping[str, str]) -> Authorizer:
    """The value of the variable ``authorizer.requestResource``."""
    return _ResourceCheck(decide, tuple(attributes.items()))


def _step(kind: type[Authorizer], *names: str) -> Callable[..., Authorizer]:
    """A method that adds attributes to a check."""

    def run(check: Authorizer, *values: str) -> Authorizer:
        return kind(check.decide, (*check.attributes, *zip(names, values, strict=True)))

    return run


def _path(authorizer: Authorizer, path: str) -> Authorizer:
    if not path:
        raise EvaluationError("other", "path must not be empty")
    return _PathCheck(authorizer.decide, (*authorizer.attributes, ("path", path)))


def _service_account(authorizer: Authorizer, namespace: str, name: str) -> Authorizer:
    user = f"system:serviceaccount:{namespace}:{name}"
    return replace(authorizer, attributes=(*authorizer.attributes, ("user", user)))


def _check(check: Authorizer, verb: str) -> Decision:
    return check.decide({**dict(check.attributes), "verb": verb})


_CHARGE: Final = Rule(lambda operands: Estimate(exactly(_CHECK_COST)), lambda values, result: _CHECK_COST)
LIBRARY: Final = (
    Function("path", (method((AUTHORIZER, STRING), PATH_CHECK, _path),)),
    Function("group", (method((AUTHORIZER, STRING), GROUP_CHECK, _step(_GroupCheck, "group")),)),
    Function("serviceAccount", (method((AUTHORIZER, STRING, STRING), AUTHORIZER, _service_account),)),
    Function("resource", (method((GROUP_CHECK, STRING), RESOURCE_CHECK, _step(_ResourceCheck, "resource")),)),
    *(
        Function(name, (method((RESOURCE_CHECK, STRING), RESOURCE_CHECK, _step(_ResourceCheck, name)),))
        for name in ("subresource", "namespace", "name", "fieldSelector", "labelSelector")
    ),
    Function(
        "check",
        tuple(method((type_, STRING), DECISION, _check, _CHARGE) for type_ in (PATH_CHECK, RESOURCE_CHECK)),
        rule=_CHARGE,
    ),
    Function("allowed", (method((DECISION,), BOOL, lambda decision: decision.allowed and not decision.error),)),
    Function("reason", (method((DECISION,), STRING, lambda decision: decision.reason),)),
    Function("errored", (method((DECISION,), BOOL, lambda decision: bool(decision.error)),)),
    Function("error", (method((DECISION,), STRING, lambda decision: decision.error),)),
)
