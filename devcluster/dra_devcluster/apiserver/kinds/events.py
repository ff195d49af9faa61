"""Events: selectable by what they are about.

One stored event is served by two APIs. That of the core group takes what older recorders write; ``events.k8s.io`` takes
complete events only, and lets nothing but their series change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.structure import Fault

from .base import Kind, Write

_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_WORD_CHARACTERS = 128
_MESSAGE_CHARACTERS = 1024
_LEAST_OF_A_SERIES_EVENTS = 2
_OLD_FORM = ("firstTimestamp", "lastTimestamp", "count", "source")
_IMMUTABLE = (
    *("involvedObject", "reason", "message", *_OLD_FORM, "type", "eventTime"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)


class CoreEvents(Kind):
    created_by_update = True
    names: Mapping[str, str] = MappingProxyType({})  # fields that refusals call otherwise than the stored event
    selectable: Mapping[str, str] = MappingProxyType(
        {
            **{f"involvedObject.{field}": f"involvedObject.{field}" for field in _ABOUT},
            "reason": "reason",
            "type": "type",
            "reportingComponent": "reportingComponent",
            "source": "source.component",
        }
    )

    def fields(self, obj: Json) -> dict[str, str]:
        """Those of both APIs."""
        meta = obj["metadata"]
        found = {"metadata.name": meta["name"], "metadata.namespace": meta.get("namespace", "")}
        for kind in (CoreEvents, NewEvents):
            found |= {name: str(metadata.dig(obj, path) or "") for name, path in kind.selectable.items()}
        found["source"] = found["source"] or found["reportingComponent"]
        return found

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        about = (obj.get("involvedObject") or {}).get("namespace", "")
        namespace = obj["metadata"].get("namespace", "")
        if "eventTime" in obj:
            if not about and namespace not in ("default", "kube-system"):
                yield faults.invalid("involvedObject.namespace", about, "does not match event.namespace")
            yield from _words(obj, self.names.get("reportingComponent", "reportingComponent"))
        elif about != namespace and (about or namespace != "default"):
            yield faults.invalid("involvedObject.namespace", about, "does not match event.namespace")


class NewEvents(CoreEvents):
    """Those of ``events.k8s.io``."""

    names: Mapping[str, str] = MappingProxyType({"reportingComponent": "reportingController"})
    selectable: Mapping[str, str] = MappingProxyType(
        {
            **{f"regarding.{field}": f"involvedObject.{field}" for field in _ABOUT},
            "reason": "reason",
            "type": "type",
            "reportingController": "reportingComponent",
        }
    )

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        yield from super().validate(obj, old, write)
        yield from _series(obj)
        if old is not None:
            changed = [field for field in _IMMUTABLE if obj.get(field) != old.get(field)]
            yield from (faults.immutable(self.names.get(field, field), obj.get(field)) for field in changed)
            return
        if "eventTime" not in obj:
            yield faults.required("eventTime")
        if obj.get("type") not in ("Normal", "Warning"):
            yield faults.invalid("type", "", f"has invalid value: {obj.get('type', '')}")
        yield from (faults.invalid(field, "", "needs to be unset") for field in _OLD_FORM if obj.get(field))


def _words(obj: Json, controller: str) -> Iterator[Fault]:
    """Faults of who reports what; ``controller`` is what the API calls ``reportingComponent``."""
    reporter = obj.get("reportingComponent", "")
    if not reporter:
        yield faults.required(controller)
    if why := metadata.qualified_name(reporter):
        yield faults.invalid(controller, reporter, why)
    for field in ("reportingInstance", "action", "reason"):
        if not obj.get(field):
            yield faults.required(field)
        elif len(obj[field]) > _WORD_CHARACTERS:
            yield faults.invalid(field, "", f"can have at most {_WORD_CHARACTERS} characters")
    if len(obj.get("message", "")) > _MESSAGE_CHARACTERS:
        yield faults.invalid("message", "", f"can have at most {_MESSAGE_CHARACTERS} characters")


def _series(obj: Json) -> Iterator[Fault]:
    series = obj.get("series")
    if series is None:
        return
    if series.get("count", 0) < _LEAST_OF_A_SERIES_EVENTS:
        yield faults.invalid("series.count", "", f"should be at least {_LEAST_OF_A_SERIES_EVENTS}")
    if not series.get("lastObservedTime"):
        yield faults.required("series.lastObservedTime")
