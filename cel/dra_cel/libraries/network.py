"""IP addresses and networks: ``ip("10.0.0.1")``, ``cidr("10.0.0.0/8")``. Zones and IPv4-in-IPv6 are not allowed."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from dra_api.cache import remember_short

from dra_cel.basics.charges import CHARACTER_COST, ONE, Estimate, Operand, Range, Rule, scale, size_of, traversal
from dra_cel.basics.declarations import Function, glob, method, succeeds
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, CIDR, INT, IP, STRING
from dra_cel.basics.values import Opaque

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

LIBRARY: Final = (
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
