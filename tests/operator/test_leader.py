"""Two operators on one cluster, as processes: one works, the other takes over, and the first one never interferes.

Both reach the API server through a proxy that knows them apart, so that its journal tells who wrote what.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from command import Command, running
from dra_kube import LEASES, Api, connection
from dra_operator.app.leader import Seat
from faults import CutAfter, CutBefore, Delay, Entry, Fault, FaultProxy, Refuse, Target
from supervised import LiveCluster
from waiting import until

SHORT_SECONDS = 4
"""A renewal may take 1.4 s then: on a busy machine one took longer than the 0.7 s that a lease of 2 s leaves it."""
LONG_SECONDS = 30
SHORT = ("--leader-elect-lease-duration", str(SHORT_SECONDS))


class Operator:
    """One of the operators: its process, its probes, and what it wrote."""

    def __init__(self, name: str, command: Command, proxy: FaultProxy, address: str) -> None:
        self.name, self.command, self.journal, self._address = name, command, proxy.journal, address

    async def probe(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession(self._address) as http, http.get(path) as answer:
            return answer.status, await answer.text()

    async def answers(self, path: str, code: int, *words: str) -> str:
        """Wait until a probe has this code and words: while the process is busy its last answer counts."""

        async def answer() -> str | None:
            given, text = await self.probe(path)
            assert given == code, (given, text)
            assert all(word in text for word in words), text
            return text or "nothing"

        return await until(f"{path} answers {code} and {words}", answer)

    async def is_ready(self) -> bool:
        return (await self.probe("/readyz"))[0] == 200

    def signal(self, number: signal.Signals) -> None:
        self.command.process.send_signal(number)

    def writes(self, since: float) -> list[Entry]:
        """All but those of the lease itself, and reviews of rights, which change nothing."""
        found = (entry for entry in self.journal.find(Target(client=self.name), since) if entry.call.is_write)
        return [it for it in found if it.call.resource != "leases" and it.call.group != "authorization.k8s.io"]

    def renewed_at(self) -> float:
        """When the last write of the lease that was answered began: its creation, if it was not renewed since."""
        found = self.journal.find(Target(client=self.name, resource="leases"))
        return max(entry.at for entry in found if entry.call.is_write and entry.code in (200, 201))


class Site:
    """Starts operators on the server of the test."""

    def __init__(self, proxy: FaultProxy, folder: Path, stack: AsyncExitStack) -> None:
        self.proxy, self._folder, self._stack = proxy, folder, stack

    async def start(self, name: str, *options: str, pod_uid: str = "") -> Operator:
        config = self.proxy.write_kubeconfig(self._folder / f"{name}.config", name)
        words = ("dra-operator", "run", "--kubeconfig", str(config), "--metrics-port", "0", *options)
        command = await self._stack.enter_async_context(running(words, POD_NAME=name, POD_UID=pod_uid))
        address = (await command.says(r"metrics and probes on (\S+)"))[1]
        return Operator(name, command, self.proxy, address)


@pytest.fixture
async def site(kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(connection(kubeconfig)))
        yield Site(proxy, tmp_path, stack)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
async def pair(site: Site, cluster: LiveCluster) -> tuple[Operator, Operator]:
    """A leader that has bound a pod, and one that stands by."""
    return await start_pair(site, cluster, *SHORT)


async def start_pair(site: Site, cluster: LiveCluster, *options: str) -> tuple[Operator, Operator]:
    await cluster.furnish(devices=4, template=True)
    first = await site.start("first", *options)
    await first.command.says("leading")
    second = await site.start("second", *options)
    await second.command.says("standing by, the leader is first_")
    await cluster.place("before")
    await until("the first one is ready", first.is_ready)
    return first, second


async def test_the_second_one_is_alive_and_not_ready_and_says_who_leads(pair: tuple[Operator, Operator]) -> None:
    first, second = pair
    assert await second.answers("/livez", 200) == "ok\n"
    assert (await second.answers("/readyz", 503)).startswith("standing by, the leader is first_")
    assert await second.answers("/readyz?exclude=leading", 200) == "ok\n", "it would take over"
    status = 'leader_election_master_status{name="dra-scheduler"}'
    await first.answers("/metrics", 200, f"{status} 1.0\n")
    await second.answers("/metrics", 200, f"{status} 0.0\n")
    assert second.writes(0) == []
    assert first.writes(0) != []


async def test_after_a_kill_the_second_one_works_when_the_lease_is_over(site: Site, cluster: LiveCluster) -> None:
    """With the duration that users get, so it takes as long as that: 17 s, and more on a busy machine."""
    first, second = await start_pair(site, cluster)
    first.signal(signal.SIGKILL)
    await cluster.place("after")
    await until("the second one is ready", second.is_ready)


POD_UID = "5f0c1a52-3c1a-4a5e-9d0f-1f2f3a4b5c6d"
"""What the downward API gives to each container of a pod."""


async def test_a_container_that_is_started_again_does_not_wait_for_the_lease_of_its_own_pod(
    site: Site, cluster: LiveCluster
) -> None:
    """With a lease that would otherwise take half a minute to be over."""
    long = ("--leader-elect-lease-duration", str(LONG_SECONDS))
    await cluster.furnish(devices=4, template=True)
    first = await site.start("pod", *long, pod_uid=POD_UID)
    await cluster.place("before")
    first.signal(signal.SIGKILL)
    await first.command.end()
    again = await site.start("pod", *long, pod_uid=POD_UID)
    async with asyncio.timeout(LONG_SECONDS / 2):
        await again.command.says("was held by a process of this pod that has ended: pod_.*")
        await cluster.place("after")


async def test_a_second_process_of_a_pod_waits_while_the_first_lives_and_no_longer(
    site: Site, cluster: LiveCluster
) -> None:
    long = ("--leader-elect-lease-duration", str(LONG_SECONDS))
    first = await site.start("first", *long, pod_uid=POD_UID)
    await first.command.says("leading")
    second = await site.start("second", *long, pod_uid=POD_UID)
    await second.command.says("standing by, the leader is first_")
    first.signal(signal.SIGSTOP)  # alive, if it does nothing
    await until("the second one asked again", lambda: asked_for_the_lease(second, 3))
    assert "leading" not in second.command.output
    first.signal(signal.SIGKILL)
    async with asyncio.timeout(LONG_SECONDS / 2):
        await second.command.says("leading")


@pytest.mark.parametrize(("former", "again"), [("", ""), (POD_UID, "another")], ids=["on a laptop", "in another pod"])
async def test_a_process_elsewhere_waits_for_the_lease_to_be_over(former: str, again: str, site: Site) -> None:
    first = await site.start("first", "--leader-elect-lease-duration", str(LONG_SECONDS), pod_uid=former)
    await first.command.says("leading")
    first.signal(signal.SIGKILL)
    await first.command.end()
    second = await site.start("second", "--leader-elect-lease-duration", str(LONG_SECONDS), pod_uid=again)
    await second.command.says("standing by, the leader is first_")
    await until("the second one asked again", lambda: asked_for_the_lease(second, 3))
    assert "leading" not in second.command.output


async def asked_for_the_lease(operator: Operator, times: int) -> bool:
    return len(list(operator.journal.find(Target(client=operator.name, resource="leases")))) >= times


def test_an_environment_that_was_copied_to_another_machine_is_not_taken_for_the_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tools that run a process of a pod on a laptop copy its variables; the boot of the kernel is another one."""
    monkeypatch.setenv("POD_UID", POD_UID)
    with closing(Seat("kube-system/lease")) as here:
        marked = here.identity()
    assert POD_UID in marked
    monkeypatch.setattr(Path, "read_text", lambda _: "another-boot")
    with closing(Seat("kube-system/lease")) as elsewhere:
        assert elsewhere.identity() != marked
        assert not elsewhere.has_ended(marked)


