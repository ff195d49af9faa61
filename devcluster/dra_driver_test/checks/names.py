"""Long and unusual names, all of them allowed by the API server."""

from __future__ import annotations

from dra_driver_test.check import check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench, ids_of
from dra_driver_test.harness.server import Use


async def _round(bench: Bench, name: str, *, namespace: str = "", request: str = "req") -> None:
    """Prepare and unprepare a claim of that name, with what a runtime and the folder make of it."""
    with bench.cdi.nothing_left("the claim was unprepared"):
        claim = await bench.server.claim(Use(await bench.device(), request), name=name, namespace=namespace)
        bench.cdi.edits(ids_of(await bench.prepared(claim)))
        await bench.unprepare(claim)


@check("api.md 2", "TD-02")
async def of_claims_may_be_long(bench: Bench) -> None:
    """A claim's name has up to 253 characters; a file name, which may contain it, has up to 255 bytes."""
    await _round(bench, ".".join(["c" * 49] * 5) + ".end")


@check("api.md 2", "TD-02")
async def of_claims_may_have_dots(bench: Bench) -> None:
    """A claim's name may begin with a digit and contain dots and dashes."""
    await _round(bench, "0.a--b.c-0")


@check("api.md 2", "TD-02")
async def of_requests_may_be_long(bench: Bench) -> None:
    """A request's name has up to 63 characters."""
    await _round(bench, "long-request", request="r" * 63)


@check("api.md 2", "TD-02")
async def of_namespaces_may_be_long(bench: Bench) -> None:
    """A namespace's name has up to 63 characters."""
    await _round(bench, "claim", namespace=await bench.server.namespace("n" * 63))


@check("api.md 2", "KM-18")
async def in_two_namespaces_are_two_claims(bench: Bench) -> None:
    """Two claims of the same name in different namespaces do not know each other."""
    one, other = await bench.devices(2)
    first = await bench.server.claim(Use(one), name="twin")
    second = await bench.server.claim(Use(other), name="twin", namespace=await bench.server.namespace("other"))
    answer = await bench.prepare(first, second)
    found = [[each.device for each in answer[claim.uid]] for claim in (first, second)]
    if found != [[one.name], [other.name]]:
        raise Finding(f"the twins hold {one.name} and {other.name}, and the driver prepared {found}")
    await bench.unprepare(first)
    bench.cdi.edits(ids_of(answer[second.uid]))


@check("api.md 2", "KM-18", restarts=True, waits=True)
async def in_two_namespaces_are_two_claims_after_a_restart(bench: Bench) -> None:
    """After a restart, unpreparing a claim leaves its namesake in another namespace as it was."""
    with bench.cdi.nothing_left("both were unprepared after a restart"):
        one, other = await bench.devices(2)
        first = await bench.server.claim(Use(one), name="twin")
        second = await bench.server.claim(Use(other), name="twin", namespace=await bench.server.namespace("other"))
        answer = await bench.prepare(first, second)
        await bench.restart(kill=True)
        await bench.unprepare(first)
        bench.cdi.edits(ids_of(answer[second.uid]))
        await bench.check_same_again(second, answer[second.uid], "after its namesake was unprepared")
        await bench.unprepare(second)
