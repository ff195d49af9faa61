"""Opaque configuration of claims and classes."""

from __future__ import annotations

from typing import Any

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Skipped
from dra_driver_test.harness.bench import Bench
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
