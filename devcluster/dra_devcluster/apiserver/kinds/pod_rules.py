"""Validation of pods: containers, hooks and probes, rules about other pods, and updates.

Gates may only be removed, and the nodes of a gated pod may only be narrowed. The owner of a gate may choose the pod's
node before it removes the gate: it may add labels to ``spec.nodeSelector``, and append requirements to the terms of the
required node affinity. A pod without such terms may get any. After the last gate is gone none of this may change."""

from __future__ import annotations

from copy import deepcopy
from ipaddress import ip_address
from typing import Any

from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds.resources import containers_of, validate_resources
from dra_devcluster.apiserver.metadata import (
    dig,
    entries,
    has_form,
    label,
    needs,
    not_negative,
    not_seen,
    one_of,
    qualified_name,
    subdomain,
)

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")


def validate_handlers(container: Json, path: str) -> Errors:
    for name, hook in (container.get("lifecycle") or {}).items():
        if name in ("postStart", "preStop"):
            yield from _handler(hook, f"{path}.lifecycle.{name}", _HOOK_HANDLERS)
    for name in _PROBES:
        if (probe := container.get(name)) is None:
            continue
        yield from _handler(probe, f"{path}.{name}", _PROBE_HANDLERS)
        yield from not_negative(probe, f"{path}.{name}", *_NUMBERS)
        if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            yield faults.invalid(f"{path}.{name}.successThreshold", probe["successThreshold"], "must be 1")


def _handler(holder: Json, path: str, known: tuple[str, ...]) -> Errors:
    given = [name for name in known if holder.get(name) is not None]
    if not given:
        yield faults.required(path, "must specify a handler type")
    for name in given[1:]:
        yield faults.forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    if given[:1] == ["exec"]:
        yield from needs(holder["exec"], f"{path}.exec", "command")
    if given[:1] == ["httpGet"]:
        asked = holder["httpGet"]
        if isinstance(asked.get("port"), int):
            yield from _port(asked["port"], f"{path}.httpGet.port")
        yield from one_of(asked.get("scheme", "HTTP"), f"{path}.httpGet.scheme", ("HTTP", "HTTPS"))


def _port(number: int, path: str) -> Errors:
    if not 0 < number < 65536:
        yield faults.invalid(path, number, "must be between 1 and 65535, inclusive")


_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
}
_FORMS = {"nodeName": subdomain, "serviceAccountName": subdomain, "hostname": label, "subdomain": label}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UPDATE_REFUSAL = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"


def validate_spec(spec: Json) -> Errors:
    yield from needs(spec, "spec", "containers")
    if spec.get("activeDeadlineSeconds", 1) < 1:
        detail = "must be between 1 and 2147483647, inclusive"
        yield faults.invalid("spec.activeDeadlineSeconds", spec["activeDeadlineSeconds"], detail)
    yield from metadata.validate_labels(spec.get("nodeSelector"), "spec.nodeSelector")
    for field, rule in _FORMS.items():
        if spec.get(field):
            yield from has_form(spec[field], f"spec.{field}", rule)
    if spec.get("os") is not None:
        yield from needs(spec["os"], "spec.os", "name")
        if name := spec["os"].get("name"):
            yield from one_of(name, "spec.os", ("linux", "windows"))
    if (spec.get("resources") or {}).get("claims"):
        yield faults.forbidden("spec.resources.claims", "claims may not be set for Resources at pod-level")
    volumes: set[str] = set()
    for path, volume in entries(spec, "volumes", "spec"):
        yield from _name(volume, path, volumes)
    names: set[str] = set()
    for path, container in containers_of(spec):
        yield from _container(container, path, names, volumes)
    for field, choices in _CHOICES.items():
        yield from one_of(spec.get(field), f"spec.{field}", choices)
    for path, toleration in entries(spec, "tolerations", "spec"):
        yield from _toleration(toleration, path)
    yield from _gates(spec)
    yield from _node_terms(spec)
    yield from _affinity_and_spread(spec)


