"""What ``kubectl dra why`` says of a pod in a cluster of objects as JSON, and the cluster after a fix."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from dra_api.meta import Object
from dra_operator.commands.object_files import decoded
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.why.answer import answer
from dra_operator.kubectl.why.changes import Edit, applied
from msgspec.structs import replace as changed
from scheduling_causes import NAMESPACE, POD

Json = dict[str, Any]
NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Told:
    """The lines without their indents, and the fixes as programs get them."""

    lines: Sequence[str]
    fixes: Sequence[Json]
    code: int
    seen: Observed

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    @property
    def advice(self) -> list[str]:
        """The fixes as they are printed."""
        return [f"on {fix['node']}: {fix['text']}" for fix in self.fixes]


def seen_of(objects: Iterable[Json], *, is_whole: bool = True, **more: Any) -> Observed:
    """A live cluster with these objects. Each gets a UID, as from an API server."""
    found: list[Object] = []
    for item in objects:
        obj = decoded("test", item)
        assert obj is not None, item
        meta = obj.metadata
        found.append(changed(obj, metadata=changed(meta, uid=meta.uid or f"uid-{meta.name}")))
    return Observed(found, NOW, namespace=NAMESPACE, is_whole=is_whole, **more)


def told(objects: Iterable[Json] | Observed, target: str = f"pod/{POD}", **more: Any) -> Told:
    """What is answered about the pod that waits."""
    seen = objects if isinstance(objects, Observed) else seen_of(objects, **more)
    parser = argparse.ArgumentParser()
    COMMANDS["why"].add_arguments(parser)
    found = answer(seen, parser.parse_args([target, "--time-limit", "0"] if target else ["-A", "--time-limit", "0"]))
    lines = [line.strip() for line in found.lines]
    return Told(lines, found.value.get("fixes", []), int(found.code), seen)


def after_edits(seen: Observed, fix: Json) -> Observed:
    """The cluster in which the fix was made."""
    edits = [_edit(seen, each) for each in fix["edits"]]
    return replace(seen, objects=applied(seen.objects, edits))


def _edit(seen: Observed, edit: Json) -> Any:

    kinds = {type(obj).__name__: type(obj) for obj in seen.objects}
    return Edit(kinds[edit["kind"]], edit["key"], edit["after"])