def test_only_one_process_of_a_pod_has_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", POD_UID)
    with closing(Seat("kube-system/lease")) as first, closing(Seat("kube-system/lease")) as second:
        marked, plain = first.identity(), second.identity()
        assert POD_UID in marked
        assert POD_UID not in plain
        assert not second.has_ended(marked)
        assert not first.has_ended(marked), "its own name"
        first.close()
        assert POD_UID in second.identity()
        assert second.has_ended(marked)
        with closing(Seat("kube-system/another-lease")) as other:
            assert not other.has_ended(marked), "before it has a seat"


async def test_after_a_clean_end_the_second_one_works_long_before_the_lease_would_be_over(
    site: Site, cluster: LiveCluster
) -> None:
    """It takes up to 5 s, and more on a busy machine; without the release at least 25."""
    first, second = await start_pair(site, cluster, "--leader-elect-lease-duration", str(LONG_SECONDS))
    await cluster.add_pod("meanwhile")
    assert await first.command.end(signal.SIGTERM) == 0
    async with asyncio.timeout(20):
        await cluster.place("after")
    await until("the second one is ready", second.is_ready)


async def test_a_leader_paused_beyond_its_lease_writes_nothing_when_it_wakes_and_ends_with_1(
    pair: tuple[Operator, Operator], cluster: LiveCluster
) -> None:
    first, second = pair
    first.signal(signal.SIGSTOP)
    for number in range(3):
        await cluster.add_pod(f"pod-{number}")  # work that it finds when it wakes
        await cluster.bound(f"pod-{number}")
    await until("the second one is ready", second.is_ready)
    woken = now()
    first.signal(signal.SIGCONT)
    assert await first.command.end() == 1
    assert "the lease is lost: second_" in first.command.output
    assert first.writes(woken) == []


