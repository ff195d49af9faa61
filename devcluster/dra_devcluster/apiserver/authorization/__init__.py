"""Authorization: may this user do that?

::

    authorization = Authorization("rbac", store)
    authorization.require(Attributes(user, "get", resource="pods", namespace="default", name="web"))   # or a 403

In the mode ``rbac`` members of ``system:masters`` may do everything. Nodes may use their own objects (`node`). Roles
and bindings grant the rest (`rbac`). A request without a token is one of ``system:anonymous``. In the mode
``always-allow`` every user with a token may do everything, and requests without one are refused.

Each question is a line of the logger ``dra_devcluster.requests`` at level DEBUG, so that the log of a story shows which
rules its roles need.
"""

from __future__ import annotations

import logging
from typing import Final, Literal

from dra_devcluster.apiserver.authorization.attributes import (
    ADMIN,
    ANONYMOUS,
    AUTHENTICATED,
    User,
    account_groups,
    account_name,
    account_of,
)
from dra_devcluster.apiserver.authorization.rbac import Rule
from dra_devcluster.apiserver.store import Store

from .attributes import Attributes, Decision, asked_for
from .node import NodeAuthorizer, node_of, node_user
from .rbac import Rbac

Mode = Literal["always-allow", "rbac"]
_EVERYTHING: Final = Decision(True, "every known user may do everything here")
_ALL: Final = ("*",)

requests = logging.getLogger("dra_devcluster.requests")

__all__ = [
    "ADMIN",
    "ANONYMOUS",
    "AUTHENTICATED",
    "Attributes",
    "Authorization",
    "Decision",
    "Mode",
    "Rule",
    "User",
    "account_groups",
    "account_name",
    "account_of",
    "asked_for",
    "node_of",
    "node_user",
]


class Authorization:
    """Answers questions in one mode, by the objects of a store."""

    def __init__(self, mode: Mode, store: Store) -> None:
        self.is_rbac = mode == "rbac"
        self.rbac = Rbac(store)
        self._nodes = NodeAuthorizer(store)

    def judge(self, asked: Attributes) -> Decision:
        """The answer, without a line in the log."""
        if not self.is_rbac:
            return _EVERYTHING
        if asked.user.is_master:
            return Decision(True)
        as_node = self._nodes.decide(asked)
        if as_node.allowed:
            return as_node
        by_roles = self.rbac.decide(asked)
        if by_roles.allowed:
            return by_roles
        return Decision(False, "\n".join(reason for reason in (as_node.reason, by_roles.reason) if reason))

    def allows(self, asked: Attributes) -> bool:
        """The answer to a question of the request being handled."""
        decision = self.judge(asked)
        requests.debug("%s: %s", asked, "allowed" if decision.allowed else "refused")
        return decision.allowed

    def require(self, asked: Attributes) -> None:
        """Raises a 403 unless it is allowed."""
        if not self.allows(asked):
            raise asked.refusal(self.judge(asked).reason)

    def rules_of(self, user: User, namespace: str) -> list[Rule]:
        """What the user may do in the namespace, as far as rules say it; nodes may do more."""
        if not self.is_rbac:
            return [Rule(_ALL, _ALL, _ALL), Rule(_ALL, urls=_ALL)]
        return list(self.rbac.rules_of(user, namespace))
