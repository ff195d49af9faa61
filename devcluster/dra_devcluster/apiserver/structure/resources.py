"""Which resources the server serves, and the schema of each kind.

The built-in part is data (`dra_devcluster/schema/`: discovery.json and components.json state what Kubernetes servers
say of themselves); CustomResourceDefinitions add and remove resources at run time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from dra_api.releases.release import NEWEST, Release

from dra_devcluster.apiserver.structure.schema import component_of

from .schema import ANY, Components, Json, Schema, compile_structural

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@cache
def load_data(name: str) -> Any:
    """The parsed data file `name` of the package; shared, so callers must not change it."""
    return orjson.loads((files("dra_devcluster") / "schema" / name).read_bytes())


@dataclass(frozen=True, slots=True)
class Subresource:
    """`pods/status` and the like: the verbs it takes and the kind of its body."""

    name: str
    kind: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """One line of discovery, with the schema of its kind. `definition` is the CRD version it comes from, if any."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    schema: Schema
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    definition: Json | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """As error messages name it: `pods`, `resourceclaims.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Structure:
    """All served resources. Look-ups answer None for what is not served."""

    def __init__(self, discovery: list[Json], release: Release = NEWEST) -> None:
        self.release = release
        self.components, self._names = _builtin_components(release)
        self._resources: dict[tuple[str, str, str], Resource] = {}
        self._kinds: dict[tuple[str, str, str], Resource] = {}
        self._bare = Schema(
            "object", name="v1.Object", properties={"metadata": self.components.get(_META)}, preserve=True
        )
        for line in discovery:
            self._add(self._builtin(line))

    @classmethod
    def load(cls, release: Release = NEWEST) -> "Structure":
        """The structure of the built-in kinds. Each server needs its own: CRDs change it."""
        return cls(load_data("discovery.json"), release)

    def resource(self, group: str, version: str, plural: str) -> Resource | None:
        return self._resources.get((group, version, plural))

    def by_kind(self, group: str, version: str, kind: str) -> Resource | None:
        return self._kinds.get((group, version, kind))

    def schema(self, group: str, version: str, kind: str) -> Schema | None:
        """The schema of any known kind, also of those that are not resources (Eviction, DeleteOptions, Scale)."""
        found = self._kinds.get((group, version, kind))
        if found is not None:
            return found.schema
        name = self._names.get((group, version, kind))
        return self.components.get(name) if name else None

    def component_name(self, resource: Resource, kind: str = "") -> str | None:
        """Name of the OpenAPI component of a built-in resource, or of another kind in its group version."""
        return self._names.get((resource.group, resource.version, kind or resource.kind))

    def has_group(self, group: str) -> bool:
        return any(resource.group == group for resource in self._resources.values())

    def resources(self) -> Iterator[Resource]:
        """Every resource in the order of discovery."""
        yield from self._resources.values()

    def add_definition(self, crd: Json) -> list[Resource]:
        """Serve the versions of an accepted CustomResourceDefinition; replaces what it defined before.

        Raises ValueError when a schema cannot be compiled (the message names the version)."""
        added = [_custom(crd, version, self.components.get(_META)) for version in _served(crd)]
        self.remove_definition(crd)
        for resource in added:
            self._add(resource)
        return added

    def remove_definition(self, crd: Json) -> None:
        """Stop serving what this CustomResourceDefinition defined."""
        spec = crd["spec"]
        for key, resource in list(self._resources.items()):
            if resource.definition is not None and key[0] == spec["group"] and key[2] == spec["names"]["plural"]:
                del self._resources[key]
                del self._kinds[resource.group, resource.version, resource.kind]

    def _add(self, resource: Resource) -> None:
        self._resources[resource.group, resource.version, resource.plural] = resource
        self._kinds[resource.group, resource.version, resource.kind] = resource

    def _builtin(self, line: Json) -> Resource:
        name = self._names.get((line["group"], line["version"], line["kind"]))
        return Resource(
            group=line["group"],
            version=line["version"],
            plural=line["resource"],
            kind=line["kind"],
            namespaced=line["scope"] == "Namespaced",
            # Some served kinds have no schema in the data: their objects pass as they are.
            schema=self.components.get(name) if name else self._bare,
            singular=line["singular"],
            short_names=tuple(line["shortNames"]),
            categories=tuple(line["categories"]),
            verbs=tuple(line["verbs"]),
            subresources={
                s["name"]: Subresource(s["name"], s["kind"], tuple(s["verbs"])) for s in line["subresources"]
            },
        )


@cache
def _builtin_components(release: Release) -> tuple[Components, Mapping[tuple[str, str, str], str]]:
    """The OpenAPI components, and the name of each kind's. No structure changes them, so all servers of a release share
    them."""
    raw = {name: component_of(release, name, component) for name, component in load_data("components.json").items()}
    names = {
        (gvk["group"], gvk["version"], gvk["kind"]): name
        for name, component in raw.items()
        for gvk in component.get("x-kubernetes-group-version-kind", ())
    }
    return Components(raw), names


_CUSTOM_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def _served(crd: Json) -> Iterator[Json]:
    return (version for version in crd["spec"].get("versions", ()) if version.get("served"))


def _custom(crd: Json, version: Json, metadata: Schema) -> Resource:
    spec, names = crd["spec"], crd["spec"]["names"]
    raw = version.get("schema", {}).get("openAPIV3Schema") or {"type": "object"}
    try:
        compiled = compile_structural(raw)
    except (AttributeError, TypeError) as fault:
        raise ValueError(
            f"CustomResourceDefinition {crd['metadata']['name']}, version {version['name']}: "
            f"the schema cannot be read: {fault}"
        ) from fault
    schema = replace(compiled, kind="object", name=f"{version['name']}.{names['kind']}")
    text = Schema("string", name="string")
    # The server's own fields have the server's types, whatever the author wrote.
    schema.properties.update(apiVersion=text, kind=text, metadata=metadata)
    subresources = {}
    for name in version.get("subresources") or {}:
        kind = "Scale" if name == "scale" else names["kind"]
        subresources[name] = Subresource(name, kind, ("get", "patch", "update"))
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        schema=schema,
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=_CUSTOM_VERBS,
        subresources=subresources,
        definition=version,
    )


__all__ = ["ANY", "Resource", "Structure", "Subresource", "load_data"]
