"""Opaque configuration of claims and classes."""

from __future__ import annotations

from typing import Any

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.content import Content, given, shown
from dra_driver_test.harness.server import Device, Use

OTHER = "other.driver-test.example.com"


def _config(driver: str, parameters: dict[str, Any], source: str = "FromClaim", *requests: str) -> dict[str, Any]:
    opaque = {"driver": driver, "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


@check("api.md 2", "TD-01")
async def of_other_drivers_is_ignored(bench: Bench) -> None:
    """Parameters for another driver in the same claim do not matter.

    Claims may hold devices of several drivers, each with its own parameters.
    """
    device = await bench.device()
    config = [_config(OTHER, {"apiVersion": "other.example.com/v7", "kind": "Unheard", "of": ["by", "this"]})]
    await bench.prepare(await bench.claim(device, config=config))


@check("TD-01")
async def of_a_claim_is_accepted(bench: Bench) -> None:
    """Good parameters in a claim are accepted (``--parameters``)."""
    await _accepted(bench, "FromClaim")


@check("TD-01")
async def of_a_class_is_accepted(bench: Bench) -> None:
    """Good parameters that come from the class are accepted (``--parameters``)."""
    await _accepted(bench, "FromClass")


async def _accepted(bench: Bench, source: str) -> None:
    if bench.parameters.good is None:
        raise Skipped("no good parameters are known: give some with --parameters")
    device = await bench.device()
    config = [_config(bench.name, bench.parameters.good, source, "req")]
    await bench.prepare(await bench.claim(device, config=config))


@check("TD-01", "PH-08")
async def that_is_bad_is_refused(bench: Bench) -> None:
    """Bad parameters fail the claim instead of being ignored (``--bad-parameters``)."""
    if bench.parameters.bad is None:
        raise Skipped("no bad parameters are known: give some with --bad-parameters")
    device = await bench.device()
    claim = await bench.claim(device, config=[_config(bench.name, bench.parameters.bad)])
    await bench.refused(claim, f"with the bad parameters {bench.parameters.bad}")


@check("TD-01", level=Level.SHOULD)
async def of_other_requests_is_ignored(bench: Bench) -> None:
    """Bad parameters for a request that another driver serves do not matter (``--bad-parameters``)."""
    if bench.parameters.bad is None:
        raise Skipped("no bad parameters are known: give some with --bad-parameters")
    foreign = Device(OTHER, "other", "other-0", {})
    config = [_config(bench.name, bench.parameters.bad, "FromClaim", "other")]
    await bench.prepare(await bench.server.claim(Use(await bench.device()), Use(foreign, "other"), config=config))


@check("TD-01", "KM-17")
async def of_one_request_stays_there(bench: Bench) -> None:
    """Parameters for one request of a claim do not show in what containers get of the other (``--parameters``)."""
    if bench.parameters.good is None:
        raise Skipped("no good parameters are known: give some with --parameters")
    devices = await bench.devices(2)
    config = [_config(bench.name, bench.parameters.good, "FromClaim", "req")]
    seen: dict[bool, list[tuple[Content, Content]]] = {False: [], True: []}
    for configured in (False, True, False, True):
        claim = await bench.claim(*devices, config=config if configured else ())
        prepared = await bench.prepared(claim)
        seen[configured].append((given(bench, prepared, "req"), given(bench, prepared, "req-1")))
        await bench.unprepare(claim)
    without, with_ = seen[False], seen[True]
    effect = (with_[0][0] & with_[1][0]) - (without[0][0] | without[1][0])
    if not effect:
        raise Skipped("the parameters do not show in CDI edits")
    if strayed := effect & (with_[0][1] & with_[1][1]) - (without[0][1] | without[1][1]):
        raise Finding(f"the parameters are for 'req' alone, and containers of 'req-1' also get {shown(strayed)}")
