"""Manifests as they are written, their pod templates, and the findings of ``kubectl dra lint`` as values.

``kubectl apply`` has the API server refuse a field that its kind does not have, so a ``selector`` for ``selectors`` is
an error. Decoded objects have lost such a field, so ``read_manifests`` reads the text. It finds fields that do not
exist, versions, and the pods of workloads of any kind. In pods it checks the fields that lead to devices, and the names
of the fields around them.

Nobody can know all kinds that make pods. They have a template in common, a ``spec`` with ``containers``, below fields
with a number: ``replicas`` of a Deployment, of a role of an MPIJob, of a group of a RayCluster or of a job of a JobSet,
``parallelism`` of a Job. The numbers on the way to a template are multiplied. Kinds are distinguished by their group as
well: a Job of Volcano has tasks, and a Node of Longhorn is no Node.
"""

from __future__ import annotations

import re
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import yaml
from dra_api import conversion
from dra_api.codec import encode
from dra_api.core import ContainerClaim, Pod, PodResourceClaim
from dra_api.meta import Object
from dra_api.releases import Release
from dra_api.resource import (
    DeviceTaint,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_api.yaml_text import repeated_keys
from msgspec import structs

from dra_operator.allocator import PoolId
from dra_operator.cache import newest_slices
from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import (
    GONE,
    GROUP,
    KINDS,
    Item,
    data_of,
    decoded,
    each_item,
    files,
    misspelt,
    without_nulls,
)
from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.room import in_brief, is_brief
from dra_operator.wording import listed

JSON = dict[str, Any]
NOT_SPECS: Final = frozenset({"metadata", "status"})
NUMBERS: Final = ("replicas", "instances", "numOfHosts")
"""Fields that say how many pods, or groups of pods, are below: of controllers, of Spark and of KubeRay."""
NAMES: Final = ("name", "groupName", "replicaType")
"""Fields that name one of several entries."""
TEMPLATES: Final = re.compile(r"(?:Pod)?(?:Template|Spec|GroupSpec)s?$")
"""What names of fields with templates end with, after the role of the pods: ``leaderTemplate``, ``headGroupSpec``."""


class PodTemplate(NamedTuple):
    """``path`` is the field of the object that has ``metadata`` and ``spec`` of the pods."""

    path: str
    spec: JSON
    metadata: JSON
    number: int
    """Pods that are made from it, and run at the same time."""
    role: str
    """The role of these pods in their object, such as ``worker``, by the field of their template, or empty."""


def pod_templates(item: JSON) -> Iterator[PodTemplate]:
    """Yield the templates of an object that is no Pod itself. Raises BadInput for a number of pods that is none."""
    if item.get("kind") != "Pod":
        yield from _in(item, "", 1, "")


def not_read(others: Counter[str]) -> Iterator[str]:
    """Yield a note on kinds in which neither pods nor devices were found."""
    if others:
        kinds = listed(f"{kind} ({number})" if number > 1 else kind for kind, number in sorted(others.items()))
        yield f"not looked at, since no devices and no pods were found in them: {kinds}"


def _in(value: Any, path: str, number: int, role: str) -> Iterator[PodTemplate]:
    if isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _in(inner, f"{path}[{place}]", number, _name_of(inner) or role)
        return
    if not isinstance(value, dict):
        return
    spec = value.get("spec")
    if path and isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        metadata = value.get("metadata")
        yield PodTemplate(path, spec, metadata if isinstance(metadata, dict) else {}, number, role)
        return
    for name, inner in value.items():
        if name in NOT_SPECS or not isinstance(inner, dict | list):
            continue
        below = f"{path}.{name}" if path else name
        yield from _in(inner, below, number * _times(value, name, path), _role(name, path) or role)


def _role(name: str, path: str) -> str:
    """The role of pods below a field: ``leader`` for ``leaderTemplate``, ``worker`` for ``Worker``."""
    if path.endswith("ReplicaSpecs"):
        return name.lower()
    role = TEMPLATES.sub("", name)
    is_one = role not in ("", "pod", name)
    return re.sub(r"(?<=[a-z])([A-Z])", r"-\1", role).lower() if is_one else ""


def _name_of(entry: Any) -> str:
    found = (entry.get(name) for name in NAMES) if isinstance(entry, dict) else iter(())
    return next((str(name) for name in found if name), "")


def _times(value: JSON, field: str, path: str) -> int:
    """Return the number of copies of the field, as the fields beside it say."""
    found = 1
    for name in NUMBERS:
        if name in value:
            found *= _number(value[name], f"{path}.{name}")
    if "replicas" not in value and value.get("minReplicas"):
        found *= _number(value["minReplicas"], f"{path}.minReplicas")
    if "parallelism" in value or "completions" in value:
        at_once = [_number(value[name], f"{path}.{name}") for name in ("parallelism", "completions") if name in value]
        found *= min(at_once) if "parallelism" in value else min(1, *at_once)
    if "size" in value and field == "workerTemplate":  # of a LeaderWorkerSet, one pod of each group leads
        found *= max(0, _number(value["size"], f"{path}.size") - ("leaderTemplate" in value))
    return found


def _number(value: Any, field: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{field}: expected a number, 0 or more, got {value!r}")
    return value


class Severity(StrEnum):
    """``ERROR``: the API server refuses it, or no device can serve it. ``NOTE``: what was found out."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(Fact, frozen=True):
    """``where`` is the file, and the document in it."""

    severity: Severity
    where: str
    object: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``title`` is ``KIND NAMESPACE/NAME``; a pod of a workload has the title of the workload, and ``prefix`` is the
    path of its pod in there."""

    where: str
    title: str
    obj: Object
    prefix: str = ""

    def finding(self, severity: Severity, path: str, message: str) -> Finding:
        return Finding(
            severity=severity, where=self.where, object=self.title, field=self.prefix + path, message=message
        )

    def error(self, path: str, message: str) -> Finding:
        return self.finding(Severity.ERROR, path, message)

    def warning(self, path: str, message: str) -> Finding:
        return self.finding(Severity.WARNING, path, message)


GUESSED_NAMES: Final = 100
"""Missing names that are compared with all names of their namespace."""


@dataclass(frozen=True)
class Surroundings:
    """``made``: the pipeline over the cluster with the manifests in it; ``has_cluster``: False if there are files
    alone, whose absent objects mean nothing."""

    made: Pipeline
    has_cluster: bool
    guesses: Iterator[int] = field(default_factory=lambda: iter(range(GUESSED_NAMES)))
    """One for each missing name for which a similar one is looked for."""

    def would_have(self, kind: str, namespace: str = "") -> bool:
        """Return whether an object of this kind (a plural name) that is not here does not exist."""
        why = self.made.seen.unseen.get(kind)
        return self.has_cluster and (why is None or (bool(namespace) and why == f"read only in namespace {namespace}"))

    @cached_property
    def evicting(self) -> Sequence[DeviceTaint]:
        """The taints that evict pods, of devices and rules."""
        seen = self.made.seen
        slices = seen.every(ResourceSlice)
        of_devices = (it for slice_ in slices for one in slice_.spec.devices or () for it in one.taints or ())
        taints = chain(of_devices, (rule.spec.taint for rule in seen.every(DeviceTaintRule)))
        return list(dict.fromkeys(structs.replace(it, time_added=None) for it in taints if it.effect == "NoExecute"))

    @cached_property
    def pools(self) -> Mapping[PoolId, Sequence[ResourceSlice]]:
        """The slices of the newest generation of each pool."""
        return newest_slices(self.made.seen.every(ResourceSlice))

    @cached_property
    def classes_serving(self) -> Mapping[str, Sequence[str]]:
        """The names of the classes for each extended resource."""
        found: dict[str, list[str]] = {}
        for class_ in self.made.cluster.classes:
            if class_.spec.extended_resource_name:
                found.setdefault(class_.spec.extended_resource_name, []).append(class_.metadata.name)
        return found


def claims_in(manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, ResourceClaim, str]]:
    """Claims, and templates as the claims that they make; with the path of the claim's spec."""
    for manifest in manifests:
        if isinstance(manifest.obj, ResourceClaim):
            yield manifest, manifest.obj, "spec"
        elif isinstance(manifest.obj, ResourceClaimTemplate):
            spec = manifest.obj.spec.spec
            yield manifest, ResourceClaim(metadata=manifest.obj.metadata, spec=spec), "spec.spec"


# --- Manifests as they are written ---

CHECKED: Final = ("DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
POD_SPEC: Final = frozenset(
    {
        *("volumes", "initContainers", "containers", "ephemeralContainers", "restartPolicy", "dnsPolicy", "os"),
        *("terminationGracePeriodSeconds", "activeDeadlineSeconds", "nodeSelector", "serviceAccountName", "overhead"),
        *("serviceAccount", "automountServiceAccountToken", "nodeName", "hostNetwork", "hostPID", "hostIPC"),
        *("shareProcessNamespace", "securityContext", "imagePullSecrets", "hostname", "subdomain", "affinity"),
        *("schedulerName", "tolerations", "hostAliases", "priorityClassName", "priority", "dnsConfig", "hostUsers"),
        *("readinessGates", "runtimeClassName", "enableServiceLinks", "preemptionPolicy", "schedulingGates"),
        *("topologySpreadConstraints", "setHostnameAsFQDN", "resourceClaims", "resources", "hostnameOverride"),
        *("workloadRef", "schedulingGroup"),
    }
)
"""Fields of a PodSpec (k8s.io/api/core/v1)."""
CONTAINER: Final = frozenset(
    {
        *("name", "image", "command", "args", "workingDir", "ports", "envFrom", "env", "resources", "resizePolicy"),
        *("restartPolicy", "restartPolicyRules", "volumeMounts", "volumeDevices", "livenessProbe", "readinessProbe"),
        *("startupProbe", "lifecycle", "terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy"),
        *("securityContext", "stdin", "stdinOnce", "tty", "targetContainerName"),
    }
)
RESOURCES: Final = frozenset({"limits", "requests", "claims"})
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_OPEN: Final = frozenset({"metadata", "status", "parameters", "data"})
"""Fields in which anything may stand, or of which nothing decides here."""


def faults_of(item: JSON, release: Release | None) -> Iterator[tuple[Severity, str, str]]:
    """Yield the faults of an object as it is written: severity, path, reason. ``release`` is None if unknown."""
    kind, version = item["kind"], item.get("apiVersion")
    group = version.rpartition("/")[0] if isinstance(version, str) else None
    if (fault := misspelt(item)) is not None:
        yield Severity.ERROR, *fault
        return
    if group == GROUP and kind not in KINDS and not kind.endswith("List"):
        hint = _similar(kind, [name for name, (resource, _) in KINDS.items() if resource.group == GROUP])
        if hint:
            yield Severity.ERROR, "kind", f"{GROUP} has no kind {kind}{hint}"
        return
    if kind not in CHECKED or group != GROUP:
        return
    short = str(version).rpartition("/")[2]
    newest, *others = conversion.VERSIONS[kind]
    if short in GONE:
        yield Severity.ERROR, "apiVersion", f"no release serves {version} any more: write {GROUP}/{newest}"
        return
    if short not in (newest, *others):
        yield Severity.ERROR, "apiVersion", f"a {kind} has no version {short}{_similar(short, (newest, *others))}"
        return
    yield from _of_version(kind, short, release)
    if short == conversion.FLAT:
        yield from _of_newer_versions(item, kind)
    try:
        shaped = conversion.convert(item, f"{GROUP}/{newest}")
    except (conversion.ConversionError, TypeError, AttributeError):
        return  # decoding names the fault
    for path, name, hint in _unknown_fields(shaped, kind):
        if not (short == conversion.FLAT and name == "exactly"):  # which was told in the form of this version
            yield Severity.ERROR, path, f'unknown field "{name}", which the API server refuses{hint}'


INT32_MODULUS: Final = 1 << 32
INT64_MODULUS: Final = 1 << 64


def too_large(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield the path of each whole number that has more than 64 bits. The API server cannot read an object with one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _OPEN:
                yield from too_large(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from too_large(inner, f"{path}[{place}]")
    elif isinstance(value, int) and not -INT64_MODULUS // 2 <= value < INT64_MODULUS // 2:
        yield path, value


def _unknown_fields(item: JSON, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, name, and what may have been meant."""
    for path, name, known in _unknown(item, KINDS[kind][1], ""):
        hint = _similar(name, known)
        if kind == "ResourceClaimTemplate" and (path, name) == ("spec", "devices"):
            hint = ": the spec of the claims is spec.spec of the template"
        elif kind in conversion.REQUESTS and name in conversion.MOVED and "exactly" in known:
            hint = ": from v1beta2 on it stands in exactly of the request"
        elif kind == "ResourceSlice" and name == "basic":
            hint = ": from v1beta2 on its fields stand in the device itself"
        yield path, name, hint


def _of_newer_versions(item: JSON, kind: str) -> Iterator[tuple[Severity, str, str]]:
    """Yield the fields that v1beta1 has in another place: the server refuses them, and conversion would take them."""
    way = conversion.REQUESTS.get(kind, ("spec", "devices") if kind == "ResourceSlice" else ())
    is_slice = kind == "ResourceSlice"
    there = "it in basic" if is_slice else "its fields in the request itself"
    hint = f"v1beta1 has {there}; write apiVersion {GROUP}/v1 for this form"
    found: Any = item if way else None
    for name in way:
        found = found.get(name) if isinstance(found, dict) else None
    for place, one in enumerate(_each(found)):
        path = f"{'.'.join(way)}[{one.get('name', place)}]"
        for name in [name for name in one if (name not in ("name", "basic") if is_slice else name == "exactly")]:
            yield Severity.ERROR, path, f'unknown field "{name}", which the API server refuses: {hint}'


def _of_version(kind: str, short: str, release: Release | None) -> Iterator[tuple[Severity, str, str]]:
    """Yield that the server does not serve the version, or that it is deprecated. ``release`` is None if unknown."""
    plural = KINDS[kind][0].plural
    first = {it: conversion.first_release(it, plural) for it in conversion.VERSIONS[kind]}
    served = [it for it, since in first.items() if release is None or since is None or release >= since]
    version = f"{GROUP}/{short}"
    if short not in served:
        since = f"{GROUP} has {short} of a {kind} from Kubernetes {first[short]} on"
        remedy = f"write {GROUP}/{served[0]}" if served else f"this one has no {kind}"
        yield Severity.ERROR, "apiVersion", f"Kubernetes {release} does not serve {version} ({since}): {remedy}"
        return
    if kind == "DeviceTaintRule":
        served = [it for it in served if it != "v1"]  # which is new: v1beta2 stays
    if short in served[1:]:
        since = f"(from {first[served[0]]} on)"
        text = f"{version} is deprecated, and later releases do not serve it: write {GROUP}/{served[0]} {since}"
        yield Severity.WARNING, "apiVersion", text


def faults_of_pod(spec: JSON) -> Iterator[tuple[str, str]]:
    """Yield the fields of a pod's spec, its containers and its claims that do not exist.

    The API server reads a priority as a number of 32 bits, and cannot read the object if it is larger.
    """
    priority = spec.get("priority")
    if isinstance(priority, int) and not -INT32_MODULUS // 2 <= priority < INT32_MODULUS // 2:
        yield "spec.priority", f"{priority} has more than 32 bits, which the API server refuses"
    found = [("spec", name, POD_SPEC) for name in spec if name not in POD_SPEC]
    for place, entry in enumerate(_each(spec.get("resourceClaims"))):
        found += _beyond(f"spec.resourceClaims[{place}]", entry, _names(PodResourceClaim))
        if isinstance(entry.get("source"), dict):  # up to 1.30
            found[-1] = (f"spec.resourceClaims[{place}]", "source", frozenset(entry["source"]))
    for kind in _CONTAINERS:
        for container in _each(spec.get(kind)):
            path = f"spec.{kind}[{container.get('name', '')}]"
            found += _beyond(path, container, CONTAINER)
            resources = container.get("resources")
            if isinstance(resources, dict):
                found += _beyond(f"{path}.resources", resources, RESOURCES)
                for place, claim in enumerate(_each(resources.get("claims"))):
                    found += _beyond(f"{path}.resources.claims[{place}]", claim, _names(ContainerClaim))
    for path, name, known in found:
        yield path, f'unknown field "{name}", which the API server refuses{_hint(name, known)}'


REPEATED_KEYS_BYTES: Final = 1 << 20
"""Length of a file up to which keys are looked for that stand twice: it takes as long as reading the file."""
HELD_BYTES: Final = 12 << 20
"""As JSON, of the manifests that are held whole."""


class ManifestText(NamedTuple):
    """An object of a file. Its manifests and the faults of its text are read again when their turn comes, unless they
    are held."""

    item: Item
    held: tuple[Sequence[Manifest], Sequence[Finding]] | None


@dataclass
class Manifests:
    """The objects of files that matter here, in brief behind the first HELD_BYTES; ``others``: kinds that do not.

    ``release``: that of the cluster, or None if there is none.
    """

    namespace: str
    release: Release | None = None
    written: list[ManifestText] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    titles: set[str] = field(default_factory=set)
    own: dict[tuple[type[Object], str], Object] = field(default_factory=dict)
    """All objects but pods, as the cluster would have them."""
    checked: int = 0
    """Objects that ``each`` has handed out, and that were done with."""
    _brief: dict[tuple[type[Object], str], Item] = field(default_factory=dict)
    _left: int = field(default_factory=lambda: HELD_BYTES)

    def read(self, paths: Sequence[str]) -> Manifests:
        """Take the files in. Raises Problem."""
        try:
            for path in files(paths):
                data = data_of(path)
                repeated = _repeated(path, data)
                for item in each_item(path, data=data):
                    self.take(item, repeated.get(item.where, ()))
        except BadInput as error:
            raise Problem(str(error), ExitCode.USAGE) from error
        return self

    @property
    def has_brief(self) -> bool:
        """Whether ``own`` has brief forms."""
        return bool(self._brief)

    def each(self) -> Iterator[tuple[Sequence[Manifest], Sequence[Finding]]]:
        """Yield the manifests of each object, and the faults of its text."""
        for item, held in self.written:
            yield held or _read(item.where, item.value_again(), self.namespace, self.release)
            self.checked += 1

    def whole(self, obj: Object) -> Object | None:
        """Return the object of the files of which ``own`` has the brief form, or None if there is none."""
        item = self._brief.get((type(obj), obj.key)) if is_brief(obj) else None
        if item is None:
            return None
        found, _ = _read(item.where, item.value_again(), self.namespace, self.release)
        return next((it.obj for it in found if (type(it.obj), it.obj.key) == (type(obj), obj.key)), None)

    def take(self, item: Item, more: Sequence[str] = ()) -> None:
        """Take an object in; ``more``: what its text says twice."""
        manifests, faults = _read(item.where, item.value, self.namespace, self.release)
        title = manifests[0].title if manifests else ""
        faults = [
            *faults,
            *(
                Finding(severity=Severity.WARNING, where=item.where, object=title, field="", message=text)
                for text in more
                if title
            ),
        ]
        if not manifests and not faults:
            self.others[_kind(item.value)] += 1
            return
        self._left -= sum(len(encode(it.obj)) for it in manifests)
        item = item.without_value()
        is_held = self._left >= 0 or item.text is None
        self.written.append(ManifestText(item, (manifests, faults) if is_held else None))
        for manifest in manifests:
            self.titles.add(manifest.title)
            obj = manifest.obj
            if not isinstance(obj, Pod):
                place = type(obj), obj.key
                self.own[place] = obj if is_held else in_brief(obj)
                self._brief.pop(place, None)
                if self.own[place] is not obj:
                    self._brief[place] = item


def _repeated(path: str, data: bytes) -> dict[str, list[str]]:
    """Return the keys that stand twice in one place of YAML, by document: kubectl takes the last one in silence."""
    found: dict[str, list[str]] = {}
    if len(data) <= REPEATED_KEYS_BYTES and data.lstrip()[:1] not in (b"{", b"["):
        with suppress(yaml.YAMLError, ValueError, RecursionError):  # which reading says
            for number, line, key in repeated_keys(data):
                text = f"line {line} has {key} once more in the same place, and only the last one counts: keep one"
                found.setdefault(f"{path}: document {number}", []).append(text)
    return found


def _read(
    where: str, whole: JSON, namespace: str, release: Release | None
) -> tuple[Sequence[Manifest], Sequence[Finding]]:
    """The manifests of an object, and the faults of its text.

    An object that cannot be decoded is a finding, not the end: the others are checked all the same.
    """
    manifests: list[Manifest] = []
    faults: list[Finding] = []
    item = without_nulls(whole)
    title, meta = _title(item, namespace)

    def fault(field: str, text: str, severity: Severity = Severity.ERROR) -> None:
        faults.append(Finding(severity=severity, where=where, object=title, field=field, message=text))

    try:
        found_in = list(pod_templates(item))
    except BadInput as error:
        found_in = []
        fault("", str(error))
    for severity, path, text in faults_of(item, release):
        fault(path, text, severity)
    for path, number in too_large(item, "") if item["kind"] in KINDS or found_in else ():
        fault(path, f"{number} has more than 64 bits, which the API server refuses")
    templates = [(f"{it.path}.", it.spec) for it in found_in]
    is_pod = item["kind"] == "Pod" and item.get("apiVersion") == "v1"
    own = item.get("spec", {}) if is_pod else None
    for prefix, spec in [("", own), *templates] if isinstance(own, dict) else templates:
        # Only here: who simulates may leave the containers of a pod out, as they ask for nothing.
        if not spec.get("containers"):
            fault(f"{prefix}spec.containers", "a pod needs a container, and the API server refuses it without one")
        for path, text in faults_of_pod(spec):
            fault(prefix + path, text)
    pods = [(prefix, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}) for prefix, spec in templates]
    for prefix, each in [("", {**item, "metadata": meta}), *pods]:
        try:
            obj = decoded(where, each)
        except BadInput as error:
            is_told = any(it.severity is Severity.ERROR and it.field in ("kind", "apiVersion") for it in faults)
            if prefix or not is_told:
                fault(prefix.rstrip("."), str(error).removeprefix(f"{where}: "))
            continue
        if obj is not None:
            manifests.append(Manifest(where, title, obj, prefix))
    return manifests, faults


def _kind(item: JSON) -> str:
    """The kind, with its group if another group has a kind of the name that is read."""
    group = str(item.get("apiVersion") or "").rpartition("/")[0]
    return f"{item['kind']} of {group}" if item["kind"] in KINDS and group else str(item["kind"])


def _title(item: JSON, namespace: str) -> tuple[str, JSON]:
    """``KIND NAMESPACE/NAME``, and the metadata with both."""
    metadata = item.get("metadata")
    meta = dict(metadata) if isinstance(metadata, dict) else {}
    if isinstance(prefix := meta.get("generateName"), str) and not meta.get("name"):
        meta["name"] = f"{prefix}xxxxx"  # the API server adds five letters or digits
    meta.setdefault("name", None)
    meta.setdefault("namespace", namespace)
    is_global = item["kind"] in ("DeviceClass", "ResourceSlice", "DeviceTaintRule", "Node", "Namespace")
    if is_global:
        del meta["namespace"]
    return f"{item['kind']} {meta['name'] if is_global else '{namespace}/{name}'.format(**meta)}", meta


def _unknown(value: Any, kind: Any, path: str) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Walk a value beside its type; types that are not ours, and wrong values, are left to decoding."""
    kind = _plain(kind)
    if isinstance(value, list) and typing.get_origin(kind) is tuple:
        inner_kind = typing.get_args(kind)[0]
        for place, inner in enumerate(value):
            named = inner.get("name") if isinstance(inner, dict) else None
            yield from _unknown(inner, inner_kind, f"{path}[{named if isinstance(named, str) else place}]")
    elif isinstance(value, dict) and typing.get_origin(kind) is dict:
        for name, inner in value.items():
            yield from _unknown(inner, typing.get_args(kind)[1], f"{path}[{name}]")
    elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = _fields(kind)
        for name, inner in value.items():
            if name not in fields:
                yield path, str(name), fields
            elif name not in _OPEN:
                yield from _unknown(inner, fields[name], f"{path}.{name}" if path else name)


@cache  # of the types of this project: to find out takes longer than all the rest, and makes cycles of references
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(_fields(kind))


def _plain(kind: Any) -> Any:
    """``X`` for ``X | None``."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(one for one in typing.get_args(kind) if one is not type(None))
    return kind


def _each(value: Any) -> Iterator[JSON]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _beyond(path: str, value: JSON, known: frozenset[str]) -> list[tuple[str, str, frozenset[str]]]:
    return [(path, name, known) for name in value if name not in known]


def _hint(name: str, known: Iterable[str]) -> str:
    if name == "source":
        return f": since 1.31 its fields stand beside the name ({', '.join(known)})"
    if name == "resourceClaim" or name == "claims":
        return "; did you mean resources.claims of a container, or resourceClaims of the pod?"
    return _similar(name, known)


def _similar(name: str, known: Iterable[str]) -> str:
    names = list(known)
    lower = {one.lower(): one for one in names}
    found = get_close_matches(name.lower(), lower, 1, 0.6)
    return f'; did you mean "{lower[found[0]]}"?' if found else ""
