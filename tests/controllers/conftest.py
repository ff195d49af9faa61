"""A world for every test, and short names for the objects in it."""

from __future__ import annotations

import pytest
from controllers_world import World
from dra_operator.allocator import Features
from objects import Make


@pytest.fixture
def world() -> World:
    """A fake API server, and no operator on it yet."""
    return World(Features())


@pytest.fixture(scope="session")
def make() -> type[Make]:
    """Makes objects."""
    return Make
