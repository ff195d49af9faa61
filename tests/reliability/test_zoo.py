"""What one tenant does costs another nothing: objects that the API server admits, each the worst of its kind.

The short form lets a dozen loose for some seconds. The full form, ``KOPF_DRA_ZOO=60``, lets all of them loose for a
minute each, with all that one namespace has room for, and holds the operator to what is promised on a machine with two
cores: ``KOPF_DRA_ZOO=60 pytest -s tests/reliability/test_zoo.py`` also prints the table of docs/reliability.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import envtest
import pytest
import pytest_asyncio
from rounds import LONG
from zoo.asking import ASKING
from zoo.cage import NEIGHBOUR, Cage, cage
from zoo.crowding import CROWDING
from zoo.gauges import Gauges, peak_memory, visiting
from zoo.hoarding import HOARD, HOARDING, KINDS, hoard, stranger
from zoo.placing import PLACING
from zoo.restless import RESTLESS
from zoo.sprawling import SPRAWLING
from zoo.tenant import Beast, Tenant

FULL = float(os.environ.get("KOPF_DRA_ZOO", "0"))
"""Seconds for each beast in the full form; 0 for the short one."""
RENEW_DEADLINE = 7.0
"""Seconds after which a leader that could not renew its Lease gives up."""
MEMORY = 512 * 2**20
SLACK = 1.0 if FULL else 5.0
"""The short form runs beside other tests: it finds what hangs, and leaves the rest to the full form."""
IS_REAL = envtest.assets() is not None
ALL = (*ASKING, *PLACING, *SPRAWLING, *CROWDING, *RESTLESS, *HOARDING)
BEASTS = [
    pytest.param(beast, id=beast.name, marks=() if FULL else LONG)
    for beast in ALL
    if (beast.short or FULL) and (IS_REAL or not beast.real)
]

pytestmark = pytest.mark.timeout(600)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def den(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cage]:
    folder = tmp_path_factory.mktemp("zoo")
    async with cage(folder, seconds=FULL or 2.0, scale=1.0 if FULL else 0.1) as filled:
        yield filled


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("beast", BEASTS)
async def test_a_hostile_tenant_costs_its_neighbours_nothing(den: Cage, beast: Beast) -> None:
    gauges = await den.loose(beast)
    print("\n" + gauges.line(beast.name))
    assert not gauges.bad_probes, gauges.bad_probes[:5]
    assert gauges.slowest_probe < 1.0 * SLACK
    assert len(gauges.holders) == 1
    assert gauges.longest_silence < RENEW_DEADLINE
    assert gauges.delay < 2.0 * SLACK
    assert gauges.memory < MEMORY
    assert not den.operator.unexplained()


HOARDED = HOARD if FULL else 40
"""Large objects of each kind: 55 MB a kind in the short form."""
START_MEMORY = MEMORY if FULL else 260 * 2**20
"""An operator of an empty cluster has about 110 MiB; pages of 1,000 objects took 500 MiB in the short form."""


@pytest.mark.parametrize("kind", KINDS)
async def test_an_operator_starts_beside_a_hoard_and_its_neighbours_are_served(kind: str, tmp_path: Path) -> None:
    """A start, as after a take-over, lists all that a tenant has stored."""
    async with cage(tmp_path, seconds=1.0, scale=0.1) as den, AsyncExitStack() as stack:
        tenant = Tenant(den.api, "hoarder")
        await tenant.moves_in()
        await stranger(tenant)
        await tenant.each(hoard(tenant, kind, number) for number in range(HOARDED))
        operator = await den.another_operator(stack)
        gauges = Gauges()
        async with visiting(den.kubeconfig, NEIGHBOUR, gauges):
            await asyncio.sleep(FULL or 8.0)
        assert gauges.delay < 2.0 * SLACK
        print(f"\n{kind}: at most {peak_memory(operator.pid) >> 20} MiB, {gauges.line(kind)}")
        assert peak_memory(operator.pid) < START_MEMORY
        assert not operator.unexplained()


def test_the_zoo_has_eighty_kinds() -> None:
    names = [beast.name for beast in ALL]
    assert len(set(names)) == len(names) >= 80