async def test_a_leader_paused_in_the_middle_of_its_work_begins_no_write_when_it_wakes(
    pair: tuple[Operator, Operator], cluster: LiveCluster
) -> None:
    """Many pods come at once, and it is stopped while it writes for them.

    A write that had passed its check in the moment of the pause may still go out: one at most, and first.
    """
    first, second = pair
    for number in range(30):
        await cluster.add_pod(f"pod-{number}")
    await until("the first one places pods", lambda: started(first))
    first.signal(signal.SIGSTOP)
    await until("the second one is ready", second.is_ready)
    woken = now()
    first.signal(signal.SIGCONT)
    assert await first.command.end() == 1
    assert first.journal.begun_since(woken, first.name) == []

    async def made() -> bool:
        return len(await cluster.claims()) >= 31

    await until("all claims are made", made)  # a new leader is ready before it has done all that it found
    assert len(await cluster.claims()) == 31

    async def held() -> list[tuple[str, str]]:
        return [
            (result["pool"], result["device"])
            for claim in await cluster.claims()
            for result in (claim.get("status", {}).get("allocation") or {"devices": {"results": []}})["devices"][
                "results"
            ]
        ]

    async def all_are_held() -> bool:
        return len(await held()) >= 4

    await until("the second one gives the rest away", all_are_held)
    assert len(set(await held())) == len(await held()) == 4


async def started(operator: Operator) -> bool:
    return any(entry.call.name.startswith("pod-") for entry in operator.writes(0))


async def test_a_leader_whose_server_is_away_stops_writing_and_goes_on_with_what_it_knows(
    site: Site, cluster: LiveCluster
) -> None:
    await cluster.furnish(template=True)
    only = await site.start("only", *SHORT, "-v")
    await until("the only one is ready", only.is_ready)
    with site.proxy.suffering(Refuse(Target(resource="leases"), code=503)):
        await only.command.says("cannot renew the Lease kube-system/dra-operator-dra-scheduler")

        async def is_blocked() -> bool:
            code, text = await only.probe("/readyz")
            return code == 503 and "cannot renew the Lease" in text

        await until("blocked", is_blocked)

        async def time_is_up() -> bool:
            return now() > only.renewed_at() + SHORT_SECONDS

        await until("its time is up", time_is_up)
        refused = now()
        await cluster.add_pod("pod")
        await only.command.says("the lease was last renewed")
        assert only.writes(refused) == []
    await cluster.bound("pod")
    await until("the only one is ready", only.is_ready)
    assert only.command.output.count("in sync") == 1
    await only.command.says("the Lease kube-system/dra-operator-dra-scheduler is renewed again")
    said = [line for line in only.command.output.splitlines() if "cannot renew the Lease" in line]
    alike = ["503" in line for line in said]  # a busy machine answers too late as well, which is another error
    assert all(one != next_one for one, next_one in pairwise(alike)), f"reading and writing it fail alike: {said}"
    assert await only.command.end(signal.SIGTERM) == 0


async def test_one_that_stands_by_tells_when_it_cannot_read_the_lease_and_when_it_can_again(
    pair: tuple[Operator, Operator], site: Site
) -> None:
    _, second = pair
    with site.proxy.suffering(Refuse(Target(client="second", resource="leases"), code=503)):
        await second.command.says("standing by, cannot use the Lease kube-system/dra-operator-dra-scheduler")
        since = now()

        async def is_refused_again() -> bool:
            return len(list(site.proxy.journal.find(Target(client="second"), since))) > 1

        await until("it was refused again", is_refused_again)
    await second.command.says("the Lease kube-system/dra-operator-dra-scheduler is answered again")
    said = [line for line in second.command.output.splitlines() if "cannot use the Lease" in line]
    assert all(one != next_one for one, next_one in pairwise(["503" in line for line in said])), said
    await second.answers("/readyz?exclude=leading", 200)


