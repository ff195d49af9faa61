"""Validation of pods: containers, hooks and probes, rules about other pods, and updates.

Gates may only be removed, and the nodes of a gated pod may only be narrowed. The owner of a gate may choose the pod's
node before it removes the gate: it may add labels to ``spec.nodeSelector``, and append requirements to the terms of the
required node affinity. A pod without such terms may get any. After the last gate is gone none of this may change."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from ipaddress import ip_address

from dra_api.validation import formats as faults
from dra_api.validation.formats import FieldError

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds.resources import containers_of, validate_resources

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_ONE_SUCCESS = ("livenessProbe", "startupProbe")
_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_SCHEMES = ("HTTP", "HTTPS")


def validate_handlers(container: Json, path: str) -> Iterator[FieldError]:
    """Faults of the probes and hooks of a container."""
    for name, hook in (container.get("lifecycle") or {}).items():
        if name in ("postStart", "preStop"):
            yield from _handler(hook, f"{path}.lifecycle.{name}", _HOOK_HANDLERS)
    for name in _PROBES:
        if (probe := container.get(name)) is not None:
            yield from _handler(probe, f"{path}.{name}", _PROBE_HANDLERS)
            yield from _numbers(name, probe, f"{path}.{name}")


def _handler(holder: Json, path: str, known: tuple[str, ...]) -> Iterator[FieldError]:
    given = [name for name in known if holder.get(name) is not None]
    if not given:
        yield faults.required(path, "must specify a handler type")
    for name in given[1:]:
        yield faults.forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    if given[:1] == ["exec"] and not holder["exec"].get("command"):
        yield faults.required(f"{path}.exec.command")
    if given[:1] == ["httpGet"]:
        port, scheme = holder["httpGet"].get("port"), holder["httpGet"].get("scheme", "HTTP")
        if isinstance(port, int) and not 0 < port < 65536:
            yield faults.invalid(f"{path}.httpGet.port", port, "must be between 1 and 65535, inclusive")
        if scheme not in _SCHEMES:
            yield faults.not_supported(f"{path}.httpGet.scheme", scheme, _SCHEMES)


def _numbers(name: str, probe: Json, path: str) -> Iterator[FieldError]:
    for number in _NUMBERS:
        if probe.get(number, 0) < 0:
            yield faults.invalid(f"{path}.{number}", probe[number], "must be greater than or equal to 0")
    if name in _ONE_SUCCESS and probe.get("successThreshold", 1) != 1:
        yield faults.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")


_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_SYSTEMS = ("linux", "windows")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_UPDATE_REFUSAL = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_spec(spec: Json) -> Iterator[FieldError]:
    """Faults of a pod's spec."""
    if not spec.get("containers"):
        yield faults.required("spec.containers")
    if spec.get("activeDeadlineSeconds", 1) < 1:
        detail = "must be between 1 and 2147483647, inclusive"
        yield faults.invalid("spec.activeDeadlineSeconds", spec["activeDeadlineSeconds"], detail)
    yield from metadata.validate_labels(spec.get("nodeSelector"), "spec.nodeSelector")
    yield from _names(spec)
    yield from _system(spec)
    if (spec.get("resources") or {}).get("claims"):
        yield faults.forbidden("spec.resources.claims", "claims may not be set for Resources at pod-level")
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        yield from _name(volume, f"spec.volumes[{index}]", volumes)
    names: set[str] = set()
    for path, container in containers_of(spec):
        yield from _container(container, path, names, volumes)
    for field, choices in _CHOICES.items():
        if spec.get(field) not in choices:
            yield faults.not_supported(f"spec.{field}", spec.get(field), choices)
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(toleration, f"spec.tolerations[{index}]")
    yield from validate_gates(spec)
    required = metadata.dig(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        yield from _node_terms(required.get("nodeSelectorTerms") or [])
    yield from affinity_and_spread(spec)


def _names(spec: Json) -> Iterator[FieldError]:
    for field in ("nodeName", "serviceAccountName"):
        if spec.get(field) and (why := metadata.subdomain(spec[field])):
            yield faults.invalid(f"spec.{field}", spec[field], why)
    for field in ("hostname", "subdomain"):
        if spec.get(field) and (why := metadata.label(spec[field])):
            yield faults.invalid(f"spec.{field}", spec[field], why)


def _system(spec: Json) -> Iterator[FieldError]:
    if spec.get("os") is None:
        return
    name = spec["os"].get("name", "")
    if not name:
        yield faults.required("spec.os.name")
    elif name not in _SYSTEMS:
        yield faults.not_supported("spec.os", name, _SYSTEMS)


def validate_new(spec: Json) -> Iterator[FieldError]:
    """Faults of fields that a new pod must not have."""
    if spec.get("ephemeralContainers"):
        yield faults.forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        yield faults.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _toleration(toleration: Json, path: str) -> Iterator[FieldError]:
    key, operator = toleration.get("key", ""), toleration.get("operator", "Equal")
    effect = toleration.get("effect", "")
    if key and (why := metadata.qualified_name(key)):
        yield faults.invalid(f"{path}.key", key, why)
    if not key and operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield faults.invalid(f"{path}.operator", operator, why)
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        yield faults.invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
    if operator not in ("Equal", "Exists"):
        yield faults.not_supported(f"{path}.operator", operator, ("Equal", "Exists"))
    elif operator == "Exists" and toleration.get("value"):
        yield faults.invalid(f"{path}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    if effect and effect not in _EFFECTS:
        yield faults.not_supported(f"{path}.effect", effect, _EFFECTS)


def _node_terms(terms: list[Json]) -> Iterator[FieldError]:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if not terms:
        yield faults.required(path, "must have at least one node selector term")
    for number, term in enumerate(terms):
        yield from _match_fields(term, f"{path}[{number}]")
        for index, wish in enumerate(term.get("matchExpressions") or ()):
            here, operator, values = (
                f"{path}[{number}].matchExpressions[{index}]",
                wish.get("operator", ""),
                wish.get("values"),
            )
            if operator not in ("Gt", "Lt"):
                yield from _expression(wish, here)
            elif len(values or ()) != 1:
                yield faults.required(
                    f"{here}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
                )


def _expression(wish: Json, path: str) -> Iterator[FieldError]:
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


def _match_fields(term: Json, path: str) -> Iterator[FieldError]:
    for index, wish in enumerate(term.get("matchFields") or ()):
        here = f"{path}.matchFields[{index}]"
        if wish.get("operator") not in ("In", "NotIn"):
            yield faults.invalid(f"{here}.operator", wish.get("operator", ""), "not a valid selector operator")
        elif len(wish.get("values") or ()) != 1:
            why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            yield faults.required(f"{here}.values", why)
        if wish.get("key") != "metadata.name":
            yield faults.invalid(f"{here}.key", wish.get("key", ""), "not a valid field selector key")


def _name(item: Json, path: str, taken: set[str]) -> Iterator[FieldError]:
    name = item.get("name", "")
    if not name:
        yield faults.required(f"{path}.name")
    elif why := metadata.label(name):
        yield faults.invalid(f"{path}.name", name, why)
    elif name in taken:
        yield faults.duplicate(f"{path}.name", name)
    taken.add(name)


def _environment(container: Json, path: str) -> Iterator[FieldError]:
    for index, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            yield faults.required(f"{path}.env[{index}].name")
        if variable.get("value") and variable.get("valueFrom") is not None:
            why = "may not be specified when `value` is not empty"
            yield faults.invalid(f"{path}.env[{index}].valueFrom", "", why)


def _container(container: Json, path: str, names: set[str], volumes: set[str]) -> Iterator[FieldError]:
    yield from _name(container, path, names)
    if not container.get("image"):
        yield faults.required(f"{path}.image")
    elif container["image"] != container["image"].strip():
        yield faults.invalid(f"{path}.image", container["image"], "must not have leading or trailing whitespace")
    if container.get("imagePullPolicy", "Always") not in _PULL_POLICIES:
        yield faults.not_supported(f"{path}.imagePullPolicy", container["imagePullPolicy"], _PULL_POLICIES)
    yield from _environment(container, path)
    for index, port in enumerate(container.get("ports") or ()):
        number = port.get("containerPort", 0)
        if not number:
            yield faults.required(f"{path}.ports[{index}].containerPort")
        elif not 0 < number < 65536:
            yield faults.invalid(
                f"{path}.ports[{index}].containerPort", number, "must be between 1 and 65535, inclusive"
            )
        if port.get("protocol", "TCP") not in _PROTOCOLS:
            yield faults.not_supported(f"{path}.ports[{index}].protocol", port["protocol"], _PROTOCOLS)
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            yield faults.not_found(f"{path}.volumeMounts[{index}].name", mount.get("name", ""))
        if not mount.get("mountPath"):
            yield faults.required(f"{path}.volumeMounts[{index}].mountPath")
        elif mount["mountPath"] in places:
            yield faults.invalid(f"{path}.volumeMounts[{index}].mountPath", mount["mountPath"], "must be unique")
        places.add(mount.get("mountPath", ""))
    yield from validate_handlers(container, path)
    yield from validate_resources(container.get("resources") or {}, f"{path}.resources")


def status_faults(status: Json) -> Iterator[FieldError]:
    """Faults of conditions and addresses in a pod's status."""
    for index, condition in enumerate(status.get("conditions") or ()):
        if why := metadata.qualified_name(condition.get("type", "")):
            yield faults.invalid(f"status.conditions[{index}].Type", condition.get("type", ""), why)
    for index, address in enumerate(status.get("podIPs") or ()):
        if not _is_address(address.get("ip", "")):
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            yield faults.invalid(f"status.podIPs[{index}]", address.get("ip", ""), why)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def validate_update(spec: Json, old: Json) -> Iterator[FieldError]:
    """Only a few fields of a pod's spec may change."""
    if not _only_additions(spec.get("tolerations") or [], old.get("tolerations") or []):
        yield faults.forbidden(
            "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
        )
    yield from validate_gates_update(spec, old)
    is_gated = bool(old.get("schedulingGates"))
    if old.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        old = {**old, "terminationGracePeriodSeconds": 1}
    if _fixed_part(spec, is_gated=is_gated) != _fixed_part(old, is_gated=is_gated):
        yield faults.forbidden("spec", _UPDATE_REFUSAL)


def _only_additions(new: list[Json], old: list[Json]) -> bool:
    def identities(items: list[Json]) -> list[Json]:
        return [{key: value for key, value in item.items() if key != "tolerationSeconds"} for item in items]

    wanted = identities(new)
    return all(item in wanted for item in identities(old))


def _fixed_part(spec: Json, *, is_gated: bool) -> Json:
    """The spec without the fields that may change, some of which are checked elsewhere."""
    free = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    fixed = deepcopy({key: value for key, value in spec.items() if key not in free})
    if is_gated:
        fixed = without_choice_of_nodes(fixed)
    for key in ("containers", "initContainers"):
        for container in fixed.get(key) or ():
            container.pop("image", None)
    return fixed


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = ("Honor", "Ignore")
_EMPTY = "can not be empty"
_POSITIVE = "must be greater than zero"


def affinity_and_spread(spec: Json) -> Iterator[FieldError]:
    """Faults of a pod's spec."""
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = metadata.dig(spec, f"affinity.{kind}") or {}
        path = f"spec.affinity.{kind}"
        for number, term in enumerate(affinity.get(_REQUIRED) or ()):
            yield from _term(term, f"{path}.{_REQUIRED}[{number}]")
        for number, weighted in enumerate(affinity.get(_PREFERRED) or ()):
            here = f"{path}.{_PREFERRED}[{number}]"
            if not 0 < weighted.get("weight", 0) <= 100:
                yield faults.invalid(f"{here}.weight", weighted.get("weight", 0), "must be in the range 1-100")
            yield from _term(weighted.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    seen: set[tuple[str, str]] = set()
    for number, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        yield from _constraint(constraint, f"spec.topologySpreadConstraints[{number}]", seen)


def _term(term: Json, path: str) -> Iterator[FieldError]:
    yield from _selector(term.get("labelSelector"), f"{path}.labelSelector")
    yield from _selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    if not term.get("topologyKey"):
        yield faults.required(f"{path}.topologyKey", _EMPTY)
    elif why := metadata.qualified_name(term["topologyKey"]):
        yield faults.invalid(f"{path}.topologyKey", term["topologyKey"], why)


def _constraint(constraint: Json, path: str, seen: set[tuple[str, str]]) -> Iterator[FieldError]:
    key, action = constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")
    if constraint.get("maxSkew", 0) < 1:
        yield faults.invalid(f"{path}.maxSkew", constraint.get("maxSkew", 0), _POSITIVE)
    if not key:
        yield faults.required(f"{path}.topologyKey", _EMPTY)
    if action not in _ACTIONS:
        yield faults.not_supported(f"{path}.whenUnsatisfiable", action, _ACTIONS)
    if (key, action) in seen:
        yield faults.duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
    seen.add((key, action))
    if (domains := constraint.get("minDomains")) is not None:
        if domains < 1:
            yield faults.invalid(f"{path}.minDomains", domains, _POSITIVE)
        if action != "DoNotSchedule":
            why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield faults.invalid(f"{path}.minDomains", domains, why)
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if constraint.get(field) not in (None, *_POLICIES):
            yield faults.not_supported(f"{path}.{field}", constraint[field], _POLICIES)
    yield from _selector(constraint.get("labelSelector"), f"{path}.labelSelector")


def _selector(selector: Json | None, path: str) -> Iterator[FieldError]:
    for number, wish in enumerate((selector or {}).get("matchExpressions") or ()):
        here = f"{path}.matchExpressions[{number}]"
        yield from _expression(wish, here)
        if why := metadata.qualified_name(wish.get("key", "")):
            yield faults.invalid(f"{here}.key", wish.get("key", ""), why)


_TERMS = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"


def validate_gates(spec: Json) -> Iterator[FieldError]:
    """Faults of the names of a pod's gates."""
    seen: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name, path = gate.get("name", ""), f"spec.schedulingGates[{index}]"
        if why := metadata.qualified_name(name):
            yield faults.invalid(path, name, why)
        if name in seen:
            yield faults.duplicate(path, name)
        seen.add(name)


def validate_gates_update(spec: Json, old: Json) -> Iterator[FieldError]:
    """Faults of what an update does to gates, and to the choice of nodes of a pod that has some."""
    gates = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield faults.forbidden(f"spec.schedulingGates[{index}].name", text)
    if gates:
        yield from _node_selector(spec.get("nodeSelector") or {}, old.get("nodeSelector") or {})
        yield from _node_affinity(_terms(spec), _terms(old))


def without_choice_of_nodes(spec: Json) -> Json:
    """The spec of a gated pod without the fields that may change while it is gated."""
    rest = {field: value for field, value in spec.items() if field not in ("nodeSelector", "affinity")}
    others = {field: value for field, value in (spec.get("affinity") or {}).items() if field != "nodeAffinity"}
    return {**rest, "affinity": others} if others else rest


def _terms(spec: Json) -> list[Json]:
    required = metadata.dig(spec, f"affinity.nodeAffinity.{_REQUIRED}") or {}
    return required.get("nodeSelectorTerms") or []


def _node_selector(new: Json, old: Json) -> Iterator[FieldError]:
    if any(new.get(label) != value for label, value in old.items()):
        why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield faults.invalid("spec.nodeSelector", new, why)


def _node_affinity(new: list[Json], old: list[Json]) -> Iterator[FieldError]:
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
