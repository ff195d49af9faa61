"""IP addresses, networks and URLs: ``ip("10.0.0.1")``, ``cidr("10.0.0.0/8")``, ``url("https://a:80/b?c=d")``.

Addresses have no zone and are not IPv4 in IPv6. A URL is split as Go's net/url splits it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import quote, unquote, unquote_plus

from dra_api.cache import remember_short

from dra_cel.basics.declarations import (
    CHARACTER_COST,
    ONE,
    Estimate,
    Function,
    Operand,
    Range,
    Rule,
    glob,
    method,
    scale,
    size_of,
    succeeds,
    traversal,
)
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, CIDR, INT, IP, STRING, URL, Type, list_of, map_of
from dra_cel.basics.values import Opaque
from dra_cel.libraries.strings import quoted

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_ROUTER_GROUPS: Final = ipaddress.IPv4Network("224.0.0.0/24")


class IpValue(Opaque):
    """An address."""

    __slots__ = ("address",)
    cel_type = IP
    compared_as_key = True

    def __init__(self, address: Address) -> None:
        self.address = address

    def identity(self) -> Any:
        return self.address

    @property
    def cel_size(self) -> int:
        return self.address.max_prefixlen // 8


class CidrValue(Opaque):
    """An address with a prefix length; the address may have bits beyond the prefix."""

    __slots__ = ("address", "bits")
    cel_type = CIDR
    compared_as_key = True

    def __init__(self, address: Address, bits: int) -> None:
        self.address = address
        self.bits = bits

    def identity(self) -> Any:
        return self.address, self.bits

    @property
    def cel_size(self) -> int:
        return -(-self.bits // 8)

    def network(self, bits: int | None = None) -> int:
        """The leading bits of the address."""
        return int(self.address) >> (self.address.max_prefixlen - (self.bits if bits is None else bits))


@remember_short(2048)
def _address(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        message = f"IP Address {text[:100]!r} parse error during conversion from string"
        raise EvaluationError("conversion", message) from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise EvaluationError("conversion", f"IP address {text[:100]!r} with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise EvaluationError("conversion", f"IPv4-mapped IPv6 address {text[:100]!r} is not allowed")
    return address


def _ip(text: str) -> IpValue:
    return IpValue(_address(text))


def _cidr(text: str) -> CidrValue:
    host, slash, bits = text.rpartition("/")
    digits = bits.isascii() and bits.isdigit() and len(bits) <= 3 and (bits == "0" or not bits.startswith("0"))
    address = _address(host) if slash and digits else None
    if address is None or int(bits) > address.max_prefixlen:
        raise EvaluationError(
            "conversion", f"network address parse error during conversion from string: {text[:100]!r}"
        )
    return CidrValue(address, int(bits))


def _contains_ip(cidr: CidrValue, other: Any) -> bool:
    if isinstance(other, str):
        try:
            other = _ip(other)
        except EvaluationError:
            # The reference loses the parse error here and reports the call itself.
            raise EvaluationError(
                "no-such-overload", "no such overload: containsIP: the text is not an IP address"
            ) from None
    return cidr.address.version == other.address.version and cidr.network() == CidrValue(
        other.address, cidr.bits
    ).network(cidr.bits)


def _contains_cidr(cidr: CidrValue, other: Any) -> bool:
    inner = _cidr(other) if isinstance(other, str) else other
    if cidr.address.version != inner.address.version or cidr.bits > inner.bits:
        return False
    return cidr.network() == inner.network(cidr.bits)


def _masked(cidr: CidrValue) -> CidrValue:
    shift = cidr.address.max_prefixlen - cidr.bits
    return CidrValue(type(cidr.address)(cidr.network() << shift), cidr.bits)


def _is_link_local_multicast(ip: IpValue) -> bool:
    if isinstance(ip.address, ipaddress.IPv4Address):
        return ip.address in _ROUTER_GROUPS
    return int(ip.address) >> 112 & 0xFF0F == 0xFF02


def _is_global_unicast(ip: IpValue) -> bool:
    address = ip.address
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and address != _BROADCAST


# --- charges ----------------------------------------------------------------------------------

_PREFIXES: Final = Range(4, 16)


def _containment(*, network: bool, text: bool) -> Rule:
    """Comparing the bytes of two prefixes; networks are masked first, texts parsed."""

    def estimate(operands: Sequence[Operand]) -> Estimate:
        cost = _PREFIXES.plus(_PREFIXES).scaled(CHARACTER_COST)
        if network:
            cost = cost.plus(_PREFIXES.scaled(CHARACTER_COST)).plus(ONE)
        if text:
            cost = cost.plus(operands[1].size.scaled(CHARACTER_COST))
        return Estimate(cost)

    def count(values: Sequence[Any], result: Any) -> int:
        size = size_of(values[0])
        cost = scale(2 * size, CHARACTER_COST)
        if network:
            cost += scale(size, CHARACTER_COST) + 1
        return cost + (scale(size_of(values[1]), CHARACTER_COST) if text else 0)

    return Rule(estimate, count)


_PARSING: Final = traversal()
_CANONICAL: Final = Rule(
    lambda operands: Estimate(operands[0].size.scaled(2 * CHARACTER_COST)),
    lambda values, result: scale(2 * size_of(values[0]), CHARACTER_COST),
)

NETWORKS: Final = (
    Function("ip", (glob((STRING,), IP, _ip, _PARSING), method((CIDR,), IP, lambda cidr: IpValue(cidr.address)))),
    Function("isIP", (glob((STRING,), BOOL, succeeds(_ip), _PARSING),)),
    Function("ip.isCanonical", (glob((STRING,), BOOL, lambda text: str(_address(text)) == text, _CANONICAL),)),
    Function("family", (method((IP,), INT, lambda ip: ip.address.version),)),
    Function("isUnspecified", (method((IP,), BOOL, lambda ip: ip.address.is_unspecified),)),
    Function("isLoopback", (method((IP,), BOOL, lambda ip: ip.address.is_loopback),)),
    Function("isLinkLocalMulticast", (method((IP,), BOOL, _is_link_local_multicast),)),
    Function("isLinkLocalUnicast", (method((IP,), BOOL, lambda ip: ip.address.is_link_local),)),
    Function("isGlobalUnicast", (method((IP,), BOOL, _is_global_unicast),)),
    Function(
        "string",
        (
            glob((IP,), STRING, lambda ip: str(ip.address)),
            glob((CIDR,), STRING, lambda cidr: f"{cidr.address}/{cidr.bits}"),
        ),
    ),
    Function("cidr", (glob((STRING,), CIDR, _cidr, _PARSING),)),
    Function("isCIDR", (glob((STRING,), BOOL, succeeds(_cidr), _PARSING),)),
    Function("prefixLength", (method((CIDR,), INT, lambda cidr: cidr.bits),)),
    Function("masked", (method((CIDR,), CIDR, _masked),)),
    Function(
        "containsIP",
        (
            method((CIDR, STRING), BOOL, _contains_ip, _containment(network=False, text=True)),
            method((CIDR, IP), BOOL, _contains_ip, _containment(network=False, text=False)),
        ),
        rule=_containment(network=False, text=False),
    ),
    Function(
        "containsCIDR",
        (
            method((CIDR, STRING), BOOL, _contains_cidr, _containment(network=True, text=True)),
            method((CIDR, CIDR), BOOL, _contains_cidr, _containment(network=True, text=False)),
        ),
        rule=_containment(network=True, text=False),
    ),
)


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z0-9\-._~:!$&'()*+,;=%@]*", re.ASCII)
_HOST_SIGNS: Final = "-_.~!$&'()*+,;=:[]<>\""
_HOST_CHARACTER: Final = rf"[A-Za-z0-9{re.escape(_HOST_SIGNS)}]|[^\x00-\x7f]|%[89A-Fa-f][0-9A-Fa-f]|%25"
_HOST: Final = re.compile(f"(?:{_HOST_CHARACTER})*", re.ASCII)
_ZONE: Final = re.compile(
    "|".join(
        [f"(?:{_HOST_CHARACTER}|%[46][1-9A-F]|%[57][0-9A]|%3[0-9]"]
        + [f"%{ord(sign):02X}" for sign in " " + _HOST_SIGNS]
    )
    + ")*",
    re.ASCII | re.IGNORECASE,
)
_PORT: Final = re.compile(r"(?::[0-9]*)?", re.ASCII)
_PATH_SAFE: Final = "$&+,/:;=@"
_PATH_VALID: Final = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:@\[\]/]|%[0-9A-Fa-f]{2})*", re.ASCII)


class _Invalid(ValueError):
    """The text is no URL."""


@dataclass(frozen=True, slots=True, eq=False)
class Url(Opaque):
    """The parts of a URL; ``path`` is escaped."""

    scheme: str
    opaque: str
    user: str
    host: str
    path: str
    query: str
    fragment: str
    cel_type: ClassVar[Type] = URL

    def identity(self) -> Any:
        return self.scheme, self.opaque, self.user, self.host, self.path, self.query, self.fragment

    @property
    def hostname(self) -> str:
        host = self.host[: len(self.host) - len(self._port())]
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @property
    def port(self) -> str:
        return self._port()[1:]

    def _port(self) -> str:
        colon = self.host.rfind(":")
        return self.host[colon:] if colon >= 0 and _PORT.fullmatch(self.host[colon:]) else ""


def _split(text: str, *, request: bool) -> Url:
    """The parts of a URL; ``request``: as a request line has it, absolute and without fragment. Raises _Invalid."""
    if _CONTROL.search(text):
        raise _Invalid("invalid control character in URL")
    if not text and request:
        raise _Invalid("empty url")
    scheme, rest = _scheme(text)
    rest, _, query = (rest[:-1], "", "?") if rest.endswith("?") and rest.count("?") == 1 else rest.partition("?")
    user = host = ""
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, rest, "", "", "", query, "")
        if request and text != "*":
            raise _Invalid("invalid URI for request")
    if (scheme or (not request and not rest.startswith("///"))) and rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        rest = slash + tail
        user, host = _authority(scheme, authority)
    return Url(scheme, "", user, host, _escaped_path(rest), query, "")


def _scheme(text: str) -> tuple[str, str]:
    match = _SCHEME.match(text)
    if match is not None:
        return match[1].lower(), text[match.end() :]
    if text.startswith(":"):
        raise _Invalid("missing protocol scheme")
    return "", text


def _authority(scheme: str, text: str) -> tuple[str, str]:
    user, at, host = text.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        raise _Invalid("net/url: invalid userinfo")
    if "[" in host:
        return unquote(user), _ip_literal(host)
    # Only schemes other than http and https may have lists of hosts, whose ports are not looked at.
    colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
    port = host[colon:] if colon >= 0 else ""
    if not _PORT.fullmatch(port):
        raise _Invalid(f"invalid port {port!r} after host")
    if not _HOST.fullmatch(host):
        raise _Invalid("invalid character in host name")
    return unquote(user), unquote(host)


def _ip_literal(host: str) -> str:
    """``[IPv6 address]:port``, where ``%25`` starts the zone of an address."""
    address, bracket, port = host[1:].rpartition("]")
    if not host.startswith("[") or "[" in address or not bracket or "[" in port:
        raise _Invalid("invalid IP-literal")
    if not _PORT.fullmatch(port):
        raise _Invalid(f"invalid port {port!r} after host")
    plain, percent, zone = address.partition("%25")
    if not _HOST.fullmatch(plain) or not _ZONE.fullmatch(zone):
        raise _Invalid("invalid character in host name")
    name = unquote(plain) + unquote(percent + zone)
    try:
        ipaddress.IPv6Address(name)
    except ValueError as error:
        raise _Invalid(f"invalid host: {error}") from None
    return f"[{name}]{port}"


def _escaped_path(path: str) -> str:
    if _BAD_ESCAPE.search(path):
        raise _Invalid("invalid URL escape")
    return path if _PATH_VALID.fullmatch(path) or path == "*" else quote(unquote(path), safe=_PATH_SAFE)


@remember_short(512)
def parse_url(text: str) -> Url:
    """The URL of a text. Raises EvaluationError."""
    try:
        _split(text, request=True)
        body, _, fragment = text.partition("#")
        found = _split(body, request=False)
        if _BAD_ESCAPE.search(fragment):
            raise _Invalid("invalid URL escape")
    except (_Invalid, UnicodeError) as error:
        message = f"URL parse error during conversion from string: parse {quoted(text[:200])}: {error}"
        raise EvaluationError("conversion", message) from None
    return Url(found.scheme, found.opaque, found.user, found.host, found.path, found.query, unquote(fragment))


def request_fault(text: str) -> str | None:
    """What is wrong with a text as a URL of a request line, or None."""
    try:
        _split(text, request=True)
    except (_Invalid, UnicodeError) as error:
        return f"parse {quoted(text)}: {error}"
    return None


def _query(url: Url) -> dict[str, list[str]]:
    """Keys and values; parts with a semicolon or a bad escape are left out."""
    found: dict[str, list[str]] = {}
    for part in url.query.removeprefix("?").split("&"):
        if part and ";" not in part and not _BAD_ESCAPE.search(part):
            key, _, value = part.partition("=")
            found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


URLS: Final = (
    Function("url", (glob((STRING,), URL, parse_url, traversal(sized=True)),)),
    Function("isURL", (glob((STRING,), BOOL, lambda text: request_fault(text) is None),)),
    Function("getScheme", (method((URL,), STRING, lambda url: url.scheme),)),
    Function("getHost", (method((URL,), STRING, lambda url: url.host),)),
    Function("getHostname", (method((URL,), STRING, lambda url: url.hostname),)),
    Function("getPort", (method((URL,), STRING, lambda url: url.port),)),
    Function("getEscapedPath", (method((URL,), STRING, lambda url: url.path),)),
    Function("getQuery", (method((URL,), map_of(STRING, list_of(STRING)), _query),)),
)
