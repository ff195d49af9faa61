"""Writes the condition of DeviceTaintRules that says what the rule does to pods."""

from __future__ import annotations

from collections.abc import Callable

from dra_api.codec import convert, to_dict
from dra_api.meta import Condition
from dra_api.meta import Object as Struct
from dra_api.resource import DeviceTaintRule
from dra_kube import DEVICE_TAINT_RULES

from .client import Client
from .pods import DEVICE_TAINT


class RuleWriter:
    """Every answer goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def report(self, rule: DeviceTaintRule, condition: Condition) -> None:
        """Set one condition of this very rule; others stay (scheduling.md 10.5).

        Under the field manager that kube-controller-manager uses, so that either can take over from the other. Raises
        NotFound, and Conflict for another rule of the name.
        """
        meta = rule.metadata
        written = {"message": "", **to_dict(condition)}  # the API requires a message, even an empty one
        raw = await self._client.patch(
            DEVICE_TAINT_RULES,
            meta.name,
            {"metadata": {"name": meta.name, "uid": meta.uid}, "status": {"conditions": [written]}},
            kind="apply",
            subresource="status",
            field_manager=DEVICE_TAINT.manager,
            force=True,
        )
        self._seen(convert(DeviceTaintRule, raw))
