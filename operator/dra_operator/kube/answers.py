"""What an error says about the write that ended with it."""

from __future__ import annotations

from dra_kube import ApiError, NotSent, ServerError


def may_have_happened(error: BaseException) -> bool:
    """Whether the server may have done what was asked, or may still do it.

    Not if it said no, or if nothing was sent. Otherwise (timeout, broken connection, 5xx, a bug) only the server knows.
    """
    if isinstance(error, ApiError):
        return isinstance(error, ServerError)
    return not isinstance(error, NotSent)
