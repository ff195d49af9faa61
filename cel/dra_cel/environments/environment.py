"""Environments: what an expression may refer to, as data.

An environment is a table of functions, of variables and of structs, plus what is known about the sizes of the
variables' values, which the cost estimate needs. ``device selectors`` and ``admission policies`` are two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_cel.basics.declarations import Function, Library, merge
from dra_cel.basics.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    NULL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    type_type,
)  # fmt: skip
from dra_cel.basics.values import UINT_MAX
from dra_cel.libraries import (
    authorization,
    clock,
    conversions,
    formats,
    formatting,
    lists,
    network,
    operators,
    optionals,
    quantity,
    semver,
    strings,
    urls,
)  # fmt: skip

from .messages import MESSAGE_TYPES


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known about a variable's values beyond their type: how large they can be, and what their parts are.

    ``size`` is the largest number of characters or entries. ``any_field`` gives the shape of fields which are not
    listed, as in a map whose values are all alike.
    """

    size: int = UINT_MAX
    key: Shape | None = None
    value: Shape | None = None
    fields: Mapping[str, Shape] = field(default_factory=dict)
    any_field: Shape | None = None

    def below(self, step: str) -> Shape | None:
        """The shape one step down a path: ``@keys``, ``@items``, ``@values`` or a field's name."""
        if step == "@keys":
            return self.key
        if step in ("@items", "@values"):
            return self.value
        return self.fields.get(step, self.any_field)


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """Everything that an expression may refer to. ``accepts_result`` decides which output types are allowed;
    ``result_rule`` says it in words.

    ``type_names`` are names that stand for a type at run time; those of ``checked_names`` only do so for the checker.
    ``bindings``: whether there is a ``cel.bind``.
    """

    name: str
    functions: Mapping[str, Function]
    variables: Mapping[str, Type]
    structs: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    type_names: Mapping[str, Type] = field(default_factory=dict)
    checked_names: Mapping[str, Type] = field(default_factory=dict)
    accepts_result: Callable[[Type], bool] = lambda output: True
    result_rule: str = "any type"
    cost_limit: int = 1_000_000
    bindings: bool = True

    def knows_type(self, name: str) -> bool:
        return name in self.type_names or name in self.checked_names

    def type_of_name(self, name: str) -> Type:
        """The type of a name of a type: ``type(int)`` for ``int``."""
        return type_type(self.type_names.get(name) or self.checked_names[name])


STANDARD_TYPES: Final[Mapping[str, Type]] = {
    "bool": BOOL, "bytes": BYTES, "double": DOUBLE, "int": INT, "uint": UINT, "string": STRING, "null_type": NULL,
    "type": TYPE, "list": list_of(DYN), "map": map_of(DYN, DYN), "net.IP": IP, "net.CIDR": CIDR,
    "optional_type": optional_of(DYN), "google.protobuf.Duration": DURATION, "google.protobuf.Timestamp": TIMESTAMP,
}  # fmt: skip
"""Names that stand for types in expressions, as in ``type(x) == string``."""

CHECKED_TYPES: Final[Mapping[str, Type]] = {"duration": DURATION, "timestamp": TIMESTAMP, **MESSAGE_TYPES}
"""Names that the checker takes for types, but that mean nothing at run time."""

KUBERNETES: Final[tuple[Library, ...]] = (
    operators.LIBRARY, conversions.LIBRARY, clock.LIBRARY, lists.LIBRARY, strings.LIBRARY, formatting.LIBRARY,
    optionals.LIBRARY, quantity.LIBRARY, semver.LIBRARY, urls.LIBRARY, network.LIBRARY, formats.LIBRARY,
    authorization.LIBRARY,
)  # fmt: skip
"""What Kubernetes 1.36 offers in every environment. The order matters for calls that several overloads fit: lists come
before texts."""


def kubernetes(*more: Library) -> dict[str, Function]:
    """The functions of Kubernetes' base environment and of further libraries."""
    return merge(*KUBERNETES, *more)
