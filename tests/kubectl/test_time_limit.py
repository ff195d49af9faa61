"""An answer ends at its limit, and says so with what is known until then."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import pytest
from allocator_lab import partition_problem
from dra_api.core import Pod
from dra_operator.allocator import Allocator
from dra_operator.kubectl import devices, free
from dra_operator.kubectl.answer import ExitCode
from dra_operator.kubectl.cli import main, parser
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.pipeline import Abandoned, Pausing, Pipeline, TookTooLong, pipeline
from dra_operator.kubectl.snapshot import load
from dra_operator.kubectl.ui.server import PAGE_ANSWER_SECONDS
from dra_operator.kubectl.whatif import fitting
from dra_operator.kubectl.why.answer import waiting_groups
from dra_operator.kubectl.why.pods import why_pod

LIMIT = "the time limit was reached; kubectl dra why --time-limit gives more"
Json = dict[str, Any]


def ticking() -> Callable[[], float]:
    """A clock that is a second later whenever it is read."""
    now = 0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    return clock


@pytest.fixture
def costly(tmp_path: Path) -> Path:
    """Three nodes on which a search for devices gives up only after a second, two pods that want them, and a gang."""
    objects: list[Json] = [{"kind": "DeviceClass", "metadata": {"name": "hard"}, "spec": {}}]
    for number in range(3):
        node = f"node-{number}"
        status = {"allocatable": {"cpu": "9", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
        objects.append({"kind": "Node", "metadata": {"name": node}, "status": status})
        objects += ({"kind": "ResourceSlice", **one} for one in partition_problem(node))
    for name in ("a", "b"):
        request = {"name": "r", "exactly": {"deviceClassName": "hard", "count": 20}}
        spec: Json = {"devices": {"requests": [request]}}
        objects.append({"kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec})
        spec = {"schedulerName": "dra-scheduler", "containers": [{"name": "c"}]}
        spec["resourceClaims"] = [{"name": "r", "resourceClaimName": name}]
        objects.append({"kind": "Pod", "metadata": {"name": name}, "spec": spec})
    versions = {"Node": "v1", "Pod": "v1"}
    for obj in objects:
        obj["apiVersion"] = versions.get(obj["kind"], "resource.k8s.io/v1")
        obj["metadata"] |= {"uid": f"{obj['kind']} {obj['metadata']['name']}"}
        if obj["kind"] in ("Pod", "ResourceClaim"):
            obj["metadata"]["namespace"] = "default"
    file = tmp_path / "costly.yaml"
    file.write_text("\n---\n".join(map(json.dumps, objects)))
    return file


def made_of(file: Path) -> tuple[Pipeline, Pod]:
    made = pipeline(load(str(file)))
    return made, next(pod for pod in made.seen.every(Pod) if pod.metadata.name == "a")


def test_why_says_how_far_it_came(costly: Path) -> None:
    made, pod = made_of(costly)
    with made.pausing.within(10.0, clock=ticking()):
        report = why_pod(made, pod)
    assert report.lines[0] == f"pod default/a was not decided about, 0 of 3 nodes asked: {LIMIT}"
    assert not report.is_clear


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_why_says_what_the_nodes_said_that_were_asked(costly: Path, asked: int) -> None:
    """The costly nodes come last by their names: those without devices answer at once."""
    for number in range(asked):
        name = f"a-{number}"
        status = {"allocatable": {"cpu": "9", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}, "status": status}
        costly.write_text(f"{costly.read_text()}\n---\n{json.dumps(node)}")
    made, pod = made_of(costly)
    with made.pausing.within(10.0, clock=ticking()):
        report = why_pod(made, pod)
    assert report.lines[0] == f"pod default/a was not decided about, {asked} of {3 + asked} nodes asked: {LIMIT}"
    assert not report.is_clear
    if asked:
        nodes = "1 node" if asked == 1 else "2 nodes"
        assert report.lines[1] == f"pod default/a would fit 0 of the {nodes} asked"
        assert any("a-0" in line for line in report.lines[2:])
        assert not any("node-" in line for line in report.lines[2:])


MANY = """
apiVersion: v1
kind: Pod
metadata: {{name: p, namespace: default}}
spec:
  schedulerName: dra-scheduler
  containers: [{{name: c}}]
  resourceClaims: [{{name: r, resourceClaimTemplateName: t}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: t, namespace: default}}
