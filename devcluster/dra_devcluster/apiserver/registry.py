"""The served resources with their storage, versions and gates: the one object that all handlers share.

Each release of Kubernetes has its versions of ``resource.k8s.io`` and ``scheduling.k8s.io``; answers to requests for
a deprecated one carry a warning. Gates decide which fields exist, and who may write them. New expressions are
compiled, and their cost is limited. Spec: api.md sections 1 and 9, K37-TAINT-01, kubernetes-1.37.md
section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from dra_api import conversion
from dra_api.gates import GATE_OF, Component, FeatureGates
from dra_api.releases import NEWEST, Release
from dra_api.strategy import GATED_FIELDS
from dra_api.validation import SelectorCheck, SelectorVerdict
from dra_cel import CompileError, DerivedAttribute, compile, derived_attributes, device_selectors

from dra_devcluster.apiserver.authorization import Authorization, Mode
from dra_devcluster.apiserver.errors import Json, PathNotFound, ServerError, no_such_resource
from dra_devcluster.apiserver.store import Collection, Store
from dra_devcluster.apiserver.structure import Resource, Structure, load_data
from dra_devcluster.apiserver.wire import Target

OF_WORKLOADS: Final = frozenset({("scheduling.k8s.io", "podgroups"), ("scheduling.k8s.io", "workloads")})
"""Served only with the gate GenericWorkload; in Kubernetes the API version has to be switched on as well."""
_POD_GROUPS: Final = {"v1beta1": (Release.V1_37, None), "v1alpha2": (Release.V1_36, Release.V1_37)}
"""Of PodGroups and Workloads: the first release with the version, and the first one without it."""


def exists_in(release: Release, group: str, version: str, plural: str) -> bool:
    """Whether a server of the release knows this version of the kind; those of other groups are as old as all."""
    if group == "scheduling.k8s.io" and version in _POD_GROUPS:
        first, gone = _POD_GROUPS[version]
        return release >= first and (gone is None or release < gone)
    if group != "resource.k8s.io":
        return True
    since = conversion.first_release(version, plural)
    return since is None or release >= since


_DRA = "resource.k8s.io"
# Group and version: deprecated since, gone in.
_LEAVING = {
    (_DRA, "v1beta1"): (Release.V1_35, "1.38"),
    (_DRA, "v1beta2"): (Release.V1_36, "1.39"),
    (_DRA, "v1alpha3"): (Release.V1_36, "1.39"),
}
# Kinds that have no newer version, or are new themselves.
_STAYING = frozenset({("v1beta2", "devicetaintrules"), ("v1alpha3", "resourcepoolstatusrequests")})


def deprecations(resource: Resource, release: Release) -> list[str]:
    """The texts of the warnings, if any, that a server of the release gives to requests for this version."""
    leaving = _LEAVING.get((resource.group, resource.version))
    if leaving is None or (resource.version, resource.plural) in _STAYING:
        return []
    since, gone = leaving
    if release < since:
        return []
    return [f"{resource.api_version} {resource.kind} is deprecated in v{since}+, unavailable in v{gone}+"]


_ATTRIBUTES: Final = {attribute for fields in GATED_FIELDS.values() for attribute in fields}

API_SERVER: Final = Component(
    "the API server",
    frozenset(GATE_OF[attribute] for attribute in _ATTRIBUTES & GATE_OF.keys())
    # Binding conditions take two gates, one of which has fields of its own.
    | {"DRADeviceBindingConditions", "DRAResourceClaimGranularStatusAuthorization"}
    # What ranges may say, and fields that are refused without their gate.
    | {"DRAFractionalCapacityRange", "DRAPartitionableDevicesType"}
    # Whether PodGroups are served, and pods name them; up to 1.36 whether they have a priority and say how they end.
    | {"GenericWorkload", "WorkloadAwarePreemption"}
    # No field has it: the gate before needs it.
    | {"GangScheduling"},
)


def _check(environment: Callable[..., Any], compiled: Callable[[str, Any], Any], gates: FeatureGates) -> SelectorCheck:
    """The check of expressions with these gates; stored ones may use more than new ones."""
    features = {"consumable_capacity": gates.consumable_capacity, "list_attributes": gates.list_attributes}
    environments = {stored: environment(new=not stored, **features) for stored in (False, True)}

    def check(expression: str, stored: bool) -> SelectorVerdict:
        try:
            return SelectorVerdict(max_cost=compiled(expression, environments[stored]).max_cost)
        except CompileError as error:
            return SelectorVerdict(error=f"compilation failed: {_listing(error)}")

    return check


def _listing(error: CompileError) -> str:
    """All complaints as the real server shows them: each with its line and a mark below."""
    lines = error.expression.split("\n")
    return "\n".join(
        f"ERROR: <input>:{issue.line}:{issue.column}: {issue.message}\n"
        f" | {lines[issue.line - 1] if issue.line <= len(lines) else ''}\n"
        f" | {'.' * (issue.column - 1)}^"
        for issue in error.issues
    )


# Two views of one storage.
_KEPT_AS = {("events.k8s.io", "events"): ("", "events")}


class NodeServerAddress(NamedTuple):
    """A node's own server: ``address`` is host and port, ``key`` the bearer token that it wants to see."""

    address: str
    key: str


