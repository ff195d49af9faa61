"""How the libraries declare functions.

A function is a name and its overloads. An overload is everything about one signature in one place: types,
implementation, charge. Methods (``text.size()``) have their receiver as first parameter.

``guarded`` functions check at run time that the values have the declared types; the others (operators, ``size``, ...)
have one implementation for all overloads, which looks at the values itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .charges import FIXED, Rule
from .errors import EvaluationError
from .types import Type
from .values import accepts

Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One signature.

    ``checks`` states that the implementation itself raises for values of other types, so that compiled expressions
    need no check. ``inline`` is Python source for them, with ``{0}`` for the first operand, under the same condition.
    ``against_zero`` is such source for comparing the result with 0 by the operator ``{2}``.
    """

    params: tuple[Type, ...]
    result: Type
    run: Implementation
    method: bool = False
    rule: Rule = FIXED
    inline: str | None = None
    checks: bool = False
    against_zero: str | None = None

    def accepts(self, values: Sequence[Any]) -> bool:
        return len(values) == len(self.params) and all(map(accepts, self.params, values))


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A name, and the overloads that a call of it may mean.

    ``rule`` is charged when several overloads may be meant (a fixed unit otherwise). ``variadic`` functions stop at
    the first operand that fails, which matters for what a failed call costs.
    """

    name: str
    overloads: tuple[Overload, ...]
    guarded: bool = True
    rule: Rule | None = None
    variadic: bool = False


Library = Sequence[Function]


def built_in(*operands: object) -> NoReturn:
    """Stands for the implementation where the evaluators do the work: selections, and operators that may skip
    operands."""
    raise AssertionError("the evaluators call no implementation here")


def glob(params: Sequence[Type], result: Type, run: Implementation, rule: Rule = FIXED) -> Overload:
    """An overload that is called as ``f(x)``."""
    return Overload(tuple(params), result, run, rule=rule)


def method(
    params: Sequence[Type],
    result: Type,
    run: Implementation,
    rule: Rule = FIXED,
    inline: str | None = None,
    *,
    against_zero: str | None = None,
) -> Overload:
    """An overload that is called as ``x.f()``."""
    checks = against_zero is not None
    return Overload(tuple(params), result, run, True, rule, inline, checks, against_zero)


def succeeds(run: Implementation) -> Implementation:
    """Whether an implementation has an answer: ``isIP`` beside ``ip``."""

    def check(*values: Any) -> bool:
        try:
            run(*values)
        except EvaluationError:
            return False
        return True

    return check


def merge(*libraries: Library) -> dict[str, Function]:
    """The functions of several libraries by name; overloads of the same name are put together."""
    merged: dict[str, Function] = {}
    for library in libraries:
        for function in library:
            known = merged.get(function.name)
            if known is None:
                merged[function.name] = function
            else:
                merged[function.name] = Function(
                    function.name,
                    known.overloads + function.overloads,
                    known.guarded or function.guarded,
                    known.rule or function.rule,
                    known.variadic or function.variadic,
                )
    return merged
