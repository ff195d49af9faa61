"""A world for every test, short names for the objects in it, and a clock on which no test waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from controllers_world import World
from dra_operator.allocator import Features
from history_kit.clock import VirtualLoop
from objects import Make


@pytest.fixture
def world() -> World:
    """A fake API server, and no operator on it yet."""
    return World(Features())


@pytest.fixture(scope="session")
def make() -> type[Make]:
    """Makes objects."""
    return Make


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Seconds take no time, however busy the machine is, unless a test is marked ``real_time``."""
    return {"loop": asyncio.new_event_loop if item.get_closest_marker("real_time") else VirtualLoop}
