"""Kinds with few rules of their own: namespaces, nodes, events, volumes, services, leases.

A namespace has a finalizer in its spec: it stays in deletion until the namespace controller has emptied it. A node's
server has a key that no object shows. One stored event is served by two APIs. The API of the core group takes the
events of older recorders. ``events.k8s.io`` takes complete events only, and lets nothing but their series change.

Devices that bring or cost resources of nodes are published only for nodes that declare the feature (K37-NA-24). The
admission plugin NodeDeclaredFeatureValidator of 1.37 does so for ResourceSlices, with the gates NodeDeclaredFeatures
(locked) and DRANodeAllocatableResources.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from dra_api.releases import Release
from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors, FieldError

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.kinds.base import Kind, Write, selectable_by
from dra_devcluster.apiserver.kinds.resources import validate_amount
from dra_devcluster.apiserver.metadata import entries, has_form, needs, not_negative, not_seen, one_of
from dra_devcluster.apiserver.registry import NodeServerAddress
from dra_devcluster.apiserver.selectors import selects
from dra_devcluster.node_protocol import SERVER_ADDRESS_ANNOTATION, SERVER_KEY_ANNOTATION

FINALIZER = "kubernetes"
NAME_LABEL = "kubernetes.io/metadata.name"
_UNDELETABLE = ("default", "kube-system", "kube-public")


class NamespaceKind(Kind):
    name_rule = staticmethod(metadata.label)
    status_writes_metadata = True
    returns_deleted = True
    selectable = selectable_by("status.phase")

    def default(self, obj: Json, write: Write) -> None:
        name = obj["metadata"].get("name")
        if name:
            obj["metadata"].setdefault("labels", {})[NAME_LABEL] = name

    def prepare_create(self, obj: Json, write: Write) -> None:
        finalizers = (obj.get("spec") or {}).get("finalizers") or []
        obj["spec"] = {"finalizers": finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER]}
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if write.subresource == "finalize":
            obj["status"] = old.get("status", {})
            return
        super().prepare_update(obj, old, write)
        obj["spec"] = old.get("spec", {})

    def prepare_delete(self, obj: Json, write: Write) -> None:
        name = obj["metadata"]["name"]
        if name in _UNDELETABLE:
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")

    def holds(self, obj: Json) -> bool:
        return bool((obj.get("spec") or {}).get("finalizers"))

    def mark_deleted(self, obj: Json) -> None:
        obj.setdefault("status", {})["phase"] = "Terminating"
        obj["metadata"].pop("deletionGracePeriodSeconds", None)  # it waits for its content, not for time


class PersistentVolumeClaims(Kind):
    returns_deleted = True
    defaults: Mapping[str, Any] = MappingProxyType({"spec.volumeMode": "Filesystem"})

    def prepare_create(self, obj: Json, write: Write) -> None:
        obj["status"] = {"phase": "Pending"}


class PersistentVolumes(PersistentVolumeClaims):
    defaults = MappingProxyType({"spec.volumeMode": "Filesystem", "spec.persistentVolumeReclaimPolicy": "Retain"})


class StorageClasses(Kind):
    defaults = MappingProxyType({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        for part in ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"):
            if old is not None and obj.get(part) != old.get(part):
                yield faults.forbidden(part, f"updates to {part} are forbidden.")


class Generational(Kind):
    """``metadata.generation`` counts the changes of ``spec``."""

    has_generation = True


class Keyed(Kind):
    """Keys and values, which an object may declare immutable."""

    parts: tuple[str, ...] = ("data", "binaryData")

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        for part in self.parts:
            for key in obj.get(part) or {}:
                yield from has_form(key, f"{part}[{key}]", metadata.data_key)
        for key in sorted((obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys()):
            yield faults.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
        if old is None or not old.get("immutable"):
            return
        for part in ("immutable", *self.parts):
            if obj.get(part) != old.get(part):
                yield faults.forbidden(part, "field is immutable when `immutable` is set")


class Secrets(Keyed):
    parts = ("data",)
    selectable = selectable_by("type")
    defaults = MappingProxyType({"type": "Opaque"})

    def default(self, obj: Json, write: Write) -> None:
        super().default(obj, write)
        for key, text in (obj.pop("stringData", None) or {}).items():
            obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


class Leases(Kind):
    unconditional_update = False
    created_by_update = True

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        spec = obj.get("spec") or {}
        if (seconds := spec.get("leaseDurationSeconds", 1)) <= 0:
            yield faults.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
        yield from not_negative(spec, "spec", "leaseTransitions")


class Budgets(Generational):
    unconditional_update = False

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        spec = obj.get("spec") or {}
        if "minAvailable" in spec and "maxUnavailable" in spec:
            yield faults.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")


class Services(Kind):
    name_rule = staticmethod(metadata.label_1035)
    returns_deleted = True
    created_by_update = True
    selectable = selectable_by("spec.clusterIP", "spec.type")
    defaults = MappingProxyType(
        {"spec.type": "ClusterIP", "spec.sessionAffinity": "None", "spec.internalTrafficPolicy": "Cluster"}
    )

    def default(self, obj: Json, write: Write) -> None:
        super().default(obj, write)
        for port in obj["spec"].get("ports") or ():
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Nodes(Kind):
    selectable = selectable_by("spec.unschedulable")
    status_writes_metadata = True

    def default(self, obj: Json, write: Write) -> None:
        _keep_server(obj["metadata"], write)
        status = obj.get("status") or {}
        for name, amount in (status.get("capacity") or {}).items():
            status.setdefault("allocatable", {}).setdefault(name, amount)

    def prepare_create(self, obj: Json, write: Write) -> None:
        """A kubelet registers its node with the status."""

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        yield from _taints(spec)
        for field in ("capacity", "allocatable"):
            for name, amount in (status.get(field) or {}).items():
                yield from validate_amount(name, amount, f"status.{field}.{name}")
        seen: set[tuple[tuple[str, str], ...]] = set()
        for path, address in entries(status, "addresses", "status"):
            yield from not_seen(tuple(sorted(address.items())), seen, path, address)
        provider = ((old or {}).get("spec") or {}).get("providerID", "")
        if provider and spec.get("providerID", "") != provider:
            why = 'node updates may not change providerID except from "" to valid'
            yield faults.forbidden("spec.providerID", why)

    def fields(self, obj: Json) -> dict[str, str]:
        found = super().fields(obj)
        found["spec.unschedulable"] = found["spec.unschedulable"] or "false"
        return found


def _keep_server(meta: Json, write: Write) -> None:
    """Take the key of the node's server, and its address, out of the object.

    Who reads Nodes may not run programs in their pods. Who may write their status may not either: address and key come
    in one registration, so that nobody else's address gets the key.
    """
    annotations = meta.get("annotations") or {}
    key, address = (annotations.pop(name, None) for name in (SERVER_KEY_ANNOTATION, SERVER_ADDRESS_ANNOTATION))
    if "annotations" in meta and not annotations:
        del meta["annotations"]
    if key and address and not write.dry_run and not write.subresource:
        write.registry.node_servers[meta["name"]] = NodeServerAddress(address, key)


def _taints(spec: Json) -> Errors:
    """The real server names these fields as if they were metadata."""
    seen: set[tuple[str, str]] = set()
    for path, taint in entries(spec, "taints", "metadata"):
        key, effect = taint.get("key", ""), taint.get("effect", "")
        yield from has_form(key, f"{path}.key", metadata.qualified_name)
        yield from has_form(taint.get("value", ""), f"{path}.value", metadata.label_value)
        yield from needs(taint, path, "effect")
        if effect:
            yield from one_of(effect, f"{path}.effect", _EFFECTS)
        yield from not_seen((key, effect), seen, path, taint)


FEATURE: Final = "DRANodeAllocatableResources"


def check_declared_features(slice_: Json, write: Write) -> None:
    """Raises a 403 if a node on which such a device can be used does not declare the feature."""
    if write.registry.release < Release.V1_37 or not write.registry.gates.node_allocatable_resources:
        return
    spec = slice_["spec"]
    for device in spec.get("devices") or ():
        if device.get("nodeAllocatableResources"):
            for why in _refusals(device if spec.get("perDeviceNodeSelection") else spec, write):
                raise forbidden("resource.k8s.io", "resourceslices", slice_["metadata"].get("name", ""), why)


def _refusals(where: Json, write: Write) -> Iterator[str]:
    """``where`` has the fields that choose nodes: the slice, or the device. A choice that no node matches is fine."""
    nodes = write.registry.store.collection("", "nodes")
    if where.get("nodeName"):
        stored = nodes.get("", where["nodeName"])
        if stored is None or not _declares(stored.decode()):
            yield _text(where["nodeName"])
    elif where.get("allNodes") or where.get("nodeSelector"):
        for stored in nodes.all():
            node = stored.decode()
            if (where.get("allNodes") or selects(where["nodeSelector"], node)) and not _declares(node):
                yield _text(stored.name)
    else:
        yield f"a device with nodeAllocatableResources is for no node, so that none supports {FEATURE}"


def _declares(node: Json) -> bool:
    return FEATURE in ((node.get("status") or {}).get("declaredFeatures") or ())


def _text(node: str) -> str:
    return f'node "{node}" does not support {FEATURE} feature'


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
            **selectable_by(*(f"involvedObject.{field}" for field in _ABOUT)),
            **selectable_by("reason", "type", "reportingComponent"),
            "source": "source.component",
        }
    )

    def fields(self, obj: Json) -> dict[str, str]:
        meta = obj["metadata"]
        found = {"metadata.name": meta["name"], "metadata.namespace": meta.get("namespace", "")}
        for kind in (CoreEvents, NewEvents):
            found |= {name: str(metadata.dig(obj, path) or "") for name, path in kind.selectable.items()}
        found["source"] = found["source"] or found["reportingComponent"]
        return found

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        about = (obj.get("involvedObject") or {}).get("namespace", "")
        namespace = obj["metadata"].get("namespace", "")
        if "eventTime" in obj:
            if not about and namespace not in ("default", "kube-system"):
                yield faults.invalid("involvedObject.namespace", about, "does not match event.namespace")
            yield from _words(obj, self.names.get("reportingComponent", "reportingComponent"))
        elif about != namespace and (about or namespace != "default"):
            yield faults.invalid("involvedObject.namespace", about, "does not match event.namespace")


class NewEvents(CoreEvents):
    names: Mapping[str, str] = MappingProxyType({"reportingComponent": "reportingController"})
    selectable: Mapping[str, str] = MappingProxyType(
        {
            **{f"regarding.{field}": f"involvedObject.{field}" for field in _ABOUT},
            **selectable_by("reason", "type"),
            "reportingController": "reportingComponent",
        }
    )

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        yield from super().validate(obj, old, write)
        yield from _series(obj)
        if old is not None:
            changed = [field for field in _IMMUTABLE if obj.get(field) != old.get(field)]
            yield from (faults.immutable(self.names.get(field, field), obj.get(field)) for field in changed)
            return
        yield from needs(obj, "", "eventTime")
        if obj.get("type") not in ("Normal", "Warning"):
            yield faults.invalid("type", "", f"has invalid value: {obj.get('type', '')}")
        yield from (faults.invalid(field, "", "needs to be unset") for field in _OLD_FORM if obj.get(field))


def _words(obj: Json, controller: str) -> Errors:
    """Faults of who reports what; ``controller`` is what the API calls ``reportingComponent``."""
    reporter = obj.get("reportingComponent", "")
    if not reporter:
        yield faults.required(controller)
    yield from has_form(reporter, controller, metadata.qualified_name)
    for field in ("reportingInstance", "action", "reason"):
        yield from needs(obj, "", field)
        if len(obj.get(field, "")) > _WORD_CHARACTERS:
            yield faults.invalid(field, "", f"can have at most {_WORD_CHARACTERS} characters")
    if len(obj.get("message", "")) > _MESSAGE_CHARACTERS:
        yield faults.invalid("message", "", f"can have at most {_MESSAGE_CHARACTERS} characters")


def _series(obj: Json) -> Errors:
    if (series := obj.get("series")) is not None:
        if series.get("count", 0) < _LEAST_OF_A_SERIES_EVENTS:
            yield faults.invalid("series.count", "", f"should be at least {_LEAST_OF_A_SERIES_EVENTS}")
        yield from needs(series, "series", "lastObservedTime")
