"""Checks of single values (names, labels, UUIDs, times, node selectors), and the errors that fields have.

An error is a value: type, field path, offending value, detail. ``str(error)`` and ``error.body``
give the texts of a 422 answer (``spec.driver: Required value``); ``type`` is the machine-readable
reason of its causes.

Checks of bare forms (``dns_label``, ``label_key``, ...) yield faults as texts; checks of fields (``driver_name``,
``pool_name``, ...) take the path and yield errors. Lengths count bytes. Spec: api.md sections 3, 4 and 11.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Set
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from dra_api.codec import encode
from dra_api.core import NodeSelector, NodeSelectorRequirement
from dra_api.resource import Device, ResourceSliceSpec
from dra_api.values import is_version


class ErrorType(StrEnum):
    """Reasons of a cause in a Status object."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"
    NOT_SUPPORTED = "FieldValueNotSupported"
    NOT_FOUND = "FieldValueNotFound"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    TYPE_INVALID = "FieldValueTypeInvalid"
    INTERNAL = "InternalError"


_TITLES = {
    ErrorType.REQUIRED: "Required value",
    ErrorType.INVALID: "Invalid value",
    ErrorType.DUPLICATE: "Duplicate value",
    ErrorType.FORBIDDEN: "Forbidden",
    ErrorType.NOT_SUPPORTED: "Unsupported value",
    ErrorType.NOT_FOUND: "Not found",
    ErrorType.TOO_LONG: "Too long",
    ErrorType.TOO_MANY: "Too many",
    ErrorType.TYPE_INVALID: "Invalid value",
    ErrorType.INTERNAL: "Internal error",
}
_WITHOUT_VALUE = {ErrorType.REQUIRED, ErrorType.FORBIDDEN, ErrorType.TOO_LONG, ErrorType.INTERNAL}


class FieldError(NamedTuple):
    """One fault of one field."""

    type: ErrorType
    field: str
    bad_value: Any = None
    detail: str = ""

    @property
    def body(self) -> str:
        """The fault without its field: the message of a cause."""
        parts = [_TITLES[self.type]]
        if self.type not in _WITHOUT_VALUE:
            parts.append(encode(self.bad_value).decode(errors="replace"))
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


Errors = Iterator[FieldError]


def summary(errors: Iterable[FieldError]) -> str:
    """All errors in one line, as in the message of an Invalid answer: each text once, several in []."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(ErrorType.REQUIRED, field, "", detail)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError(ErrorType.INVALID, field, value, detail)


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError(ErrorType.DUPLICATE, field, value)


def forbidden(field: str, detail: str) -> FieldError:
    return FieldError(ErrorType.FORBIDDEN, field, "", detail)


def not_supported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
    """The supported values are named in the order given; a set has none and is sorted."""
    names = ", ".join(f'"{name}"' for name in (sorted(supported) if isinstance(supported, Set) else supported))
    return FieldError(ErrorType.NOT_SUPPORTED, field, value, f"supported values: {names}")


def not_found(field: str, value: Any, detail: str = "") -> FieldError:
    return FieldError(ErrorType.NOT_FOUND, field, value, detail)


def too_long(field: str, limit: int) -> FieldError:
    return FieldError(ErrorType.TOO_LONG, field, "", f"may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    return FieldError(ErrorType.TOO_MANY, field, count, f"must have at most {limit} items")


def immutable(field: str, value: Any) -> FieldError:
    return invalid(field, value, "field is immutable")


DNS_LABEL_BYTES: Final = 63
DNS_SUBDOMAIN_BYTES: Final = 253
DRIVER_NAME_BYTES: Final = 63
POOL_NAME_BYTES: Final = 253
IDENTIFIER_BYTES: Final = 32
RAW_BYTES: Final = 10 * 1024
ATTRIBUTE_VALUE_LIMIT: Final = 64

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_KEY_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_CIDR = re.compile(r"[0-9A-Fa-f:.]+/[0-9]{1,3}", re.ASCII)

Form = Callable[[str], Iterator[str]]


def size(text: str) -> int:
    """Length in bytes, as in all limits."""
    return len(text) if text.isascii() else len(text.encode())


def dns_label(text: str) -> Iterator[str]:
    if size(text) > DNS_LABEL_BYTES:
        yield f"must be no more than {DNS_LABEL_BYTES} characters"
    if not _LABEL.fullmatch(text):
        yield (
            "must be a lowercase RFC 1123 label: letters a-z, digits and '-', "
            "with a letter or digit at both ends (e.g. 'my-name')"
        )


def dns_subdomain(text: str) -> Iterator[str]:
    if size(text) > DNS_SUBDOMAIN_BYTES:
        yield f"must be no more than {DNS_SUBDOMAIN_BYTES} characters"
    if not _SUBDOMAIN.fullmatch(text):
        yield (
            "must be a lowercase RFC 1123 subdomain: letters a-z, digits, '-' and '.', "
            "with a letter or digit at both ends of each part (e.g. 'example.com')"
        )


def label_key(text: str) -> Iterator[str]:
    """A qualified name as labels, annotations, taints and conditions have it: ``name`` or ``domain/name``."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        yield "must be a name with at most one prefix (e.g. 'example.com/MyName')"
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash:
        for fault in dns_subdomain(prefix):
            yield f"prefix part {fault}"
    if not name:
        yield "name part must be non-empty"
    elif size(name) > DNS_LABEL_BYTES:
        yield f"name part must be no more than {DNS_LABEL_BYTES} characters"
    if not _KEY_NAME.fullmatch(name):
        yield "name part must consist of letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def label_value(text: str) -> Iterator[str]:
    if size(text) > DNS_LABEL_BYTES:
        yield f"must be no more than {DNS_LABEL_BYTES} characters"
    if text and not _KEY_NAME.fullmatch(text):
        yield (
            "a valid label must be empty or consist of letters, digits, '-', '_' and '.', "
            "with a letter or digit at both ends"
        )