class Registry:
    """``gates`` are the feature gates in force; ``versions`` switches API versions off (``{"apps/v1": False}``);
    ``mode`` is how requests are authorized; ``release`` decides which API versions exist.

    Raises ServerError for an unknown version.
    """

    def __init__(
        self, gates: FeatureGates, versions: Mapping[str, bool], mode: Mode, release: Release = NEWEST
    ) -> None:
        self._builtin = Structure.load(release)  # versions that are not served can be stored as well
        self.structure = _served(self._builtin, versions, gates, release)
        self.store = Store()
        self.authorization = Authorization(mode, self.store)
        self.gates = gates
        self.release = release
        self.node_servers: dict[str, NodeServerAddress] = {}
        """By the name of the node, as its agent registered it."""
        self.check_selector = _check(device_selectors, compile, gates)
        self.check_derived = _check(derived_attributes, DerivedAttribute, gates)  # K37-DA-03
        for resource in self.structure.resources():
            if "list" in resource.verbs:
                self.collection(resource)

    def find(self, target: Target) -> Resource:
        """The resource of a URL. Raises a 404, or PathNotFound for a group that is not served."""
        resource = self.structure.resource(target.group, target.version, target.plural)
        if resource is None and not self.structure.has_group(target.group):
            raise PathNotFound
        if resource is None or (target.namespace and not resource.namespaced):
            raise no_such_resource()
        return resource

    def resource(self, group: str, version: str, plural: str) -> Resource:
        """A built-in resource by which the server itself writes, served or not."""
        resource = self._builtin.resource(group, version, plural)
        if resource is None:
            raise KeyError((group, version, plural))
        return resource

    def of_collection(self, collection: Collection) -> Resource | None:
        """The resource by which the server itself writes the objects of a collection; built-in ones as stored."""
        place = (collection.group, collection.resource)
        resources = chain(self._builtin.resources(), self.structure.resources())
        return next((resource for resource in resources if (resource.group, resource.plural) == place), None)

    def collection(self, resource: Resource) -> Collection:
        own = (resource.group, resource.plural)
        return self.store.collection(*_KEPT_AS.get(own, own))

    def add_definition(self, definition: Json) -> None:
        """Serve what a CustomResourceDefinition defines, instead of what it defined before."""
        for resource in self.structure.add_definition(definition):
            self.collection(resource)

    def remove_definition(self, definition: Json) -> None:
        self.structure.remove_definition(definition)
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        self.store.drop(group, plural)


def _served(builtin: Structure, versions: Mapping[str, bool], gates: FeatureGates, release: Release) -> Structure:
    known = {resource.api_version for resource in builtin.resources()}
    if unknown := sorted(versions.keys() - known):
        raise ServerError(f"unknown API versions {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    served = [
        line
        for line in load_data("discovery.json")
        if versions.get(f"{line['group']}/{line['version']}".lstrip("/"), True)
        and (gates.generic_workload or (line["group"], line["resource"]) not in OF_WORKLOADS)
        and exists_in(release, line["group"], line["version"], line["resource"])
    ]
    return Structure(served, release)
