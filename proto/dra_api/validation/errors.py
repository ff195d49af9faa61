"""What is wrong with a field, as an API server reports it.

An error is a value: type, field path, offending value, detail. ``str(error)`` and ``error.body``
give the texts of a 422 answer (``spec.driver: Required value``); ``type`` is the machine-readable
reason of its causes. Spec: api.md section 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from dra_api.codec import encode


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


def not_supported(field: str, value: str, supported: Iterable[str]) -> FieldError:
    names = ", ".join(f'"{name}"' for name in sorted(supported))
    return FieldError(ErrorType.NOT_SUPPORTED, field, value, f"supported values: {names}")


def not_found(field: str, value: Any, detail: str = "") -> FieldError:
    return FieldError(ErrorType.NOT_FOUND, field, value, detail)


def too_long(field: str, limit: int) -> FieldError:
    return FieldError(ErrorType.TOO_LONG, field, "", f"may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    return FieldError(ErrorType.TOO_MANY, field, count, f"must have at most {limit} items")


def immutable(field: str, value: Any) -> FieldError:
    return invalid(field, value, "field is immutable")
