"""The documents of YAML and JSON files, parsed in C.

A file that starts like JSON is parsed as JSON, 30 times as fast as YAML; if that fails, it may be YAML in flow style.
YAML goes through libyaml where PyYAML was built with it. Unlike PyYAML's own safe loader, and like kubectl, it reads a
timestamp without quotes as text and limits nesting (libyaml's composer is recursive, and would end the process instead
of raising).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import yaml

DEEPEST: Final = 100
"""Levels of nesting; the deepest field of the kinds that matter here is at level 12."""
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


def loader(base: Any) -> Any:
    """A loader of PyYAML that keeps timestamps as text and refuses deep nesting."""
    resolvers = base.yaml_implicit_resolvers.items()

    class Loader(base):  # type: ignore[misc]
        """The composer calls ``descend_resolver`` on its way into each node, ``ascend_resolver`` on its way out."""

        yaml_implicit_resolvers: Final = {
            first: [(tag, pattern) for tag, pattern in found if tag != _TIMESTAMP] for first, found in resolvers
        }
        depth = 0

        def descend_resolver(self, _: object, __: object) -> None:
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.YAMLError(f"nested more than {DEEPEST} levels deep")

        def ascend_resolver(self) -> None:
            self.depth -= 1

    return Loader


_LOADER: Final = loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def documents(text: str) -> list[Any]:
    """The documents of a file, empty ones as None. Raises ValueError, which names the fault and its place."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError) as error:
            return _flow_style(text, error)
    return _yaml(text)


def _flow_style(text: str, error: Exception) -> list[Any]:
    try:
        return _yaml(text)
    except ValueError as other:
        raise ValueError(f"not JSON: {error or type(error).__name__}; {other}") from other


def _yaml(text: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, _LOADER))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not YAML: {error or type(error).__name__}") from error
