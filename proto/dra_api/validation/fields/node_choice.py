"""Where devices can be used: one node, selected nodes, all nodes, or each device for itself.

A slice chooses, or leaves the choice to each of its devices. Spec: api.md section 4.
"""

from __future__ import annotations

from dra_api.resource import Device, ResourceSliceSpec
from dra_api.validation.errors import Errors, invalid, required
from dra_api.validation.formats import checked, dns_subdomain

from .node_selector import node_selector


def node_choice(item: ResourceSliceSpec | Device, path: str, one_of: str) -> Errors:
    """Exactly one of the fields is set; ``one_of`` is the text of the error."""
    chosen = []
    if item.node_name:
        chosen.append("`nodeName`")
        yield from checked(dns_subdomain, item.node_name, f"{path}.nodeName")
    elif item.node_name is not None:
        yield invalid(f"{path}.nodeName", "", "must be either unset or set to a non-empty string")
    if item.node_selector is not None:
        chosen.append("`nodeSelector`")
        yield from node_selector(item.node_selector, f"{path}.nodeSelector")
    flags = {"allNodes": item.all_nodes}
    if isinstance(item, ResourceSliceSpec):
        flags["perDeviceNodeSelection"] = item.per_device_node_selection
    for name, flag in flags.items():
        if flag:
            chosen.append(f"`{name}`")
        elif flag is not None:
            yield invalid(f"{path}.{name}", False, "must be either unset or set to true")
    if not chosen:
        yield required(path, one_of)
    elif len(chosen) > 1:
        yield invalid(path, f"{{{', '.join(chosen)}}}", f"{one_of}, but multiple fields are set")
