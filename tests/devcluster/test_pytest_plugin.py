"""The fixtures ``dev_cluster``, ``dev_api_server`` and ``eventually``. tests/docs runs those that pages show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dra_devcluster.background import eventually

CLIENTS = """
import kubernetes
import pytest
from dra_kube import NODES, Api, connection

async def test_in_a_loop(dev_cluster, eventually):
    async with Api(connection()) as api:
        async def node():
            return await api.get(NODES, "node-1")
        assert (await eventually(node))["metadata"]["name"] == "node-1"

def test_without_a_loop(dev_cluster):
    kubernetes.config.load_kube_config()
    (node,) = kubernetes.client.CoreV1Api().list_node().items
    assert node.metadata.name == "node-1"

def test_of_a_server_alone(dev_api_server):
    kubernetes.config.load_kube_config()
    assert kubernetes.client.CoreV1Api().read_namespace("default").metadata.name == "default"
    assert kubernetes.client.CoreV1Api().list_node().items == []

@pytest.mark.dev_cluster(nodes=0, feature_gates={"DRAPartitionableDevices": True})
def test_the_next_cluster_is_another_one(dev_cluster):
    kubernetes.config.load_kube_config()
    assert kubernetes.client.CoreV1Api().list_node().items == []
"""


def run(folder: Path, test: str, *options: str, before: str = "pass") -> str:
    """What pytest says about a file, in a process of its own; ``before`` is run ahead of it."""
    (folder / "test_it.py").write_text(test)
    script = f"import sys; {before}; import pytest; sys.exit(pytest.main({['-q', *options]!r}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_clients_find_the_cluster_of_their_test(tmp_path: Path) -> None:
    said = run(tmp_path, CLIENTS, "-o", "asyncio_mode=auto", "--strict-markers")
    assert "4 passed" in said, said


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    said = run(tmp_path, "def test(dev_cluster): pass", before="sys.modules['orjson'] = None")
    assert "orjson is not installed: the extra kopf-dra[devcluster] brings it" in said


def test_a_test_run_that_does_not_use_them_imports_next_to_nothing() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import dra_devcluster.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"dra_devcluster", "dra_devcluster.pytest_plugin"}


def test_eventually_is_the_first_answer_that_is_true() -> None:
    answers: Iterator[object] = iter([None, 0, "found", "later"])
    assert eventually(lambda: next(answers)) == "found"


async def test_eventually_is_awaited_in_a_loop_and_takes_a_failed_assertion_for_not_yet() -> None:
    answers = iter([0, 0, 3])

    async def three() -> int:
        answer = next(answers)
        assert answer == 3
        return answer

    assert await eventually(three) == 3


def test_eventually_says_what_it_saw_last() -> None:
    def slices() -> list[str]:
        return []

    with pytest.raises(AssertionError, match=r"^slices: not observed within 0.1 s; seen last: \[\]$"):
        eventually(slices, seconds=0.1)


def test_eventually_raises_what_is_no_failed_assertion() -> None:
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0)