async def test_a_deleted_lease_is_written_again(
    pair: tuple[Operator, Operator], api: Api, cluster: LiveCluster
) -> None:
    await api.delete(LEASES, "dra-operator-dra-scheduler", "kube-system")

    async def is_back() -> bool:
        leases, _ = await api.list(LEASES, "kube-system")
        return any(lease["spec"]["holderIdentity"].startswith("first_") for lease in leases)

    await until("the lease is back", is_back)
    await cluster.place("after")


async def test_operators_for_different_schedulers_do_not_exclude_each_other(site: Site) -> None:
    one = await site.start("one")
    other = await site.start("other", "--scheduler-name", "other", "--controllers", "placement")
    await until("one is ready", one.is_ready)
    await until("the other is ready", other.is_ready)


@pytest.mark.parametrize(
    ("code", "options", "says"),
    [
        (403, [], ["allow get, create and update on leases", "Role dra-operator-leader-election", "--no-leader-elect"]),
        (404, ["--leader-elect-namespace", "nowhere"], ['namespaces "nowhere" not found', "--leader-elect-namespace"]),
    ],
    ids=["forbidden", "no such namespace"],
)
async def test_what_keeps_it_from_the_lease_is_named_with_the_remedy(
    site: Site, code: int, options: list[str], says: list[str]
) -> None:
    with site.proxy.suffering(*([Refuse(Target(resource="leases"), code=403)] if code == 403 else [])):
        operator = await site.start("operator", *options)
        assert await operator.command.end() == 1
    for text in says:
        assert text in operator.command.output
    assert "Traceback" not in operator.command.output


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(Target(resource="leases"), count=2, code=503),
        Refuse(Target(resource="leases"), count=2, code=429),
        CutAfter(Target(resource="leases", verbs=("create",)), count=1),
        Delay(Target(resource="leases"), count=1, before=(9, 9)),
    ],
    ids=["an API server that is not up yet", "one that is busy", "a lost answer", "an answer that comes late"],
)
async def test_a_candidate_asks_again_after(fault: Fault, site: Site) -> None:
    with site.proxy.suffering(fault):
        operator = await site.start("operator")
        await operator.command.says("leading")


async def test_a_server_that_takes_2_seconds_for_each_write_is_worked_with(site: Site, cluster: LiveCluster) -> None:
    await cluster.furnish(devices=1, template=True)
    writes = ("create", "update", "patch")
    with site.proxy.suffering(Delay(Target(verbs=writes, client="operator"), before=(2.2, 2.2))):
        operator = await site.start("operator")
        await operator.command.says("leading")
        await cluster.place("slowly")


async def test_a_server_too_slow_for_the_lease_is_told_with_the_remedy(site: Site) -> None:
    with site.proxy.suffering(Delay(Target(resource="leases", verbs=("create", "update")), before=(9, 9))):
        operator = await site.start("operator")
        said = await operator.command.says("standing by, cannot use the Lease .*")
        assert "a request for the lease may take 5 s" in said[0]
        assert said[0].endswith("set --leader-elect-lease-duration above 15")
        await operator.answers("/readyz", 503, "--leader-elect-lease-duration above 15")


@pytest.mark.parametrize("options", [(), ("--no-leader-elect",)], ids=["a new leader", "an operator without election"])
@pytest.mark.parametrize(
    "fault",
    [
        Refuse(Target(verbs=("list",), resource="nodes", client="operator"), count=2, code=500),
        Refuse(Target(verbs=("list",), resource="nodes", client="operator"), count=2, code=429, retry_after=1),
        CutBefore(Target(verbs=("list",), resource="nodes", client="operator"), count=4),
    ],
    ids=["answers 500", "is busy", "breaks connections"],
)
async def test_a_start_is_tried_again_when_the_server(options: tuple[str, ...], fault: Fault, site: Site) -> None:
    with site.proxy.suffering(fault):
        operator = await site.start("operator", *options)
        await operator.command.says("start failed, retrying in")
        await operator.command.says("in sync")


async def test_without_election_no_lease_is_touched(site: Site, api: Api) -> None:
    operator = await site.start("operator", "--no-leader-elect", "--controllers", "placement")
    await until("ready", operator.is_ready)
    assert site.proxy.journal.count(Target(resource="leases")) == 0
    assert os.environ.get("POD_NAME") is None
    assert await operator.command.end(signal.SIGTERM) == 0