spec: {{spec: {{devices: {{requests: [{{name: r, exactly: {{deviceClassName: hard, count: {count}}}}}]}}}}}}
"""
FIT_LIMIT = "the time limit was reached; kubectl dra fit --time-limit gives more"


@pytest.mark.parametrize(
    ("count", "words", "after", "said"),
    [
        (1, ["--max"], 25, r"at least \d+ copies of 1 pod would fit; {}"),
        (20, ["--max"], 10, r"at least 0 copies of 1 pod would fit; {}"),
        (1, ["--count", "30"], 25, r"(\d+) of 30 pods would fit, \1 of them tried; {}"),
        (1, ["--max", "--drain", "node-0"], 0.5, r"the time limit was reached before the pods of node node-0"),
    ],
    ids=["some", "none", "a number", "while a node is drained"],
)
def test_fit_says_how_far_it_came(
    count: int,
    words: list[str],
    after: float,
    said: str,
    costly: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (file := tmp_path / "pod.yaml").write_text(MANY.format(count=count))
    clock = ticking()
    within = Pausing.within
    monkeypatch.setattr(Pausing, "within", lambda self, _: within(self, after, clock=clock))
    if "--drain" in words:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
        meta = {"name": "old", "namespace": "default", "uid": "old", "ownerReferences": [owner]}
        spec = {"nodeName": "node-0", "schedulerName": "dra-scheduler", "containers": [{"name": "c"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        costly.write_text(f"{costly.read_text()}\n---\n{json.dumps(pod)}")
    assert main(["fit", "-f", str(file), *words, "--from", str(costly), "-n", "default"]) == 3
    captured = capsys.readouterr()
    assert re.search(said.format(re.escape(FIT_LIMIT)), captured.out + captured.err)


def test_fit_has_a_limit_that_can_be_set(costly: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "pod.yaml").write_text(MANY.format(count=20))
    words = ["fit", "-f", str(file), "--max", "--from", str(costly), "-n", "default", "--time-limit", "0.1s"]
    assert main(words) == 3
    assert FIT_LIMIT in capsys.readouterr().out
    assert main([*words, "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["isCut"] is True


def test_why_of_all_pods_names_those_that_it_did_not_look_at(costly: Path) -> None:
    made, _ = made_of(costly)
    with made.pausing.within(10.0, clock=ticking()):
        [group] = waiting_groups(made, made.seen.every(Pod))
    assert group.reason.startswith("not looked at: the time limit was reached")
    assert group.pods == ("default/a", "default/b")


def test_the_command_has_a_limit_of_its_own(costly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["why", "pod/a", "-n", "default", "--from", str(costly), "--time-limit", "0.1s"]
    assert main(words) == 3
    assert LIMIT in capsys.readouterr().out


def test_a_limit_ends_with_its_block_and_none_is_none() -> None:
    made = pipeline(load(str(Path(__file__).with_name("fleet.yaml"))))
    with made.pausing.within(1.0, clock=ticking()), pytest.raises(TookTooLong):
        for _ in range(3):
            made.pausing()
    made.pausing()
    with made.pausing.within(0.0, clock=ticking()):
        for _ in range(100):
            made.pausing()
    with made.pausing.within(0.0, lambda: True), pytest.raises(Abandoned):
        made.pausing()


def test_taint_says_for_which_pods_no_place_was_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).parent / "tainted.yaml")
    code = main(["taint", "gpu.example.com", "--dry-run", "--from", file, "--time-limit", "0.000001s"])
    lines = capsys.readouterr().out.splitlines()
    untried = [line for line in lines if "was not found out within the time limit; --time-limit gives more" in line]
    assert (code, len(untried)) == (ExitCode.IN_THE_WAY, 3)
    assert all("no node would take it" not in line for line in lines)


def test_drain_says_for_which_pods_no_place_was_looked_for(
    costly: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    text = costly.read_text().replace('"schedulerName"', '"nodeName": "node-0", "schedulerName"')
    costly.write_text(text.replace('"uid": "Pod', f'"ownerReferences": [{json.dumps(owner)}], "uid": "Pod'))
    assert main(["drain", "node-0", "--from", str(costly), "--time-limit", "0.000001s"]) == 3
    said = capsys.readouterr().out
    assert "0 of 2 pods of node node-0 would find another node" in said
    assert "2 pods were not tried: the time limit was reached; kubectl dra drain --time-limit gives more" in said


@pytest.mark.parametrize("after", [0, 2, 60])
def test_free_shows_what_it_found_until_its_limit(
    after: int, costly: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, within = ticking(), Pausing.within
    monkeypatch.setattr(Pausing, "within", lambda self, _: within(self, after + 0.5, clock=clock))
    monkeypatch.setattr(free, "_largest", lambda *_: 7)
    assert main(["free", "--class", "hard", "--from", str(costly)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("hard    node-") == min(after, 3)
    assert ("more may be free: the time limit was reached" in captured.err) == (after < 3)


def test_top_leaves_out_largest_requests_that_take_too_long(
    costly: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LARGEST_SECONDS", -1.0)
    assert main(["top", "classes", "--from", str(costly)]) == 0
    assert "<not in time>" in capsys.readouterr().out


def test_fit_says_that_it_was_not_found_out_what_would_be_left(
    costly: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To say how many devices a class has left may take much longer than to place the pods."""

    def late(*_: object) -> Never:
        raise TookTooLong

    monkeypatch.setattr(fitting, "left_in", late)
    (file := tmp_path / "pod.yaml").write_text(MANY.format(count=1))
    assert main(["fit", "-f", str(file), "--from", str(costly), "-n", "default"]) == 0
    assert f"what would be left was not found out: {FIT_LIMIT}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["--time-limit", "--timeout"])
