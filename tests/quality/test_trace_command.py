"""``dra-operator simulate --trace``: a table, CSV, JSON and a picture; and errors that say what to do."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

import pytest
from dra_operator.cli import main
from dra_operator.quality.policies import POLICIES
from dra_simulator.runs import NAMES

PODS: Final = "name,cpu_milli,num_gpu,gpu_milli\n" + "".join(f"p{number},1000,1,600\n" for number in range(8))
NODES: Final = "sn,cpu_milli,gpu\nn1,16000,2\nn2,16000,2\n"


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    """The words of the command for a trace of eight pods, of which four fit."""
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(NODES)
    return ["simulate", "--trace", str(tmp_path / "pods.csv"), "--nodes", str(tmp_path / "nodes.csv")]


def test_the_table_has_a_row_for_each_policy_and_end(tables: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*tables, "--policy", "fgd,emptiest", "--seed", "1-3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "POLICY    RUNS  DEMAND  ALLOCATED       LOST OF IDLE",
        "fgd       3     100 %   60.00 % ± 0.00  100.00 % ± 0.00",
        "emptiest  3     100 %   60.00 % ± 0.00  100.00 % ± 0.00",
        "fgd       3     120 %   60.00 % ± 0.00  100.00 % ± 0.00",
        "emptiest  3     120 %   60.00 % ± 0.00  100.00 % ± 0.00",
    ]


def test_moves_make_room_for_a_refused_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two shares lie on two GPUs, which leaves neither to a pod that wants a whole one."""
    pods = "name,cpu_milli,num_gpu,gpu_milli\n" + "".join(
        f"p{it},1000,1,{milli}\n" for it, milli in enumerate((400, 400, 1000, 200))
    )
    (tmp_path / "pods.csv").write_text(pods)
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,gpu\nn1,16000,1\nn2,16000,1\n")
    words = ["simulate", "--trace", str(tmp_path / "pods.csv"), "--nodes", str(tmp_path / "nodes.csv")]
    assert main([*words, "--policy", "emptiest", "--seed", "1-9", "--moves", "50", "-o", "json"]) == 0
    moves = [it["moves"] for it in json.loads(capsys.readouterr().out)["runs"]]
    spread = [it for it in moves if it["moved"]]
    assert spread
    for it in spread:
        assert (it["moved"], it["placed"], it["after"]) == (1, 1, it["before"] + 1000)


def test_several_processes_give_the_same_as_one(tables: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*tables, "--policy", "random,first-fit", "--seed", "5", "--inflate", "2", "-o", "csv"]
    assert main(words) == 0
    alone = capsys.readouterr().out
    assert main([*words, "--jobs", "2"]) == 0
    assert capsys.readouterr().out == alone
    assert alone.splitlines()[:2] == [
        "policy,seed,demand_percent,allocated_percent,lost_percent",
        "random,5,15,15.0,11.76",
    ]


def test_json_and_the_picture_have_a_line_for_each_policy(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "fill.svg"
    assert main([*tables, "--policy", "best-fit,fgd", "-o", "json", "--plot", str(picture)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(it["policy"], it["seed"]) for it in document["runs"]] == [("best-fit", 1), ("fgd", 1)]
    assert document["runs"][0]["points"][-1] == {"demand": 120, "allocated": 60.0, "lost": 100.0}
    titles = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}title")
    assert [it.text for it in titles] == ["best-fit", "fgd"] * 2  # allocation, fragmentation
    text = picture.read_text()
    # They lie on each other, so their dashes alternate: neither hides the other.
    assert text.count('stroke-dasharray="6 6" stroke-dashoffset="0"') == 2
    assert text.count('stroke-dasharray="6 6" stroke-dashoffset="-6"') == 2
    assert "How full each policy makes the cluster: seed 1<" in text
    assert "<polygon" not in text


def test_the_picture_shows_the_spread_of_several_seeds(tables: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "fill.svg"
    words = ["--policy", "random,best-fit", "--seed", "3-5", "--plot", str(picture)]
    assert main([*tables, *words]) == 0
    text = picture.read_text()
    assert "means of the seeds 3 to 5, bands from lowest to highest" in text
    assert text.count("<polygon") == 4, "a band for each policy in each chart"


@pytest.mark.parametrize(
    ("node", "demand"),
    [("n1,16000,4", "100 %"), ("n1,10,16", "50 % ")],
    ids=["each pod asks for more than there is", "no node has the cpu"],
)
def test_a_cluster_that_takes_no_pod_stays_empty(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str, demand: str
) -> None:
    (tmp_path / "nodes.csv").write_text(f"sn,cpu_milli,gpu\n{node}\n")
    (tmp_path / "pods.csv").write_text("name,cpu_milli,num_gpu\na,1000,8\n")
    assert main([*tables, "--policy", "first-fit", "--moves", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"first-fit  1     {demand}   0.00 %     100.00 %"
    assert "0 moved pods (0.00 %) give room to 0 refused ones" in lines[-1]


def test_help_names_every_policy() -> None:
    assert set(NAMES) == set(POLICIES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "best"], "--policy: 'best' is unknown; choose from random, first-fit"),
        (["--seed", "a"], "--seed: 'a' is not a seed; write a number"),
        (["--inflate", "0"], "--inflate: expected a number above 0"),
        (["--inflate", "nan"], "--inflate: expected a number above 0"),
        (["--inflate", "0.1"], "--inflate: with 0.1 and seed 1 no pod is left that asks for a GPU, nothing to measure"),
        (["--inflate", "0.1", "-o", "json"], "--inflate: with 0.1 and seed 1 no pod is left"),
        (["--moves", "0"], "--moves: expected a percentage above 0"),
        (["--moves", "1", "--gangs"], "--moves, --gangs: not together"),
        (["--jobs", "0"], "--jobs: expected a number from 1"),
        (["--plot", "/nowhere/x.svg", "--policy", "first-fit"], "--plot: /nowhere/x.svg: No such file or directory"),
        (["-f", "x.yaml"], "--trace: not together with"),
        (["--nodes", "/nowhere/nodes.csv"], "/nowhere/nodes.csv: No such file or directory"),
    ],
)
def test_wrong_words_are_told_with_what_helps(
    tables: list[str], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main([*tables, *words]) == 2
    assert f"dra-operator simulate: {message}" in capsys.readouterr().err


def test_wrong_tables_are_told_with_file_line_and_column(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = tmp_path / "pods.csv"
    for content, message in (
        (b"name,cpu_milli,num_gpu\na,x,1\n", "line 2, column cpu_milli: 'x' is not a whole number"),
        (b"\x1f\x8b\xff", "not UTF-8 text; pass the CSV file itself"),
        (b"name,cpu_milli,num_gpu\na,1,0\n", "no pod asks for a GPU"),
    ):
        pods.write_bytes(content)
        assert main(tables) == 2
        assert f"dra-operator simulate: {pods}: {message}" in capsys.readouterr().err


def test_options_of_a_trace_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--policy", "fgd"]) == 2
    assert "--policy: only with --trace FILE" in capsys.readouterr().err


def test_a_missing_library_is_told_with_the_extra_that_has_it(
    tables: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [name for name in sys.modules if name.startswith(("dra_operator.quality", "dra_simulator.trace"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert main(tables) == 2
    assert "numpy is not installed: the extra kopf-dra[quality] brings it, see https://" in capsys.readouterr().err
