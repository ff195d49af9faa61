"""A fresh server and a client of it for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from bare_client import Client, client_of
from dra_devcluster.apiserver import DevApiServer


@pytest.fixture
async def server() -> AsyncIterator[DevApiServer]:
    async with DevApiServer() as running:
        yield running


@pytest.fixture
async def client(server: DevApiServer) -> AsyncIterator[Client]:
    async with client_of(server) as made:
        yield made