def test_defrag_takes_the_former_name_of_its_time_limit(name: str) -> None:
    assert parser().parse_args(["defrag", "--for", "pod/p", name, "7s"]).time_limit == 7.0
    assert parser().parse_args(["defrag", "--for", "pod/p"]).time_limit == 30.0


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        (1, ExitCode.FAILED, "it was not found out whether anything has to move: {}"),
        (15, ExitCode.IN_THE_WAY, "not found: {} (4 pods may be moved)"),
        (0, ExitCode.CLEAR, "it would fit on"),
    ],
    ids=["before the search", "in the search", "never"],
)
def test_defrag_says_that_its_time_was_over(
    after: float,
    code: ExitCode,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single step may take longer than the limit."""
    here = Path(__file__).parent
    clock, within = ticking(), Pausing.within
    monkeypatch.setattr(Pausing, "within", lambda self, seconds: within(self, seconds and after, clock=clock))
    assert main(["defrag", "-f", str(here / "large.yaml"), "--from", str(here / "fleet.yaml"), "-n", "ml"]) == code
    captured = capsys.readouterr()
    limit = "the time limit was reached; kubectl dra defrag --time-limit gives more"
    assert said.format(limit) in captured.out + captured.err


def test_lint_says_how_many_objects_it_did_not_check(costly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was not checked is no success: CI must not pass by it."""
    manifests = Path(__file__).with_name("good.yaml")
    words = ["lint", "-f", str(manifests), "--from", str(costly), "--time-limit"]
    assert main([*words, "0.000001s"]) == ExitCode.IN_THE_WAY
    said = capsys.readouterr().out
    limit = "the time limit was reached; kubectl dra lint --time-limit gives more"
    assert f"not checked to the end: 2 objects: {limit}" in said
    main([*words, "0", "-o", "json"])
    assert json.loads(capsys.readouterr().out)["unchecked"] == 0


@pytest.mark.parametrize("after", [1, 3, 6, 12])
def test_lint_asks_for_the_time_before_each_node_and_device(
    after: int, costly: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object may be tried on all nodes, with selectors on all devices."""
    clock, within = ticking(), Pausing.within
    monkeypatch.setattr(Pausing, "within", lambda self, _: within(self, after, clock=clock))
    (file := costly.with_name("claim.yaml")).write_text(MANY.format(count=20).split("---")[1])
    assert main(["lint", "-f", str(file), "--from", str(costly)]) == ExitCode.IN_THE_WAY
    assert "not checked to the end: 1 object" in capsys.readouterr().out


LIMITED_OTHERWISE = {"top": devices.LARGEST_SECONDS, "ui": PAGE_ANSWER_SECONDS}
"""Seconds of a command without the flag. The limit of ``top`` is for ``top classes``, of ``ui`` for an answer."""
WORDS = {
    "devices": [["devices"]],
    "claims": [["claims", "-A"]],
    "pools": [["pools"]],
    "who": [["who", "gpu-1"], ["who", "gpu.example.com/nothing/at-all"]],
    "doctor": [["doctor"]],
    "territory": [["territory"], ["territory", "gpu.example.com"], ["territory", "--class", "gpu"]],
    "topology": [["topology", "gpu-1"]],
    "snapshot": [["snapshot"]],
}
"""Of each command that has no limit, what is asked in the fleet."""


def options_of(command: str) -> set[str]:
    parser = argparse.ArgumentParser()
    COMMANDS[command].add_arguments(parser)
    return set(parser._option_string_actions)


def test_every_command_has_a_time_limit_or_searches_nothing() -> None:
    without = {name for name in COMMANDS if "--time-limit" not in options_of(name)}
    assert without == LIMITED_OTHERWISE.keys() | WORDS.keys()
    assert {name for name in COMMANDS if "--request-timeout" not in options_of(name)} == set()
    assert all(0 < seconds <= 30 for seconds in LIMITED_OTHERWISE.values())


def forbid_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """These may take long: a search has as many steps as objects that others have written make it take."""

    def searched(*_: object, **__: object) -> Never:
        raise AssertionError("this searches: give the command a time limit")

    for place in ("allocate", "candidates"):
        monkeypatch.setattr(Allocator, place, searched)
    for module, place in (
        ("kubectl.pipeline", "plan"),
        ("kubectl.why.decision", "joint_plan"),
        ("commands.placing", "plan"),
    ):
        monkeypatch.setattr(f"dra_operator.{module}.{place}", searched)


@pytest.mark.parametrize("words", [it for each in WORDS.values() for it in each], ids=" ".join)
def test_a_command_without_a_time_limit_asks_neither_allocator_nor_scheduler(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_searches(monkeypatch)
    assert main([*words, "--from", str(Path(__file__).with_name("fleet.yaml"))]) in (0, 1, 3)
    captured = capsys.readouterr()
    assert captured.out or captured.err


@pytest.mark.parametrize("words", [["free"], ["top", "classes"], ["drain", "gpu-1"]], ids=" ".join)
def test_the_search_of_a_command_that_has_a_limit_is_seen(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_searches(monkeypatch)
    with pytest.raises(AssertionError, match="this searches"):
        main([*words, "--from", str(Path(__file__).with_name("fleet.yaml"))])
