"""For tests of drivers: a node that runs them, without a cluster.

::

    async def test_a_container_is_greeted(driver_node):         # a pytest fixture that comes with this package
        async with driver_node.run(HelloDriver, "hello.example.com") as hello:
            claim = await hello.claim("hello-2")                # allocated to the device of that name
            container = await hello.prepare(claim)              # what a container with the claim gets
            assert container.environment == {"GREETING": "good night"}
            await hello.restart()                               # another process; reboot() also empties /run
            await hello.unprepare(claim)                        # leaves no CDI file behind

===============  ====================================================================
``DriverNode``   a node: folders, an API server, the CDI files that its runtime reads
``RunningDriver``  a driver on it, with kubelet, record of the calls and faults
``FakeKubelet``  calls a plugin over its sockets
``PluginApi``      an API server in memory
``CallRecorder``, ``Faults``  interceptors: the calls that came; failures and delays on order
===============  ====================================================================

Two drivers that run at once on one node, with ``rolling_update_uid``, are the two instances of a rolling update.
Spec: plugin-helper.md section 7.3.
"""

from .api import PluginApi
from .node import (
    Call,
    CallRecorder,
    ClaimFailed,
    Container,
    DriverNode,
    FakeKubelet,
    Faults,
    InjectedFault,
    RunningDriver,
    allocated_claim,
)

__all__ = [
    "Call",
    "CallRecorder",
    "ClaimFailed",
    "Container",
    "DriverNode",
    "FakeKubelet",
    "Faults",
    "InjectedFault",
    "PluginApi",
    "RunningDriver",
    "allocated_claim",
]
