"""What is served, where it is kept, and under which rules: the one object that all handlers share."""

from __future__ import annotations

from dra_api.gates import FeatureGates

from .cel_selectors import selector_check
from .errors import Json, no_such_resource
from .kinds import Kind, kind_of
from .store import Collection, Store
from .structure import Resource, Structure
from .target import Target

# Two views of one storage.
_KEPT_AS = {("events.k8s.io", "events"): ("", "events")}


class Registry:
    """``gates`` are the feature gates in force."""

    def __init__(self, gates: FeatureGates) -> None:
        self.structure = Structure.load()
        self.store = Store()
        self.gates = gates
        self.check_selector = selector_check(gates)
        self._kinds: dict[tuple[str, str], Kind] = {}
        for resource in self.structure.resources():
            if "list" in resource.verbs:
                self.collection(resource)

    def find(self, target: Target) -> Resource:
        """The resource of a URL. Raises a 404."""
        resource = self.structure.resource(target.group, target.version, target.plural)
        if resource is None or (target.namespace and not resource.namespaced):
            raise no_such_resource()
        return resource

    def resource(self, group: str, version: str, plural: str) -> Resource:
        """A resource that is served for sure."""
        resource = self.structure.resource(group, version, plural)
        if resource is None:
            raise KeyError((group, version, plural))
        return resource

    def of_collection(self, collection: Collection) -> Resource | None:
        """A resource by which the objects of a collection can be written: of their stored version if possible."""
        served = [
            r for r in self.structure.resources() if (r.group, r.plural) == (collection.group, collection.resource)
        ]
        return served[0] if served else None

    def collection(self, resource: Resource) -> Collection:
        """Where the objects of a resource are."""
        own = (resource.group, resource.plural)
        return self.store.collection(*_KEPT_AS.get(own, own))

    def kind(self, resource: Resource) -> Kind:
        """The rules of a resource."""
        key = (resource.group, resource.plural)
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = kind_of(resource)
        return found

    def add_definition(self, definition: Json) -> None:
        """Serve what a CustomResourceDefinition defines, instead of what it defined before."""
        for resource in self.structure.add_definition(definition):
            self._kinds.pop((resource.group, resource.plural), None)
            self.collection(resource)

    def remove_definition(self, definition: Json) -> None:
        """Serve what a CustomResourceDefinition defines no longer."""
        self.structure.remove_definition(definition)
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        self._kinds.pop((group, plural), None)
        self.store.drop(group, plural)
