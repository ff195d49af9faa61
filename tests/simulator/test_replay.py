"""``dra-operator simulate --trace SNAPSHOT``: how a cluster's last week would have been, and which strategy to set."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from command import ROOT
from dra_operator.cli import main
from trace_objects import made_traces
from trace_objects import nodes_with_devices as nodes
from trace_objects import template_for_any as template

Json = dict[str, Any]
DRA: Final = "resource.k8s.io/v1"
START: Final = datetime(2030, 1, 1, tzinfo=UTC)


def at(hours: float) -> str:
    return (START + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def named(name: str) -> Json:
    return {"name": name, "namespace": "ns", "uid": name}


def pod(
    name: str, created: float, scheduled: float | None, ended: float | None, claim: str, cpu: str = "0", **more: Any
) -> Json:
    """A pod with the times of its status, in hours; ``claim``: the name of a template, or ``=`` and that of a claim."""
    source = {"resourceClaimName": claim[1:]} if claim.startswith("=") else {"resourceClaimTemplateName": claim}
    container = {"name": "c", "resources": {"claims": [{"name": "d"}], "requests": {"cpu": cpu}}}
    spec: Json = {"containers": [container], "resourceClaims": [{"name": "d", **source}], **more}
    status: Json = {"phase": "Pending"}
    if scheduled is not None:
        spec["nodeName"] = "n1"
        status["phase"] = "Running" if ended is None else "Succeeded"
        changed = {"PodScheduled": ("True", scheduled), "Ready": ("False", ended)}
        status["conditions"] = [
            {"type": type_, "status": is_so, "lastTransitionTime": at(when)}
            for type_, (is_so, when) in changed.items()
            if when is not None
        ]
    metadata = named(name) | {"creationTimestamp": at(created)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


class Told:
    """What the command says of some objects, as JSON."""

    def __init__(self, document: Json) -> None:
        self.notes: list[str] = document["notes"]
        self.advice: str = document["advice"]
        self._courses = {it["strategy"]: it for it in document["strategies"]}
        self.start, self.end = document["start"], document["end"]

    def hours(self, strategy: str) -> tuple[float, float]:
        """How long pods waited, in the mean and at most."""
        course = self._courses[strategy]
        return course["meanWaitSeconds"] / 3600, course["longestWaitSeconds"] / 3600

    def __getitem__(self, strategy: str) -> Json:
        found: Json = self._courses[strategy]
        return found

    def used(self, strategy: str) -> dict[str, float]:
        """Devices in use from each time on."""
        return {it["time"]: it["devicesInUse"] for it in self[strategy]["points"]}


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*documents: Json, words: tuple[str, ...] = ("--policy", "first-fit,best-fit")) -> Told:
        file = tmp_path / "week.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        assert main(["simulate", "--trace", str(file), "-o", "json", *words]) == 0
        return Told(json.loads(capsys.readouterr().out))

    return ask


SPREAD: Final = (
    *nodes("n1", "n2", devices=4),
    template("one"),
    template("four", count=4),
    pod("a", 0, 0, 10, "one"),
    pod("b", 1, 1, 20, "one"),
    pod("large", 2, 10, 30, "four"),
)
"""The emptiest node first leaves no node free for the large pod until a small one has ended; it was so."""


def test_the_table_says_how_long_pods_wait_and_what_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "week.yaml").write_text(yaml.safe_dump_all(SPREAD))
    assert main(["simulate", "--trace", str(tmp_path / "week.yaml")]) == 0
    *lines, advice = capsys.readouterr().out.splitlines()
    assert lines == [
        "STRATEGY   PODS STARTED  OF  WAITED, MEAN  LONGEST  DEVICES IN USE",
        "as it was  3             3   2.67 h        8 h      45.4 %",
        "first-fit  3             3   2.67 h        8 h      45.4 %",
        "emptiest   3             3   2.67 h        8 h      45.4 %",
        "best-fit   3             3   0 s           0 s      45.4 %",
        "packing    3             3   0 s           0 s      45.4 %",
        "fgd        3             3   0 s           0 s      45.4 %",
        "frag       3             3   0 s           0 s      45.4 %",
        "",
        f"From {at(0)} to {at(30)}. A pod that waits at the end counts with its time so far.",
    ]
    assert advice == (
        "run the operator with --placement-strategy best-fit: pods wait 0 s on average, 2.67 h as it was, 2.67 h with "
        "first-fit"
    )


def test_the_page_shows_what_the_example_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", str(made_traces() / "week.yaml")]) == 0
    *lines, _, window, advice = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs/simulate.md").read_text()
    for line in (*lines, window, advice):
        assert f"{line}\n" in page


def test_a_pod_runs_as_long_as_it_ran(told: Any) -> None:
    found = told(*SPREAD)
    assert found.used("best-fit") == {at(0): 1, at(1): 2, at(2): 6, at(10): 5, at(20): 4, at(22): 0}
    assert found.used("as it was") == {at(0): 1, at(1): 2, at(2): 2, at(10): 5, at(20): 4, at(30): 0}


def test_what_ended_before_the_week_is_left_out_and_what_ran_then_holds_its_devices(told: Any) -> None:
    week = 7 * 24
    found = told(
        *nodes("n1", devices=1),
        template("one"),
        pod("long-gone", -20, -20, -10, "one"),
        pod("there", -5, -4, 6, "one"),
        pod("new", 5, 6, week, "one"),
    )
    assert (found.start, found.end) == (at(0), at(week))
    assert found["first-fit"]["pods"] == 1
    assert found.hours("first-fit") == (1, 1)
    assert found.used("first-fit")[at(0)] == 1


def test_a_pod_that_waits_at_the_end_counts_with_its_time_so_far(told: Any) -> None:
    found = told(
        *nodes("n1", devices=1), template("one"), pod("runs", 0, 0, None, "one"), pod("waits", 1, None, None, "one"),
        pod("asks-for-none", 5, 5, 5, "=missing"),
    )  # fmt: skip
    assert (found["first-fit"]["started"], found["first-fit"]["pods"]) == (1, 2)
    assert found.hours("first-fit")[1] == 4
    assert found.notes == [
        "1 pod left out: the snapshot lacks a claim or template of theirs, or another gate is closed"
    ]
    assert found.advice == "with no strategy pods wait 5 % less than as it was: leave the setting as it is"


def test_where_no_pod_waits_a_higher_load_is_advised(told: Any) -> None:
    found = told(
        *nodes("n1", devices=2), template("one"), pod("runs", 0, 0, None, "one"), pod("too", 1, 1, None, "one")
    )
    assert found.hours("first-fit") == (0, 0)
    assert found.advice == ("no pod waited: leave the setting as it is, or try a higher load with --inflate 1.3")


def test_higher_priority_is_tried_first_then_age(told: Any) -> None:
    found = told(
        *nodes("n1", devices=1), template("one"),
        pod("first", 0, 0, 10, "one"),
        pod("old", 1, 10, 20, "one"),
        pod("important", 2, 20, 24, "one", priority=5),
    )  # fmt: skip
    assert found.hours("first-fit") == (pytest.approx((8 + 13) / 3, abs=0.01), 13)
    assert found.hours("as it was")[1] == 18


def test_a_claim_that_pods_share_is_free_when_the_last_of_them_has_ended(told: Any) -> None:
    claim = {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": named("shared")}
    claim["spec"] = template("one")["spec"]["spec"]
    found = told(
        *nodes("n1", devices=1), template("one"), claim,
        pod("a", 0, 0, 4, "=shared"), pod("b", 1, 1, 6, "=shared"), pod("c", 2, 6, 8, "one"),
    )  # fmt: skip
    assert found.hours("first-fit")[1] == 4
    for strategy in ("first-fit", "as it was"):
        assert set(found.used(strategy).values()) == {0, 1}


def test_cpu_comes_free_as_well(told: Any) -> None:
    found = told(
        *nodes("n1", devices=4, cpu="3"), template("one"),
        pod("a", 0, 0, 4, "one", cpu="2"), pod("b", 1, 4, 9, "one", cpu="2"),
    )  # fmt: skip
    assert found.hours("first-fit")[1] == 3


def test_a_higher_load_is_more_pods_of_the_same_kinds(told: Any) -> None:
    found = told(*SPREAD, words=("--policy", "best-fit", "--inflate", "2"))
    assert found["best-fit"]["pods"] == 6
    assert found.used("best-fit")[at(1)] == 4
    with pytest.raises(KeyError):
        found["as it was"]


def test_pods_whose_status_lacks_times_are_told(told: Any) -> None:
    found = told(*SPREAD, pod("undated", 0, 1, 2, "one") | {"status": {"phase": "Succeeded"}})
    assert found.notes == ["1 pod left out: their status does not say when they got a node, or ended"]


def test_several_processes_say_the_same_as_one(told: Any) -> None:
    assert told(*SPREAD).used("best-fit") == told(*SPREAD, words=("--jobs", "2")).used("best-fit")


def test_csv_and_the_picture_have_each_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "week.yaml").write_text(yaml.safe_dump_all(SPREAD))
    words = ["simulate", "--trace", str(tmp_path / "week.yaml"), "--policy", "frag", "-o", "csv"]
    assert main([*words, "--plot", str(tmp_path / "week.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "strategy,time,devices_in_use,pods_waiting"
    assert f"as it was,{at(2)},2,1" in lines
    assert f"frag,{at(2)},6,0" in lines
    titles = ElementTree.parse(tmp_path / "week.svg").iter("{http://www.w3.org/2000/svg}title")
    assert [it.text for it in titles] == ["as it was", "frag"] * 2  # use, and pods that wait


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "dot-product"], "--policy: 'dot-product' is no placement strategy, which a snapshot needs"),
        (["--nodes", "nodes.csv"], "--nodes, --seed, --gangs, --moves: only with a table in CSV"),
        (["--gangs"], "--nodes, --seed, --gangs, --moves: only with a table in CSV"),
        (["--inflate", "0"], "--inflate: expected a number above 0"),
        (["--jobs", "0"], "--jobs: expected a number from 1"),
        (["--plot", "/nowhere/x.svg", "--policy", "frag"], "--plot: /nowhere/x.svg: No such file or directory"),
    ],
)
def test_wrong_words_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (tmp_path / "week.yaml").write_text(yaml.safe_dump_all(SPREAD))
    assert main(["simulate", "--trace", str(tmp_path / "week.yaml"), *words]) == 2
    assert f"dra-operator simulate: {message}" in capsys.readouterr().err


def test_a_snapshot_without_such_pods_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "week.yaml").write_text(yaml.safe_dump_all(nodes("n1", devices=1)))
    assert main(["simulate", "--trace", str(tmp_path / "week.yaml")]) == 2
    assert "no pod with claims whose status says when it came and went" in capsys.readouterr().err


def test_times_of_the_first_year_are_played(told: Any) -> None:
    """The zero time of Go, as an unset field has it: no week is before it."""
    waiting = pod("p", 0, None, None, "one")
    waiting["metadata"]["creationTimestamp"] = "0001-01-01T00:00:00Z"
    found = told(*nodes("n1", devices=1), template("one"), waiting)
    assert found.start == found.end == "0001-01-01T00:00:00Z"


def test_lines_that_lie_on_each_other_can_all_be_seen_and_pods_are_counted_whole(tmp_path: Path) -> None:
    (tmp_path / "week.yaml").write_text(yaml.safe_dump_all(SPREAD))
    words = ["simulate", "--trace", str(tmp_path / "week.yaml"), "--policy", "best-fit,frag", "-o", "csv"]
    assert main([*words, "--plot", str(tmp_path / "week.svg")]) == 0
    drawn = ElementTree.parse(tmp_path / "week.svg")
    titles = drawn.iter("{http://www.w3.org/2000/svg}title")
    assert [it.text for it in titles] == ["as it was", "best-fit", "frag"] * 2
    lines = drawn.iter("{http://www.w3.org/2000/svg}polyline")
    dashes = [(it.get("stroke-dasharray"), it.get("stroke-dashoffset")) for it in lines]
    assert dashes == [(None, None), ("6 6", "0"), ("6 6", "-6")] * 2
    texts = [it.text or "" for it in drawn.iter("{http://www.w3.org/2000/svg}text")]
    marks = texts[texts.index("pods that wait") + 1 :]
    assert marks[: marks.index("0", 1)] == ["0", "1"]


def test_a_snapshot_without_nodes_is_refused_with_a_remedy_that_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--trace`` takes no ``--node``."""
    objects = [*nodes(devices=0), template("t"), pod("p", 0, 1, 2, "t")]
    (tmp_path / "week.yaml").write_text(yaml.safe_dump_all(objects))
    assert main(["simulate", "--trace", str(tmp_path / "week.yaml")]) == 2
    said = capsys.readouterr().err
    assert "no node to try: add a Node object to the files" in said
    assert "--node" not in said
