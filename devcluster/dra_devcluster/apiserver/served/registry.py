"""The served resources and their storage: the one object that all handlers share."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from dra_api.releases.gates import FeatureGates
from dra_api.releases.release import NEWEST, Release

from dra_devcluster.apiserver.authorization import Authorization, Mode
from dra_devcluster.apiserver.errors import Json, PathNotFound, ServerError, no_such_resource
from dra_devcluster.apiserver.storage.store import Collection, Store
from dra_devcluster.apiserver.structure import Resource, Structure, load_data
from dra_devcluster.apiserver.wire.bodies import Target

from .api_versions import OF_WORKLOADS, exists_in
from .cel_selectors import derived_check, selector_check

# Two views of one storage.
_KEPT_AS = {("events.k8s.io", "events"): ("", "events")}


class NodeServer(NamedTuple):
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
        self.node_servers: dict[str, NodeServer] = {}
        """By the name of the node, as its agent registered it."""
        self.check_selector = selector_check(gates)
        self.check_derived = derived_check(gates)
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
        """Where the objects of a resource are."""
        own = (resource.group, resource.plural)
        return self.store.collection(*_KEPT_AS.get(own, own))

    def add_definition(self, definition: Json) -> None:
        """Serve what a CustomResourceDefinition defines, instead of what it defined before."""
        for resource in self.structure.add_definition(definition):
            self.collection(resource)

    def remove_definition(self, definition: Json) -> None:
        """Stop serving what a CustomResourceDefinition defines."""
        self.structure.remove_definition(definition)
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        self.store.drop(group, plural)


def _served(builtin: Structure, versions: Mapping[str, bool], gates: FeatureGates, release: Release) -> Structure:
    known = {resource.api_version for resource in builtin.resources()}
    if unknown := sorted(versions.keys() - known):
        raise ServerError(f"unknown API versions {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    lines = [line for line in load_data("discovery.json") if versions.get(_api_version(line), True)]
    lines = [line for line in lines if gates.generic_workload or (line["group"], line["resource"]) not in OF_WORKLOADS]
    served = [line for line in lines if exists_in(release, line["group"], line["version"], line["resource"])]
    return Structure(served, release)


def _api_version(line: Json) -> str:
    return f"{line['group']}/{line['version']}".lstrip("/")
