"""The versions of the service: v1 and v1beta1."""

from __future__ import annotations

from dataclasses import replace

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.kubelet import V1, V1BETA1


async def _offered(bench: Bench) -> list[str]:
    info = await bench.kubelet.info(bench.registration.socket)
    return [version for version in info.supported_versions if version in (V1, V1BETA1)]


async def _both(bench: Bench) -> None:
    offered = await _offered(bench)
    if len(offered) < 2:
        raise Skipped(f"the driver offers {', '.join(offered)} only")


@check("PH-03")
async def are_served_as_offered(bench: Bench) -> None:
    """Each version of the service that is offered answers."""
    for service in await _offered(bench):
        async with bench.kubelet.connection(bench.registration, service) as plugin:
            try:
                await bench.kubelet.prepare(plugin, [])
            except Finding as finding:
                raise Finding(f"{service} is offered: {finding}") from None


@check("kubelet-manager.md 1", level=Level.SHOULD)
async def include_v1(bench: Bench) -> None:
    """The driver offers v1, which kubelets speak since Kubernetes 1.34."""
    offered = await _offered(bench)
    if V1 not in offered:
        raise Finding(f"the driver offers {', '.join(offered)}, and Kubernetes will remove v1beta1: offer v1 as well")


@check("KM-06", "PH-08")
async def prepare_the_same(bench: Bench) -> None:
    """The same claim has the same devices over v1 and v1beta1.

    A kubelet that was updated asks over the other version for the claims of pods that run. Share ids exist in v1 only.
    """
    await _both(bench)
    claim = await bench.claim()
    answers = []
    for service in (V1, V1BETA1):
        async with bench.kubelet.connection(bench.registration, service) as plugin:
            answer = (await bench.kubelet.prepare(plugin, [claim.ref]))[claim.uid]
            answers.append([replace(one, share_id=None) for one in answer])
    if answers[0] != answers[1]:
        raise Finding(f"over {V1} the answer is {answers[0]}, over {V1BETA1} it is {answers[1]}")


@check("KM-06", "PH-09")
async def share_their_state(bench: Bench) -> None:
    """A claim that was prepared over one version is unprepared over the other."""
    await _both(bench)
    with bench.cdi.nothing_left(f"prepared over {V1}, unprepared over {V1BETA1}"):
        claim = await bench.held()
        async with bench.kubelet.connection(bench.registration, V1BETA1) as plugin:
            await bench.kubelet.unprepare(plugin, [claim.ref])
