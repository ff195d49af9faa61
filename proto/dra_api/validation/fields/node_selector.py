"""Node selectors, as slices, devices and allocations have them: the rules of core/v1.

Where devices can be used: one node, selected nodes, all nodes, or each device for itself.

A slice chooses, or leaves the choice to each of its devices. Spec: api.md section 4.
"""

from __future__ import annotations

from dra_api.core import NodeSelector, NodeSelectorRequirement
from dra_api.resource import Device, ResourceSliceSpec
from dra_api.validation.errors import Errors, forbidden, invalid, required
from dra_api.validation.formats import checked, dns_subdomain, label_key, label_value


def node_selector(selector: NodeSelector, path: str) -> Errors:
    """At least one term; every requirement has a key, an operator, and as many values as the operator takes."""
    if not selector.node_selector_terms:
        yield required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(selector.node_selector_terms or ()):
        term_path = f"{path}.nodeSelectorTerms[{index}]"
        for position, requirement in enumerate(term.match_expressions or ()):
            yield from _label_requirement(requirement, f"{term_path}.matchExpressions[{position}]")
        for position, requirement in enumerate(term.match_fields or ()):
            yield from _field_requirement(requirement, f"{term_path}.matchFields[{position}]")


def _label_requirement(requirement: NodeSelectorRequirement, path: str) -> Errors:
    values = requirement.values or ()
    match requirement.operator:
        case "In" | "NotIn":
            if not values:
                yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield forbidden(f"{path}.values", detail)
        case "Gt" | "Lt":
            if len(values) != 1:
                yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        case operator:
            yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    yield from checked(label_key, requirement.key, f"{path}.key")
    for index, value in enumerate(values):
        yield from checked(label_value, value, f"{path}.values[{index}]")


def _field_requirement(requirement: NodeSelectorRequirement, path: str) -> Errors:
    values = requirement.values or ()
    if requirement.operator not in ("In", "NotIn"):
        yield invalid(f"{path}.operator", requirement.operator, "not a valid selector operator")
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", detail)
    if requirement.key != "metadata.name":
        yield invalid(f"{path}.key", requirement.key, "not a valid field selector key")
        return
    for index, value in enumerate(values):
        yield from checked(dns_subdomain, value, f"{path}.values[{index}]")


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
