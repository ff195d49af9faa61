"""Tables are read as they are meant, and a bad row is named by line and column, with what helps."""

from __future__ import annotations

import pytest
from dra_operator.quality.trace import Shape, TraceError, TraceNode, TracePod, read_nodes, read_pods, read_seeds

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
NODES = "sn,cpu_milli,memory_mib,gpu,model"


def test_pods_take_shares_whole_gpus_or_none() -> None:
    rows = ["d,1,2,2,1000,", "a,4000,64,1,300,A|B", "b,1,2,0,0,A", "c,1,2,1,1000,"]
    assert read_pods([PODS, *rows]) == [
        TracePod("a", 64, Shape(4000, 300, 1, "A|B")),
        TracePod("b", 2, Shape(1, 0, 0, "")),
        TracePod("c", 2, Shape(1, 1000, 1, "")),
        TracePod("d", 2, Shape(1, 1000, 2, "")),
    ]


def test_columns_that_may_be_missing_are_missing() -> None:
    assert read_pods(["name,cpu_milli,num_gpu", "a,1,1"]) == [TracePod("a", 0, Shape(1, 1000, 1, ""))]
    assert read_nodes(["name,cpu_milli,gpu,zone", "n,1,2,east"]) == [TraceNode("n", 1, 10**12, 2, "")]


@pytest.mark.parametrize(
    ("spec", "accepted"), [("", ["A", ""]), ("A", ["A"]), ("A|B", ["A", "B"]), ("|", ["A", ""]), ("A|", ["A"])]
)
def test_a_pod_accepts_the_models_that_it_names(spec: str, accepted: list[str]) -> None:
    shape = Shape(1, 1000, 1, spec)
    assert [model for model in ("A", "B", "") if shape.accepts(model)] == [
        model for model in ("A", "B", "") if model in accepted or not spec.strip("|")
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,1.5,1,1,1,"], "line 2, column cpu_milli: '1.5' is not a whole number from 0 to 1000000000000; correct"),
        (["a,1,1,1,1,", "b,1,1,-1,1,"], "line 3, column num_gpu: '-1' is not a whole number from 0 to 64"),
        (["a,1,1,1,0,"], "line 2, column gpu_milli: 0 thousandths of a GPU; write 1 to 1000"),
        (["a,1,1,1,1001,"], "line 2, column gpu_milli: '1001' is not a whole number from 0 to 1000"),
        (["a,1,1"], "line 2, column num_gpu: '' is not a whole number"),
        (["a,1,1,1,1,,9"], "line 2, column gpu_spec: there are more values than columns"),
        (["a,1,1,1,1,", "", "a,1,1,1,1,"], "line 4, column name: an earlier row is named 'a' as well; rename"),
        ([",1,1,1,1,"], "line 2, column name: the name is missing"),
        (["a,²,1,1,1,"], "line 2, column cpu_milli: '²' is not a whole number"),
        (["a," + "9" * 5000 + ",1,1,1,"], "line 2, column cpu_milli"),
        (['a,"1,1,1,1,'], "no CSV"),
        ([], "line 2, column name: the table has no rows"),
    ],
)
def test_a_bad_row_is_named_by_line_and_column(rows: list[str], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_pods([PODS, *rows])
    assert message in str(caught.value)


def test_a_missing_column_is_named_beside_those_that_are_there() -> None:
    with pytest.raises(TraceError, match="line 1, column gpu: it is missing; the first line names sn, cpu_milli"):
        read_nodes(["sn,cpu_milli", "n,1"])
    with pytest.raises(TraceError, match="names no columns"):
        read_nodes([])


def test_seeds_are_numbers_and_ranges() -> None:
    assert read_seeds("42") == [42]
    assert read_seeds("1, 3-5,4") == [1, 3, 4, 5]


@pytest.mark.parametrize("text", ["", "x", "5-3", "1-", "-1", "0-10000", "99999999999", "1-" + "9" * 5000])
def test_what_is_no_seed_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|fewer"):
        read_seeds(text)
