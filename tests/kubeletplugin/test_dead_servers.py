"""A plugin whose servers die under it (NOD-018, NOD-019)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from dra_kubeletplugin import Driver, KubeletPlugin, PluginError, PluginSettings, PreparedDevice, ServerDied
from dra_kubeletplugin.testing.api import PluginApi


class Witness(Driver):
    """Remembers the errors that it is called with."""

    def __init__(self) -> None:
        self.errors: list[PluginError] = []

    async def prepare(self, claim: object) -> list[PreparedDevice]:
        return []

    async def unprepare(self, claim: object) -> None:
        return None

    def handle_error(self, error: PluginError, message: str) -> None:
        self.errors.append(error)


async def test_a_new_instance_starts_beside_one_that_is_stuck(api: PluginApi, settings: PluginSettings) -> None:
    """The other one accepts no connection any more, and as many wait as may: a further one would wait for ever."""
    stuck = settings.plugin_path.with_name("dra-stuckone.sock")
    stuck.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(stuck))
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(stuck))
        async with KubeletPlugin(Witness(), replace(settings, rolling_update_uid="new"), api.client):
            assert stuck.exists(), "it is not abandoned"


SOCKETS: dict[str, Callable[[PluginSettings], Path]] = {
    "nod018 the registrar's server": lambda settings: settings.registration_path,
    "nod019 the DRA server": lambda settings: settings.plugin_path,
}


@pytest.mark.parametrize("case", SOCKETS)
async def test_the_driver_is_called_when_a_server_dies_and_the_plugin_ends(
    case: str, api: PluginApi, settings: PluginSettings
) -> None:
    driver = Witness()
    async with KubeletPlugin(driver, settings, api.client) as plugin:
        SOCKETS[case](settings).unlink()
        with pytest.raises(ServerDied):
            await asyncio.wait_for(plugin.wait(), 30)
    assert [type(error) for error in driver.errors] == [ServerDied]
