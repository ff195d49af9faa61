"""Sweeps: the same results on a Dask cluster as in this process, and a table for programs."""

from __future__ import annotations

import io
import runpy
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from dra_operator.cli import main
from dra_operator.commands.file_items import BadInput
from dra_simulator import runs
from dra_simulator.trace import FRAME_COLUMNS, trace_frame

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("trace")
    nodes = "".join(f"n{number},16000,65536,4,M\n" for number in range(3))
    (folder / "nodes.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    pods = "".join(f"p{number},1000,1024,{1 + number % 2},1000\n" for number in range(12))
    (folder / "pods.csv").write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{pods}")
    return folder / "pods.csv", folder / "nodes.csv"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    from distributed import LocalCluster  # half a second, which each worker of a run would take to collect the tests

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp", host="127.0.0.1"
    ) as cluster:
        yield cluster.scheduler_address.removeprefix("tcp://")


@pytest.mark.filterwarnings("default")  # of the library that is tried
def test_a_cluster_gives_the_same_bits(trace: tuple[Path, Path], scheduler: str) -> None:
    played = partial(trace_frame, *trace, policies=("random", "best-fit"), seeds="1-3", pandas=False)
    here, there = played(), played(executor=f"dask://{scheduler}")
    assert list(there) == list(FRAME_COLUMNS)
    assert len(here["seed"]) > 6
    for column in FRAME_COLUMNS:
        assert here[column].tobytes() == there[column].tobytes(), column


@pytest.mark.filterwarnings("default")
def test_a_worker_of_another_version_is_refused(
    trace: tuple[Path, Path], scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = runs.versions()

    def versions() -> dict[str, str]:
        return own if threading.current_thread() is threading.main_thread() else {**own, "numpy": "1"}

    monkeypatch.setattr(runs, "versions", versions)
    with pytest.raises(BadInput, match=f"has numpy 1, this process {own['numpy']}: install the same"):
        trace_frame(*trace, executor=f"dask://{scheduler}")


def test_what_a_cluster_lacks_is_told(trace: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(address: str, **_: object) -> MagicMock:
        if address == "tcp://absent:1":
            raise OSError("refused")
        client = MagicMock()
        client.__enter__.return_value = client
        client.run.return_value = {}
        return client

    library = SimpleNamespace(Client=connected, as_completed=None)
    for found, host, said in [
        (None, "any", r"Dask is not installed: pip install 'kopf-dra\[dask\]'"),
        (library, "absent", "no Dask scheduler at absent:1: refused"),
        (library, "empty", "the scheduler at empty:1 has no workers: start some with `dask worker`"),
    ]:
        monkeypatch.setitem(sys.modules, "distributed", found)
        with pytest.raises(BadInput, match=said):
            trace_frame(*trace, executor=f"dask://{host}:1")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_waits_at_a_terminal_sees_how_many_runs_are_done(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", said)
    assert list(runs.results(str, range(10), runs.Executor(1), "runs")) == [str(it) for it in range(10)]
    lines = [f"{number:2} of 10 runs" for number in range(1, 11)]
    assert said.getvalue().split("\r\033[K")[1:] == ([*lines, ""] if is_terminal else [])


def test_a_library_that_is_not_installed_has_a_version_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker without it would not be told from one that has it."""

    def version(name: str) -> str:
        if name == "scipy":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr("importlib.metadata.version", version)
    found = runs.versions()
    assert (found["numpy"], found["scipy"]) == ("1", "none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "threads"], "--executor: expected processes or dask://HOST:PORT, got 'threads'"),
        (["--executor", "dask://host"], "--executor: expected processes or dask://HOST:PORT"),
        (["--executor", "dask://host:1", "--jobs", "2"], "--jobs: not with a scheduler"),
    ],
)
def test_wrong_words_are_told(
    trace: tuple[Path, Path], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    pods, nodes = map(str, trace)
    assert main(["simulate", "--trace", pods, "--nodes", nodes, *words]) == 2
    assert message in capsys.readouterr().err


def test_the_table_has_the_lines_of_csv(trace: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    pods, nodes = map(str, trace)
    assert (
        main(["simulate", "--trace", pods, "--nodes", nodes, "--policy", "best-fit", "--seed", "1-2", "-o", "csv"]) == 0
    )
    header, *lines = capsys.readouterr().out.splitlines()
    table = trace_frame(*trace, policies=["best-fit"], seeds="1-2", pandas=False)
    assert header.split(",") == list(table)
    assert lines == [",".join(map(str, row)) for row in zip(*(table[name].tolist() for name in table), strict=True)]
    assert table["allocated_percent"].dtype == np.float64


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KOPF_DRA_TRACE", str(tmp_path))
    monkeypatch.setenv("KOPF_DRA_SEEDS", "1")
    found = runpy.run_path(str(ROOT / "examples/trace/notebook.py"))
    assert set(found["at_full_demand"]) == set(found["POLICIES"])
    assert "best-fit" in capsys.readouterr().out
