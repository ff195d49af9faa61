"""Label selectors, times, ports and names as kubectl takes them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from dra_operator.allocator import DEVICE_ORDERS
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.arguments import ORDERS, STRATEGIES, port, seconds
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.observed import selecting
from dra_operator.scheduling import PLACEMENT_STRATEGIES

CLUSTER = Path(__file__).parent / "cluster.yaml"
LABELS = {"app": "web", "zone": "a", "example.com/gpu": ""}


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        (None, True),
        ("", True),
        ("app=web", True),
        ("app==web,zone=a", True),
        ("app = web , zone!=b", True),
        ("app=db", False),
        ("tier!=db", True),
        ("zone in (a, b)", True),
        ("zone notin (a,b)", False),
        ("tier notin (a)", True),
        ("example.com/gpu", True),
        ("!example.com/gpu", False),
        ("!spot,zone in (b,a),app", True),
        ("example.com/gpu=", True),
    ],
)
def test_a_selector_selects_as_that_of_kubectl(selector: str | None, is_selected: bool) -> None:
    assert selecting(selector)(LABELS) is is_selected


@pytest.mark.parametrize("selector", ["zone in a", "app=web tier=db", "=web", "a,,b", "zone in (a"])
def test_a_selector_that_cannot_be_read_is_refused(selector: str) -> None:
    with pytest.raises(Problem, match="--selector: cannot read"):
        selecting(selector)


@pytest.mark.parametrize(
    ("text", "limit"), [("0", 0), ("30", 30), ("5s", 5), ("1.5m", 90), ("2h", 7200), ("10ms", 0.01)]
)
def test_a_time_is_read(text: str, limit: float) -> None:
    assert seconds(text) == pytest.approx(limit)


def test_devices_of_a_state_that_does_not_exist_are_not_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["devices", "--from", str(CLUSTER), "--state", "fre"])
    assert "choose from" in capsys.readouterr().err


def test_the_names_of_strategies_and_orders_are_those_of_the_operator() -> None:
    """Written out, because help and completion load no scheduler."""
    assert (STRATEGIES, ORDERS) == (PLACEMENT_STRATEGIES, DEVICE_ORDERS)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "5d"])
def test_a_time_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("8080", 8080), ("65535", 65535)])
def test_a_port_is_read(text: str, number: int) -> None:
    assert port(text) == number


@pytest.mark.parametrize("text", ["", "-1", "65536", "x", "1_000", "²"])
def test_what_is_no_port_is_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["ui", f"--port={text}"])
    said = capsys.readouterr().err
    assert "write a number from 0 to 65535" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [["pod/a/b/c"], ["pod", "a/"], ["pod//b"], ["a/b/c"]])
def test_a_name_with_too_many_slashes_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", *words, "--from", str(CLUSTER)]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("fit -f cluster.yaml --count 0", 2, "'0' is not a whole number from 1 up"),
        ("doctor --operator-account dra-operator", 2, "is not a service account as NAMESPACE/NAME"),
        ("doctor --operator-account a/b/c", 2, "is not a service account as NAMESPACE/NAME"),
        ("top drivers -l zone=a", 2, "use it with top nodes"),
        ("devices -o custom-columns=A:.a]", 2, "cannot read ']'"),
        ("devices -o jsonpath={.items[0", 2, "] is missing at the end"),
        ("taint gpu.example.com --key x --feature-gates DRADeviceTaints=false", 1, "DRADeviceTaints is off"),
        ("territory --class absent", 1, "there is no device class absent"),
        ("territory --nodes zone=a --class gpu", 2, "name devices, or --class, or --nodes: one of them"),
        ("territory --nodes zone=z --rules", 1, "no published device is meant"),
        ("territory --nodes zone=a --scheduler-name a=b", 1, "has characters it cannot have"),
        ("defrag --for gang/absent", 1, "there is no gang absent in namespace ml"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main([*words.split(), "--from", str(CLUSTER)])
    except SystemExit as end:
        found = int(str(end.code))
    assert said in capsys.readouterr().err
    assert found == code
