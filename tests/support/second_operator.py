"""A second operator for a session of end-to-end tests: it has what is off by default, and little patience.

It places pods of its own scheduler name. It evicts beside the first operator, or beside kube-controller-manager, and
they do the same; DeviceTaintRules and ResourcePoolStatusRequests are served by it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from operator_process import OperatorProcess, operator_process
from world import LoopThread

NAME = "e2e-second"
"""Its scheduler name."""
FILTER_TIMEOUT = 0.1
OPTIONS = (
    *("--scheduler-name", NAME, "--controllers", "placement,release,eviction"),
    *("--feature-gates", "DRAResourcePoolStatus=true,DRADeviceTaintRules=true"),
    *("--binding-timeout", "2", "--filter-timeout", str(FILTER_TIMEOUT)),
)


@contextmanager
def second_operator(kubeconfig: Path, folder: Path) -> Iterator[OperatorProcess]:
    """It is ready, and runs in a process of its own."""
    thread, stack = LoopThread(), AsyncExitStack()
    try:
        running = operator_process(kubeconfig, folder / "log", "second", *OPTIONS)
        operator = thread.run(stack.enter_async_context(running))
        thread.run(operator.becomes_ready())
        yield operator
    finally:
        thread.run(stack.aclose())
        thread.close()
