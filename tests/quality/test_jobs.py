"""Traces of jobs become pods, one for each node of a job. The samples are made up, in the form of published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from dra_operator.cli import main
from dra_operator.quality.trace import Shape, TraceError, TraceNode, TracePod, read_nodes, read_trace

ACME: Final = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,type,state,submit_time",
    "big,u1,2,16,240,1000,Other,FAILED,2023-05-17 11:00:58+00:00",
    "odd,u1,2,3,4,,Other,COMPLETED,2023-05-17 11:00:58+00:00",
    "cpu,u2,1,0,8,,Other,COMPLETED,2023-05-17 11:00:58+00:00",
)
PHILLY: Final = """[
 {"status": "Pass", "vc": "v", "jobid": "a", "user": "u", "submitted_time": "2017-10-07 01:11:39", "attempts": [
   {"start_time": "2017-10-07 01:12:09", "end_time": null, "detail": [
     {"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu5"]}]},
   {"start_time": "2017-10-07 02:12:09", "end_time": null, "detail": [{"ip": "m3", "gpus": ["gpu0"]}]}]},
 {"status": "Killed", "vc": "v", "jobid": "never", "user": "u", "submitted_time": "2017-10-07 01:11:39", "attempts": []}
]
"""
MACHINES: Final = ("machineId, number of GPUs, single GPU mem\n", "m1,2, 12GB\n", "m2,8, 24GB\n")


def test_a_job_on_several_nodes_becomes_as_many_pods() -> None:
    assert read_trace(ACME) == [
        TracePod("big-0", 1_024_000, Shape(120_000, 1000, 8, "")),
        TracePod("big-1", 1_024_000, Shape(120_000, 1000, 8, "")),
        TracePod("cpu-0", 0, Shape(8000, 0, 0, "")),
        TracePod("odd-0", 0, Shape(2000, 1000, 2, "")),
        TracePod("odd-1", 0, Shape(2000, 1000, 1, "")),
    ]


def test_helios_names_its_columns_in_another_order() -> None:
    rows = ["job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state", "1,u,v,train,8,32,1,COMPLETED"]
    assert read_trace(rows) == [TracePod("1-0", 0, Shape(32_000, 1000, 8, ""))]


def test_of_phillys_log_the_first_attempt_says_which_gpus() -> None:
    assert read_trace(PHILLY.splitlines(keepends=True)) == [
        TracePod("a-0", 0, Shape(0, 1000, 2, "")),
        TracePod("a-1", 0, Shape(0, 1000, 1, "")),
    ]


def test_phillys_machines_are_nodes() -> None:
    assert read_nodes(MACHINES) == [TraceNode("m1", 0, 10**12, 2, "12GB"), TraceNode("m2", 0, 10**12, 8, "24GB")]


def test_other_tables_are_read_as_before() -> None:
    assert read_trace(["name,cpu_milli,num_gpu", "a,1,1"]) == [TracePod("a", 0, Shape(1, 1000, 1, ""))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job_id,gpu_num,cpu_num\na,x,1", "line 2, column gpu_num: 'x' is not a whole number"),
        ("job_id,gpu_num,cpu_num\na,65,1", "line 2, column gpu_num: 65, which is more than 64 on each node"),
        ("job_id,gpu_num,cpu_num\na,1,1\na,1,1", "line 3, column job_id: an earlier row is named 'a' as well"),
        ("job_id,gpu_num\na,1", "line 1, column cpu_num: it is missing"),
        ('[{"attempts": []}]', "not a log of jobs in JSON: Object missing required field `jobid` - at `$[0]`"),
        ("[", "not a log of jobs in JSON: Input data was truncated"),
        (
            '[{"jobid": "a", "attempts": [{"detail": [{"gpus": [' + ",".join(['"g"'] * 65) + "]}]}]}]",
            "job a: 65 GPUs on one machine",
        ),
    ],
)
def test_what_cannot_be_read_is_told(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(text.splitlines(keepends=True))
    assert message in str(caught.value)


def test_the_command_plays_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cluster_job_log").write_text(PHILLY)
    (tmp_path / "machines.csv").write_text("".join(MACHINES))
    words = ["--trace", str(tmp_path / "cluster_job_log"), "--nodes", str(tmp_path / "machines.csv")]
    assert main(["simulate", *words, "--policy", "best-fit", "-o", "csv"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("best-fit,1,30,30.0,")
