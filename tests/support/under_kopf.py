"""The real operator under Kopf, inside the test's process: ``kopf run`` in a thread."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import kopf
from kopf.testing import KopfRunner

MAIN = Path(__file__).resolve().parents[2] / "operator" / "main.py"
WITHOUT_RULES = Path(__file__).with_name("without_rules.py")
Operating = Callable[[], AbstractAsyncContextManager[KopfRunner]]
"""Runs the operator under Kopf for a block; the runner has output and exit code after it."""


@contextmanager
def kopf_run(kubeconfig: Path, timeout: float = 60, main: Path = MAIN) -> Iterator[KopfRunner]:
    """``kopf run --all-namespaces operator/main.py``; after the block the runner has output and exit code."""
    runner = KopfRunner(
        ["run", "--all-namespaces", str(main)],
        registry=kopf.OperatorRegistry(),
        env={"KUBECONFIG": str(kubeconfig)},
        timeout=timeout,
    )
    try:
        with runner:
            yield runner
    finally:
        collect_leftovers_of_kopf()


def collect_leftovers_of_kopf() -> None:
    """A Kopf that is stopped leaves connections of its own open now and then.

    They are collected here, where they belong, and not in whatever test runs when Python's collector does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