def checked(form: Form, text: str, path: str) -> Errors:
    """The faults of a text as errors of its field."""
    for fault in form(text):
        yield invalid(path, text, fault)


def driver_name(name: str, path: str) -> Errors:
    """Required; at most 63 bytes; a DNS subdomain whatever the case of its letters."""
    if not name:
        yield required(path)
        return
    if size(name) > DRIVER_NAME_BYTES:
        yield too_long(path, DRIVER_NAME_BYTES)
    for fault in dns_subdomain(name.lower()):
        yield invalid(path, name, fault)


def pool_name(name: str, path: str) -> Errors:
    """Required; at most 253 bytes; one or more DNS subdomains joined by slashes."""
    if not name:
        yield required(path)
        return
    if size(name) > POOL_NAME_BYTES:
        yield too_long(path, POOL_NAME_BYTES)
    for part in name.split("/"):
        yield from checked(dns_subdomain, part, path)


def class_name(name: str, path: str) -> Errors:
    """Required; a DNS subdomain."""
    if name:
        yield from checked(dns_subdomain, name, path)
    else:
        yield required(path)


def counter_name(name: str, path: str) -> Errors:
    """Required; a DNS label."""
    if name:
        yield from checked(dns_label, name, path)
    else:
        yield required(path)


def identifier(text: str, path: str) -> Errors:
    """A C identifier of at most 32 bytes."""
    if size(text) > IDENTIFIER_BYTES:
        yield too_long(path, IDENTIFIER_BYTES)
    if not _IDENTIFIER.fullmatch(text):
        yield invalid(path, text, "must be a C identifier: letters, digits and '_', not beginning with a digit")


def qualified_name(name: str, path: str) -> Errors:
    """``ID`` or ``DOMAIN/ID``. Names with more slashes pass, as in the reference."""
    parts = name.split("/")
    if len(parts) == 1:
        yield from identifier(name, path)
    elif len(parts) == 2:
        domain, name = parts
        if domain:
            yield from driver_name(domain, path)
        else:
            yield invalid(path, "", "the domain must not be empty")
        if name:
            yield from identifier(name, path)
        else:
            yield invalid(path, "", "the name must not be empty")


def fully_qualified_name(name: str, path: str) -> Errors:
    """A qualified name that has its domain."""
    yield from qualified_name(name, path)
    if "/" not in name:
        yield invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash")


def share_id(text: str, path: str) -> Errors:
    """A UUID of 36 characters in lower case."""
    if not _UUID.fullmatch(text):
        yield invalid(path, text, "must be a UUID of the form `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` in lower case")


def attribute_string(text: str, path: str) -> Errors:
    if size(text) > ATTRIBUTE_VALUE_LIMIT:
        yield too_long(path, ATTRIBUTE_VALUE_LIMIT)


def attribute_version(text: str, path: str) -> Errors:
    if not is_version(text):
        yield invalid(path, text, "must be a string compatible with semver.org spec 2.0.0")
    yield from attribute_string(text, path)


def is_native_resource(name: str) -> bool:
    """Whether Kubernetes itself defines the resource (``cpu``, ``hugepages-2Mi``, anything of kubernetes.io)."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended_resource(name: str) -> bool:
    """Whether the name may be used for resources that others define; ``requests.<name>`` must fit a quota."""
    if is_native_resource(name) or name.startswith("requests."):
        return False
    return not any(label_key(f"requests.{name}"))


def raw_object(raw: Raw, path: str, *, stored: bool = False) -> Errors:
    """A JSON object of at most 10 KiB; ``stored`` data is exempt from the limit, which came later than the field."""
    data = bytes(raw)
    if not data:
        yield required(path)
    elif not stored and len(data) > RAW_BYTES:
        yield too_long(path, RAW_BYTES)
    else:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            yield invalid(path, "<value omitted>", f"error parsing data as JSON: {error}")
            return
        if value is None:
            yield required(path)
        elif not isinstance(value, dict):
            yield invalid(path, "<value omitted>", "must be a valid JSON object")


def interface_address(text: str, path: str) -> Errors:
    """An address with its prefix length (``10.9.8.7/24``) in canonical form."""
    try:
        address = ipaddress.ip_interface(text) if _CIDR.fullmatch(text) else None
    except ValueError:
        address = None
    if address is None:
        yield invalid(path, text, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")
    elif isinstance(address, ipaddress.IPv6Interface) and address.ipv4_mapped is not None:
        yield invalid(path, text, "must not be an IPv4-mapped IPv6 address")
    elif str(address) != text:
        yield invalid(path, text, f'must be in canonical form ("{address}")')


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
