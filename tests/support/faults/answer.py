"""An answer on its way to the client: the server's, or one made up in its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Code, headers worth passing on, and the whole body."""

    code: int
    headers: Mapping[str, str]
    body: bytes


def status(code: int, message: str = "", reason: str = "", retry_after: int | None = None) -> dict[str, Any]:
    """A Status object that says no."""
    reason = reason or _REASONS.get(code, "")
    content: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    content |= {"message": message or f"the fault proxy says {code} {reason}", "reason": reason, "code": code}
    if retry_after is not None:
        content["details"] = {"retryAfterSeconds": retry_after}
    return content


def refusal(code: int, message: str = "", reason: str = "", retry_after: int | None = None) -> Answer:
    """An answer that says no as an API server does."""
    headers = {"Content-Type": "application/json"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return Answer(code, headers, orjson.dumps(status(code, message, reason, retry_after)))