def validate_new(spec: Json) -> Errors:
    """Faults of fields that a new pod must not have."""
    if spec.get("ephemeralContainers"):
        yield faults.forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        yield faults.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _toleration(toleration: Json, path: str) -> Errors:
    key, operator = toleration.get("key", ""), toleration.get("operator", "Equal")
    effect = toleration.get("effect", "")
    if key:
        yield from has_form(key, f"{path}.key", qualified_name)
    elif operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield faults.invalid(f"{path}.operator", operator, why)
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        yield faults.invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
    yield from one_of(operator, f"{path}.operator", ("Equal", "Exists"))
    if operator == "Exists" and toleration.get("value"):
        yield faults.invalid(f"{path}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    if effect:
        yield from one_of(effect, f"{path}.effect", _EFFECTS)


def _node_terms(spec: Json) -> Errors:
    required = dig(spec, f"affinity.nodeAffinity.{_REQUIRED}")
    if required is None:
        return
    if not required.get("nodeSelectorTerms"):
        yield faults.required(_TERMS, "must have at least one node selector term")
    for path, term in entries(required, "nodeSelectorTerms", _TERMS.rpartition(".")[0]):
        for here, wish in entries(term, "matchFields", path):
            yield from _field_requirement(wish, here)
        for here, wish in entries(term, "matchExpressions", path):
            if wish.get("operator", "") not in ("Gt", "Lt"):
                yield from _expression(wish, here)
            elif len(wish.get("values") or ()) != 1:
                why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                yield faults.required(f"{here}.values", why)


def _field_requirement(wish: Json, path: str) -> Errors:
    if wish.get("operator") not in ("In", "NotIn"):
        yield faults.invalid(f"{path}.operator", wish.get("operator", ""), "not a valid selector operator")
    elif len(wish.get("values") or ()) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield faults.required(f"{path}.values", why)
    if wish.get("key") != "metadata.name":
        yield faults.invalid(f"{path}.key", wish.get("key", ""), "not a valid field selector key")


def _expression(wish: Json, path: str) -> Errors:
    """Faults of operator and values of a requirement that labels or nodes may have."""
    operator, values = wish.get("operator", ""), wish.get("values")
    if operator in ("In", "NotIn"):
        if not values:
            yield faults.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield faults.forbidden(f"{path}.values", text)
    else:
        yield faults.invalid(f"{path}.operator", operator, "not a valid selector operator")


def _name(item: Json, path: str, taken: set[str]) -> Errors:
    name = item.get("name", "")
    if not name:
        yield faults.required(f"{path}.name")
    elif why := label(name):
        yield faults.invalid(f"{path}.name", name, why)
    elif name in taken:
        yield faults.duplicate(f"{path}.name", name)
    taken.add(name)


def _container(container: Json, path: str, names: set[str], volumes: set[str]) -> Errors:
    yield from _name(container, path, names)
    yield from needs(container, path, "image")
    if (image := container.get("image", "")) != image.strip():
        yield faults.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    policy = container.get("imagePullPolicy", "Always")
    yield from one_of(policy, f"{path}.imagePullPolicy", ("Always", "IfNotPresent", "Never"))
    for here, variable in entries(container, "env", path):
        yield from needs(variable, here, "name")
        if variable.get("value") and variable.get("valueFrom") is not None:
            yield faults.invalid(f"{here}.valueFrom", "", "may not be specified when `value` is not empty")
    for here, port in entries(container, "ports", path):
        yield from needs(port, here, "containerPort")
        if number := port.get("containerPort"):
            yield from _port(number, f"{here}.containerPort")
        yield from one_of(port.get("protocol", "TCP"), f"{here}.protocol", ("SCTP", "TCP", "UDP"))
    places: set[str] = set()
    for here, mount in entries(container, "volumeMounts", path):
        if mount.get("name") not in volumes:
            yield faults.not_found(f"{here}.name", mount.get("name", ""))
        yield from needs(mount, here, "mountPath")
        if (place := mount.get("mountPath")) in places:
            yield faults.invalid(f"{here}.mountPath", place, "must be unique")
        if place:
            places.add(place)
    yield from validate_handlers(container, path)
    yield from validate_resources(container.get("resources") or {}, f"{path}.resources")


def status_faults(status: Json) -> Errors:
    for path, condition in entries(status, "conditions", "status"):
        yield from has_form(condition.get("type", ""), f"{path}.Type", qualified_name)
    for path, address in entries(status, "podIPs", "status"):
        yield from has_form(address.get("ip", ""), path, _address)


def _address(text: str) -> str | None:
    try:
        ip_address(text)
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    return None


def validate_update(spec: Json, old: Json) -> Errors:
    """Only a few fields of a pod's spec may change."""
    former, wanted = (_tolerations(each) for each in (old, spec))
    if not all(item in wanted for item in former):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield faults.forbidden("spec.tolerations", why)
    yield from _gates_update(spec, old)
    is_gated = bool(old.get("schedulingGates"))
    if old.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        old = {**old, "terminationGracePeriodSeconds": 1}
    if _fixed_part(spec, is_gated=is_gated) != _fixed_part(old, is_gated=is_gated):
        yield faults.forbidden("spec", _UPDATE_REFUSAL)


def _tolerations(spec: Json) -> list[Json]:
    """The tolerations without their seconds, which may change."""
    found = spec.get("tolerations") or ()
    return [{key: value for key, value in item.items() if key != "tolerationSeconds"} for item in found]


def _fixed_part(spec: Json, *, is_gated: bool) -> Json:
    """The spec without the fields that may change, some of which are checked elsewhere."""
    free = ["activeDeadlineSeconds", "tolerations", "schedulingGates", *(["nodeSelector"] if is_gated else [])]
    fixed = deepcopy({key: value for key, value in spec.items() if key not in free})
    if is_gated:
        others = fixed.pop("affinity", None) or {}
        others.pop("nodeAffinity", None)
        fixed |= {"affinity": others} if others else {}
    for key in ("containers", "initContainers"):
        for container in fixed.get(key) or ():
            container.pop("image", None)
    return fixed


_EMPTY = "can not be empty"
_POSITIVE = "must be greater than zero"


def _affinity_and_spread(spec: Json) -> Errors:
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity, path = dig(spec, f"affinity.{kind}") or {}, f"spec.affinity.{kind}"
        for here, term in entries(affinity, _REQUIRED, path):
            yield from _term(term, here)
        for here, weighted in entries(affinity, _PREFERRED, path):
            if not 0 < weighted.get("weight", 0) <= 100:
                yield faults.invalid(f"{here}.weight", weighted.get("weight", 0), "must be in the range 1-100")
            yield from _term(weighted.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    seen: set[tuple[str, str]] = set()
    for here, constraint in entries(spec, "topologySpreadConstraints", "spec"):
        yield from _constraint(constraint, here, seen)


def _term(term: Json, path: str) -> Errors:
    for field in ("labelSelector", "namespaceSelector"):
        yield from _selector(term.get(field), f"{path}.{field}")
    if not term.get("topologyKey"):
        yield faults.required(f"{path}.topologyKey", _EMPTY)
    else:
        yield from has_form(term["topologyKey"], f"{path}.topologyKey", qualified_name)


def _constraint(constraint: Json, path: str, seen: set[tuple[str, str]]) -> Errors:
    key, action = constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")
    if constraint.get("maxSkew", 0) < 1:
        yield faults.invalid(f"{path}.maxSkew", constraint.get("maxSkew", 0), _POSITIVE)
    if not key:
        yield faults.required(f"{path}.topologyKey", _EMPTY)
    yield from one_of(action, f"{path}.whenUnsatisfiable", ("DoNotSchedule", "ScheduleAnyway"))
    yield from not_seen((key, action), seen, f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
    if (domains := constraint.get("minDomains")) is not None:
        if domains < 1:
            yield faults.invalid(f"{path}.minDomains", domains, _POSITIVE)
        if action != "DoNotSchedule":
            why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield faults.invalid(f"{path}.minDomains", domains, why)
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        yield from one_of(constraint.get(field, "Honor"), f"{path}.{field}", ("Honor", "Ignore"))
    yield from _selector(constraint.get("labelSelector"), f"{path}.labelSelector")


def _selector(selector: Json | None, path: str) -> Errors:
    for here, wish in entries(selector or {}, "matchExpressions", path):
        yield from _expression(wish, here)
        yield from has_form(wish.get("key", ""), f"{here}.key", qualified_name)


def _gates(spec: Json) -> Errors:
    seen: set[str] = set()
    for path, gate in entries(spec, "schedulingGates", "spec"):
        name = gate.get("name", "")
        yield from has_form(name, path, qualified_name)
        yield from not_seen(name, seen, path, name)


def _gates_update(spec: Json, old: Json) -> Errors:
    """Faults of what an update does to gates, and to the choice of nodes of a pod that has some."""
    gates = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    for path, gate in entries(spec, "schedulingGates", "spec"):
        if gate.get("name") not in gates:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield faults.forbidden(f"{path}.name", text)
    if gates:
        selector = spec.get("nodeSelector") or {}
        if any(selector.get(label) != value for label, value in (old.get("nodeSelector") or {}).items()):
            why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            yield faults.invalid("spec.nodeSelector", selector, why)
        yield from _narrowed_terms(_terms(spec), _terms(old))


def _terms(spec: Json) -> list[Any]:
    return (dig(spec, f"affinity.nodeAffinity.{_REQUIRED}") or {}).get("nodeSelectorTerms") or []


def _narrowed_terms(new: list[Json], old: list[Json]) -> Errors:
    if old and len(new) != len(old):
        yield faults.invalid(_TERMS, new, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    for index, (term, former) in enumerate(zip(new, old, strict=False)):
        if not _has_only_additions(term, former):
            why = "only additions are allowed (no mutations or deletions)"
            yield faults.invalid(f"{_TERMS}[{index}]", term, why)


def _has_only_additions(new: Json, old: Json) -> bool:
    """A term without requirements selects no node, and must stay so."""
    fields = ("matchExpressions", "matchFields")
    if not any(old.get(field) for field in fields):
        return not any(new.get(field) for field in fields)
    return all((new.get(field) or [])[: len(before)] == before for field in fields if (before := old.get(field)))
