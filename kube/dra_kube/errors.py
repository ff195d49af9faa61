"""What can go wrong between us and an API server.

::

    KubeError
    ├── ConnectionSettingsError   no usable kubeconfig or in-cluster credentials
    ├── Unreachable               refused, timed out, TLS failed, or what answered is no API server
    │   ├── AnswerTooLarge        longer than the reader takes: it was not read to its end
    │   └── NoAnswerInTime        the limit for the request was over before the answer was complete
    ├── NotServed                 the server does not serve the kind in any version we speak
    ├── NotSent                   a write that was held back, so that it certainly has no effect
    │   └── NotLeading            by leader election, see ``dra_kube.lease``
    ├── LeaseLost                 another process leads
    └── ApiError                  the server answered with a Status that is no success
        ├── BadRequest            400
        ├── Unauthorized          401
        ├── Forbidden             403
        ├── NotFound              404
        ├── Conflict              409, the object was changed in between: read again, try again; also 422 if the patch
        │   │                     names the uid of a predecessor
        │   └── AlreadyExists     409, reason AlreadyExists
        ├── Gone                  410, a resourceVersion or continue token is too old: list again
        ├── Invalid               422, validation; ``causes`` name the fields
        ├── TooManyRequests       429
        └── ServerError           5xx
"""

from __future__ import annotations

import re
from typing import Any, Final

LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
"""The longest pause that an answer may ask for. Proxies and webhooks answer as well, and a wrong or far too long time,
such as a date years ahead, would stop watches and writes long after its cause is over. One request a minute is no load.
"""


class KubeError(Exception):
    """Root of all errors of this package."""


class ConnectionSettingsError(KubeError):
    """The API server cannot be found: the kubeconfig is missing, unreadable or incomplete."""


class Unreachable(KubeError):
    """The API server did not answer, or not completely; or what answered is no API server."""


class AnswerTooLarge(Unreachable):
    """An answer is longer than the reader takes, and was not read to its end."""


class NoAnswerInTime(Unreachable):
    """The time limit for a request was over before its answer was complete."""


class NotSent(KubeError):
    """A write was held back: nothing of it has reached the API server."""


class NotServed(KubeError):
    """The API server does not know the kind in any version that this client speaks."""


class ApiError(KubeError):
    """The API server refused; ``code``, ``reason``, ``message``, ``details`` as in its Status object.

    ``retry_after`` is how many seconds the server asks to wait, at most 60, None if it does not: what its Status says,
    otherwise what the HTTP header says.
    """

    request = ""
    """The method and the URL, where that is known: the server's message need not name either."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message or f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        seconds = self.details.get("retryAfterSeconds")
        asked = seconds if isinstance(seconds, int) and seconds > 0 else retry_after
        self.retry_after = None if asked is None else float(min(asked, LONGEST_RETRY_AFTER_SECONDS))

    @property
    def causes(self) -> list[dict[str, str]]:
        """Fields at fault: ``reason``, ``message``, ``field`` of each."""
        causes = self.details.get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []

    def is_about(self, plural: str, name: str) -> bool:
        """Whether the server names this object, of the kind with this plural, as the one concerned."""
        return (self.details.get("kind"), self.details.get("name")) == (plural, name)


class BadRequest(ApiError):
    """400"""


class Unauthorized(ApiError):
    """401"""


class Forbidden(ApiError):
    """403"""


class NotFound(ApiError):
    """404"""


class Conflict(ApiError):
    """409, or 422 if the patch names the uid of a predecessor."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists."""


class Gone(ApiError):
    """410; ``continue_token`` goes on with a list whose version is no longer kept, empty if there is none."""

    continue_token = ""


class Invalid(ApiError):
    """422"""


class TooManyRequests(ApiError):
    """429"""


class ServerError(ApiError):
    """5xx"""

    @property
    def is_ahead_of_cache(self) -> bool:
        """Whether the request names a resourceVersion that the watch cache of the API server has not reached."""
        return any(cause.get("reason") == "ResourceVersionTooLarge" for cause in self.causes)


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


_DIGIT: Final = re.compile(r"\d")


def gist(text: str) -> str:
    """Return the words of an error that are the same when it comes again.

    Servers and proxies put what differs each time into their errors: the port of a broken connection, the id of a
    request, a time. Each such word has a digit.
    """
    return " ".join("#" if _DIGIT.search(word) else word for word in text.split())


def for_people(error: Exception) -> str:
    """What a command says of the error that ends it: with the remedy, where that does not follow from the error."""
    match error:
        case Unauthorized():
            return f"the API server refuses the credentials: {_with_request(error)}; renew them in the kubeconfig"
        case TooManyRequests():
            return f"the API server has too much to do: {_with_request(error)}; try again later"
        case ServerError():
            return f"the API server has failed: {_with_request(error)}; try again later, and look into its log"
        case Gone():
            return f"the API server keeps no version for so long as the list takes: {_with_request(error)}; try again"
        case ApiError():
            return f"the API server refuses {_with_request(error)}"
        case NoAnswerInTime():
            return (
                f"the API server does not answer in time: {error}; it may be overloaded, or store very many or very "
                "large objects: try again later"
            )
        case AnswerTooLarge():
            return f"the API server answers with more than is read: {error}; is a proxy in between?"
        case Unreachable():
            return f"the API server cannot be used: {error}; is it running, and is the kubeconfig the right one?"
        case _:
            return str(error)


def _with_request(error: ApiError) -> str:
    return f"{error.request}: {error}" if error.request else str(error)


def error_of(code: int, status: dict[str, Any], fallback: str = "", retry_after: float | None = None) -> ApiError:
    """The exception for a response: ``status`` is its Status object, or empty when there was none.

    A field of the Status that has another type than it should counts as left out.
    """
    reason, message, details = (status.get(name) for name in ("reason", "message", "details"))
    reason = reason if isinstance(reason, str) else ""
    kind = ServerError if code >= 500 else _BY_CODE.get(code, ApiError)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    message = message if isinstance(message, str) and message else fallback
    error = kind(code, reason, message, details if isinstance(details, dict) else None, retry_after)
    if isinstance(error, Gone):
        meta = status.get("metadata")
        token = meta.get("continue") if isinstance(meta, dict) else None
        error.continue_token = token if isinstance(token, str) else ""
    if kind is Invalid and {cause.get("field") for cause in error.causes} == {"metadata.uid"}:
        return Conflict(code, reason, message, error.details, retry_after)
    return error
