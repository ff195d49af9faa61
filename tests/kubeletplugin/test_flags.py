"""Every flag of a driver's command has an effect: something that the driver is started with depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import Driver, PluginSettings, Prepared, cli
from dra_kubeletplugin.commands import FLAGS, command, subcommands

Start = Callable[[list[str]], object]
NEEDED = {"--node-name": "n1"}


class Nothing(Driver):
    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return []


def own(arguments: list[str]) -> None:
    """A driver of one's own."""
    command.run(Nothing(), "a.example.com", [], arguments)


def simulated(arguments: list[str]) -> None:
    """A driver of the library."""
    assert cli.main(["simulated", *arguments]) == 0


def started(start: Start, flags: Mapping[str, str | None]) -> dict[str, Any]:
    """All that the driver is started with."""
    found: dict[str, Any] = {}

    async def serve(_: Driver, settings: PluginSettings, __: object, **others: object) -> None:
        found.update(others, settings=settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NODE_NAME", raising=False)
        for module in (command, subcommands):
            patch.setattr(module, "serve_monitored", serve)
            patch.setattr(module, "set_up_logging", lambda *form: found.update(log=form))
        start([flag if value is None else f"{flag}={value}" for flag, value in {**NEEDED, **flags}.items()])
    return found


def other_value(properties: Mapping[str, Any]) -> str | None:
    """One that is not the default; None for a flag without value."""
    if properties.get("action") == "store_const":
        return None
    if "choices" in properties:
        return str(next(value for value in properties["choices"] if value != properties["default"]))
    return "7" if properties.get("type") in (int, float) else "elsewhere"


@pytest.mark.parametrize(
    ("start", "flag", "value"),
    [
        pytest.param(start, flag, other_value(properties), id=f"{start.__name__} {flag}")
        for start, flags in ((own, FLAGS), (simulated, cli._FLAGS))
        for flag, properties in flags.items()
    ],
)
def test_a_flag_has_an_effect(start: Start, flag: str, value: str | None) -> None:
    plain = started(start, {})
    assert plain.keys() == {"settings", "log", "kubeconfig", "endpoint", "path"} | set(plain) & {"beside"}
    assert started(start, {flag: value}) != plain
