"""The objects of ``resource.k8s.io``: types, quantities, defaulting, validation, conversion.

Pure: no I/O, no clock, no client. The names below are those that most users need; the structs are in ``resource`` (the
kinds of the group), ``core`` (Pod, Node) and ``meta``. Errors; each module shows its own::

    QuantityError, VersionError, DecodeError, ConversionError, GateError   (all ValueError)
    ClaimReferenceError and its children, in ``references``
"""

from .codec import DecodeError, convert, decode, decode_list, encode, to_dict
from .conversion import ConversionError
from .quantity import Quantity, QuantityError, parse_quantity
from .references import (
    ClaimNotCreatedYet,
    ClaimNotOwned,
    ClaimReferenceError,
    PodNotInGroup,
    UnsupportedClaimSource,
)
from .releases.gates import FeatureGates, GateError
from .values import Version, VersionError, parse_version

__all__ = [
    "ClaimNotCreatedYet",
    "ClaimNotOwned",
    "ClaimReferenceError",
    "ConversionError",
    "DecodeError",
    "FeatureGates",
    "GateError",
    "PodNotInGroup",
    "Quantity",
    "QuantityError",
    "UnsupportedClaimSource",
    "Version",
    "VersionError",
    "convert",
    "decode",
    "decode_list",
    "encode",
    "parse_quantity",
    "parse_version",
    "to_dict",
]
