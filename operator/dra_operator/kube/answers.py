"""What an error says about the fate of its write, and what helps."""

from __future__ import annotations

import re
from typing import Final

from dra_kube import ApiError, Forbidden, KubeError, NotSent, NotServed, ServerError

RIGHTS: Final = "the ClusterRole dra-operator in manifests/operator/rbac.yaml allows it: apply it"
_NO_RIGHT: Final = re.compile(r'User "[^"]*" cannot ')
"""The words of the authorizer; quotas, policies and webhooks answer 403 as well."""


def may_have_happened(error: BaseException) -> bool:
    """Whether the server may have carried out the write, or may still do so.

    Not if it refused, if it does not serve the kind, or if nothing was sent. After a timeout, a broken connection, a
    5xx or a bug only the server knows.
    """
    if isinstance(error, ApiError):
        return isinstance(error, ServerError)
    return not isinstance(error, NotSent | NotServed)


def with_remedy(error: KubeError) -> str:
    """What went wrong; with the role to apply if the operator lacks a permission."""
    lacks_right = isinstance(error, Forbidden) and _NO_RIGHT.search(str(error)) is not None
    return f"{error}; {RIGHTS}" if lacks_right else str(error)
