"""Each row of the table in docs/releasing.md, played on the development server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from dra_kube import NAMESPACES, Api, ApiError, Unreachable, connection
from dra_operator.controllers.errors import ControllerError
from objects import Make
from pages import Page
from release_stage import Stage, furnish
from waiting import until


class Event(NamedTuple):
    """What happens, and which pods there are before, apart from those that the state names: those run on the node."""

    happens: Callable[[Stage], Awaitable[object]]
    waiting: tuple[str, ...] = ()
    where: str = "node-0"
    """The node of the devices."""
    scheduler: str = "dra-scheduler"


async def looked_at(stage: Stage) -> None:
    await stage.released()


async def ends(stage: Stage) -> None:
    await stage.ends("A")
    await stage.released()


async def ends_beside(stage: Stage) -> None:
    await stage.pod("B", Make.use("c"), scheduler="another")
    await stage.look()
    await ends(stage)


async def gone(stage: Stage) -> None:
    """The garbage collector has its moment."""
    stage.is_gone("A")

    async def is_gone() -> bool:
        await stage.released()
        return await stage.state() == "gone"

    await until("the claim gone", is_gone)


async def gone_beside_another(stage: Stage) -> None:
    await stage.claim("unused", name="theirs")
    await stage.pod("B", Make.use("theirs"), scheduler="another")
    await stage.look()
    stage.is_gone("A")
    await stage.released()


async def tried(stage: Stage) -> None:
    with suppress(ControllerError):
        await stage.tried("A")


async def stolen(stage: Stage) -> None:
    await stage.claim("devices", name="theirs")
    await stage.look()
    await tried(stage)


def fails(plural: str, sub: str, error: Exception) -> Callable[[Stage], Awaitable[None]]:
    """An attempt in which requests for a subresource fail."""

    async def attempt(stage: Stage) -> None:
        stage.client.fails = lambda *what: error if what == (plural, sub) else None
        await tried(stage)
        stage.client.fails = lambda *_: None

    return attempt


async def unanswered(stage: Stage) -> None:
    await fails("resourceclaims", "status", Unreachable("connection reset"))(stage)
    await tried(stage)


async def records_another(stage: Stage) -> None:
    await stage.claim("of A", name="recorded")
    await stage.records("A", "recorded")
    await stage.look()
    await stage.control.generator.handle(f"{stage.namespace}/a")


EVENTS: dict[str, Event] = {
    "the claim is looked at": Event(looked_at),
    "A ends": Event(ends),
    "A, which the operator placed, ends": Event(ends),
    "A, which another scheduler placed, ends": Event(ends, scheduler="another"),
    "A ends while B waits with the claim": Event(ends_beside),
    "A is gone": Event(gone),
    "A is gone, and another scheduler gives such devices away too": Event(gone_beside_another),
    "A is tried": Event(tried, ("A",)),
    "A cannot run where the devices are": Event(tried, ("A",), where="elsewhere"),
    "another claim has the device, and A waits": Event(stolen, ("A",)),
    "another claim has the device, and A and B wait": Event(stolen, ("A", "B")),
    "A cannot be bound": Event(fails("pods", "binding", ApiError(422, "Invalid", "no")), ("A",)),
    "the allocation for A was not answered and never came": Event(unanswered, ("A",)),
    "A records another claim for the entry": Event(records_another, ("A",)),
}


class Row(NamedTuple):
    before: str
    event: str
    requests: str
    after: str


def rows() -> Iterator[Row]:
    """The lines of the page's last table."""
    listed = [line.strip("| ").split(" | ") for line in Page("docs/releasing.md").text.splitlines() if "| " in line]
    return (Row(*cells) for cells in listed if len(cells) == 4 and cells[0] not in ("State before", "---"))


@pytest.fixture(scope="module")
def server() -> Iterator[DevApiServer]:
    with serve_in_thread() as running:
        yield running


NUMBERS = count()


@pytest.fixture
async def stage(server: DevApiServer, tmp_path: Path) -> AsyncIterator[Stage]:
    """A namespace of its own for each row."""
    number = next(NUMBERS)
    async with Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        if number == 0:
            await furnish(api)
        await api.create(NAMESPACES, {"metadata": {"name": f"row-{number}"}})
        yield Stage(api, f"row-{number}")


@pytest.mark.rule("CC-05", "CC-06", "SC-01")
@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.before}: {row.event}")
async def test_a_row_of_the_table_is_what_happens(row: Row, stage: Stage) -> None:
    event = EVENTS[row.event]
    named = set(re.findall(r"\b[AB]\b", row.before))
    for name in sorted(named.union(event.waiting)):
        node = "" if name in event.waiting else "node-0"
        entry = Make.FROM_TEMPLATE if f"of {name}" in row.before else Make.use("c")
        await stage.pod(name, entry, node=node, scheduler=event.scheduler)
    await stage.claim(row.before, node=event.where)
    assert await stage.state() == row.before
    await stage.begin()
    await event.happens(stage)
    assert [" and ".join(sorted(loss, key=ORDER.index)) for loss in stage.client.losses] == [
        part for part in row.requests.split("; ") if part != "nothing"
    ]
    assert await stage.state() == row.after


ORDER = ["unreserve", "park", "deallocate", "release", "delete"]


def test_each_event_has_a_row() -> None:
    assert {row.event for row in rows()} == set(EVENTS)
