"""Refusals of the API server: `Status` objects with the texts of a real server.

::

    StatusError            a request is refused; the functions below make them, each named for its reason
    PathNotFound           nothing is served at the path of a request, nor a group of resources of that name
    ServerError            the server cannot start or stop as asked; the text has cause and remedy
    └── SnapshotError      the snapshot file cannot be used

Clients decide by ``code`` and ``reason``, people read ``message``, tools read ``details.causes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_api.validation.formats import FieldError, summary

Json = dict[str, Any]


class ServerError(Exception):
    """The server cannot start or stop as asked; the text has cause and remedy."""


class SnapshotError(ServerError):
    """The snapshot file cannot be read or written; the text names it."""


class PathNotFound(Exception):
    """Nothing is served at the path, which is no object's: the answer is a line of text."""


class StatusError(Exception):
    """A refusal; ``status`` is the object that goes to the client."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Json | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = dict(headers or {})
        self.warnings: list[tuple[str, str]] = []  # headers as well: warnings from before the refusal

    @property
    def status(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def success(details: Json | None = None, code: int = 0) -> Json:
    """The Status object of a request that has no object to answer with."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    if code:
        status["code"] = code
    return status


def _details(group: str, kind: str, name: str = "", **more: Any) -> Json:
    named = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in {**named, **more}.items() if value}


def qualified(group: str, resource: str) -> str:
    """``resourceclaims.resource.k8s.io``; core resources have no suffix."""
    return f"{resource}.{group}" if group else resource


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def name_mismatch(given: str, expected: str) -> StatusError:
    return bad_request(f"the name of the object ({given}) does not match the name on the URL ({expected})")


def name_missing(expected: str) -> StatusError:
    why = "was undeterminable: name must be provided"
    return bad_request(f"the name of the object ({expected} based on URL) {why}")


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, resource: str, name: str, why: str, causes: Sequence[Json] = ()) -> StatusError:
    title = f'{qualified(group, resource)} "{name}"' if name else qualified(group, resource)
    message = f"{title} is forbidden: {why}" if resource else f"forbidden: {why}"  # of a path
    return StatusError(403, "Forbidden", message, _details(group, resource, name, causes=list(causes)))


def not_found(group: str, resource: str, name: str) -> StatusError:
    return StatusError(
        404, "NotFound", f'{qualified(group, resource)} "{name}" not found', _details(group, resource, name)
    )


def no_such_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def not_acceptable(message: str) -> StatusError:
    return StatusError(406, "NotAcceptable", message)


def already_exists(group: str, resource: str, name: str) -> StatusError:
    return StatusError(
        409, "AlreadyExists", f'{qualified(group, resource)} "{name}" already exists', _details(group, resource, name)
    )


def conflict(group: str, resource: str, name: str, why: str = "") -> StatusError:
    why = why or ("the object has been modified; please apply your changes to the latest version and try again")
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified(group, resource)} "{name}": {why}',
        _details(group, resource, name),
    )


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def too_large(limit: int) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def unsupported_media_type(supported: Sequence[str]) -> StatusError:
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}",
    )


def invalid(group: str, kind: str, name: str, faults: Sequence[FieldError]) -> StatusError:
    """Everything wrong with an object, each field with its own cause."""
    causes = [{"reason": str(fault.type), "message": fault.body, "field": fault.field} for fault in faults]
    return StatusError(
        422,
        "Invalid",
        f'{qualified(group, kind)} "{name}" is invalid: {summary(faults)}',
        _details(group, kind, name, causes=causes),
    )


def invalid_options(verb: str, *faults: FieldError) -> StatusError:
    """Parameters of the query that cannot be; ``verb`` is Create, Update, Patch, Delete or List."""
    return invalid("meta.k8s.io", f"{verb}Options", "", faults)


def too_many_requests(message: str, seconds: int = 0, causes: Sequence[Json] = ()) -> StatusError:
    details = {key: value for key, value in (("causes", list(causes)), ("retryAfterSeconds", seconds)) if value}
    headers = {"Retry-After": str(seconds)} if seconds else {}
    return StatusError(429, "TooManyRequests", message, details, headers)


def internal(message: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
