"""What an error says about the fate of its write."""

from __future__ import annotations

from dra_kube import ApiError, NotSent, NotServed, ServerError


def may_have_happened(error: BaseException) -> bool:
    """Whether the server may have carried out the write, or may still do so.

    Not if it refused, if it does not serve the kind, or if nothing was sent. After a timeout, a broken connection, a
    5xx or a bug only the server knows.
    """
    if isinstance(error, ApiError):
        return isinstance(error, ServerError)
    return not isinstance(error, NotSent | NotServed)
