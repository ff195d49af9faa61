"""Random histories of a cluster in which everything fails now and then; ``histories`` says what they are.

``PYTHONPATH=tests/support python -m campaign histories --seeds 0:1000000 --workers 2`` plays as many as you like.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dra_kube import Election, Stream
from dra_operator import eviction
from dra_operator.allocator.problem.ledgers import CapacityShares, Counters
from dra_operator.cache import AllocatedDevices
from dra_operator.controllers import Control
from dra_operator.controllers.scheduling import binding
from dra_operator.controllers.scheduling.binding import Permit
from dra_operator.controllers.scheduling.gangs import Gangs
from dra_operator.controllers.settings import PreemptionSettings
from dra_operator.scheduling.preemption import PREEMPTION_PATIENCE_SECONDS
from dra_operator.scheduling.rules.node_rules import NodePorts, NodeResources
from histories import replica
from histories.history import GAME, GANGS, play
from histories.judge import URGENT, is_preempted
from histories.neighbours import Others
from histories.script import ATTACHMENTS, CONSUMABLE, PARTITIONS, PREEMPTIONS, TAINT_RULES, Script, script_of
from history_kit.game import Step, shrunk
from objects import Obj
from rounds import LONG, a_third

SUPPORT = Path(__file__).parents[1] / "support"


@LONG
def test_as_many_histories_as_fit_into_seconds_go_well() -> None:
    command = [sys.executable, "-m", "campaign", "histories", "--seeds", "0:100000", "--seconds", "3", "--workers", "1"]
    run = subprocess.run(
        command, env={"PYTHONPATH": str(SUPPORT)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    played = re.match(r"(\d+) seeds", run.stdout)
    assert played is not None
    assert int(played[1]) >= 4


@LONG
def test_the_command_says_how_far_it_is_and_ends_well_when_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "campaign", "histories", "--seeds", "0:1000000", "--workers", "1"]
    environment = {"PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert re.match(r"\d+ of 1000000 seeds, \d+ a second, 0 went wrong; .+ left", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert re.match(r"\d+ seeds in .*; 0 went wrong", output)


PLAYED = """
from histories.history import GAME, GANGS
from plugin_histories.history import GAME as PLUGIN
for game in (GAME, GANGS, PLUGIN):
    for seed in range(2):
        outcome = game.play(seed, traced=True)
        print(game.script_of(seed), *outcome.strikes, *outcome.findings, *outcome.trace, sep="\\n")
"""
"""A program that says what happens in histories of several kinds."""
CHANCE = re.compile(r"tmp\w{8}|[.-]\w{8}(\.tmp)?'|\.[0-9a-f]{16}\b")
"""Names of files and events, which are others each time."""


def test_a_seed_is_the_same_history_whatever_the_order_of_sets() -> None:
    """Otherwise a history that went wrong could not be repeated."""
    command, told = [sys.executable, "-c", PLAYED], set()
    for number in ("0", "1", "7"):
        environment = {"PYTHONPATH": str(SUPPORT), "PYTHONHASHSEED": number}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        told.add(CHANCE.sub("", run.stdout))
    assert len(told) == 1, next(lines for lines in zip(*map(str.splitlines, told), strict=False) if len({*lines}) > 1)


@pytest.mark.parametrize("seed", [13, 51, 79, 123, 144, 146])
def test_a_gang_whose_devices_get_ready_one_by_one_is_bound(seed: int) -> None:
    """Further pods took the places of those whose devices were not ready yet, and all gave theirs back, for ever."""
    assert not GANGS.play(seed).findings


@pytest.mark.parametrize(
    ("what", "broken", "kind"),
    [
        (
            "a device that the other scheduler has",
            mock.patch.object(AllocatedDevices, "clashes", return_value=[]),
            "rival",
        ),
        ("volumes that are not bound", mock.patch.object(Permit, "_unbound_volumes", return_value=()), "volume"),
        ("ports that are taken", mock.patch.object(NodePorts, "obstacle", return_value=None), "-port"),
        ("room", mock.patch.object(NodeResources, "obstacle", return_value=None), "-cpu"),
        ("the gang of a pod", mock.patch.object(Gangs, "begin", return_value=None), "gang"),
        ("whose turn it is", mock.patch.object(Control, "_rank", lambda _, key: (0, str(key))), "-high"),
    ],
)
def test_an_operator_that_binds_pods_without_regard_to(
    what: str, broken: AbstractContextManager[Any], kind: str
) -> None:
    """Such an operator is found out by the first histories in which it matters to several pods."""
    seeds = (seed for seed in range(10_000) if len(_pods(seed, kind)) >= 2)
    with broken:
        assert any(play(seed).findings for seed in islice(seeds, 200)), what


def test_an_operator_that_binds_pods_before_their_devices_are_attached_is_found_out() -> None:
    with mock.patch.object(Permit, "may_bind", return_value=True):
        assert any("not attached" in finding for seed in range(0, 700, ATTACHMENTS) for finding in play(seed).findings)


def test_an_operator_that_gives_more_of_a_device_away_than_it_has_is_found_out() -> None:
    with mock.patch.object(CapacityShares, "admit", lambda _, devices, request: devices):
        assert any(play(seed).findings for seed in range(0, 1300, CONSUMABLE))


def test_an_operator_that_gives_a_card_and_its_halves_away_is_found_out() -> None:
    with mock.patch.object(Counters, "_check", return_value=None):
        assert any(play(seed).findings for seed in range(0, 1700, PARTITIONS))


def test_an_operator_that_ends_no_pod_for_a_rule_is_found_out() -> None:
    with mock.patch.object(eviction, "evicts", return_value=False):
        assert any("tainted" in finding for seed in range(0, 1100, TAINT_RULES) for finding in play(seed).findings)


def test_some_victims_are_there_for_longer_than_they_are_waited_for() -> None:
    lasting: list[float] = []
    grace = Others._grace

    def noted(neighbours: Others, pod: Obj) -> float:
        seconds = grace(neighbours, pod)
        lasting.extend([seconds] if is_preempted(pod) else [])
        return seconds

    with mock.patch.object(Others, "_grace", noted):
        for seed in range(0, 8000, PREEMPTIONS):
            assert not play(seed).findings
            if max(lasting, default=0.0) > PREEMPTION_PATIENCE_SECONDS:
                return
    pytest.fail(f"victims lasted {sorted(lasting)} s")


def test_an_operator_that_waits_for_victims_as_long_as_they_like_is_found_out() -> None:
    """The lowest pod is chosen first, and takes minutes to finish; the other one would be gone in a second."""
    steps = (
        Step(0, "add pod", "template-0-low-slow"),
        Step(30, "add pod", "template-1-quick"),  # answers may be slow until it is calm, and the operator starts late
        Step(40, "calm"),
        Step(60, "add pod", f"template-{URGENT}"),
    )
    script = Script(nodes=(1, 1), replicas=1, preempts=True, steps=steps)

    def grace(_: Others, pod: Obj) -> float:
        return 300.0 if "slow" in pod["metadata"]["name"] else 1.0

    with mock.patch.object(Others, "_grace", grace):
        assert not play(0, script, ()).findings
        with mock.patch.object(replica, "PreemptionSettings", return_value=PreemptionSettings(patience=600.0)):
            assert any("could run for 90 s" in finding for finding in play(0, script, ()).findings)


def test_a_leader_that_writes_when_it_wakes_is_found_out() -> None:
    """Its lease is over, another one leads, and its own guard lets it write."""
    seeds = (seed for seed in range(100_000) if _longest_pause(seed) > 15)
    with mock.patch.object(Election, "allowance", return_value=9.0):
        assert any("though" in finding for seed in islice(seeds, 200) for finding in play(seed).findings)


def unseen(kind: str) -> Script:
    """A pod of ours waits for a device. One comes while a rival does so, of which the broken watch says nothing."""
    steps = (
        Step(0, "remove slice", "node-0"),
        Step(1, "add pod", "template-0"),
        Step(3, "lose events", kind, 3),
        Step(3.1, "add pod", "rivalnamed-1"),
        Step(3.2, "add slice", "node-0"),
    )
    return Script(nodes=(1,), replicas=1, preempts=False, steps=steps)


@pytest.mark.parametrize(("kind", "knows"), a_third([*product(["pods", "resourceclaims"], [True, False])]))
def test_a_rival_that_comes_while_a_watch_is_broken_runs_alone_with_its_device(kind: str, knows: bool) -> None:
    """Unless the operator does not regard that the watch is broken: then the rival is too late now and then."""
    with nullcontext() if knows else mock.patch.object(Stream, "sees", return_value=True):
        wrong = next((seed for seed in range(100) if play(seed, unseen(kind), ()).findings), None)
    assert (wrong is None) is knows, wrong


def _longest_pause(seed: int) -> float:
    return max((step.number for step in script_of(seed).steps if step.what == "pause the operator"), default=0)


def _pods(seed: int, kind: str) -> set[str]:
    """Pods of the history that have this in their names."""
    return {step.subject for step in script_of(seed).steps if step.what == "add pod" and kind in step.subject}


IS_OVER = binding.is_over


def _is_restored(seed: int) -> bool:
    """Whether the history has a restore, of which in few steps one is left that an operator without fault fails at."""
    return any(step.what == "restore" for step in script_of(seed).steps)


@LONG
def test_an_operator_that_takes_a_lost_answer_for_a_no_is_found_out_and_the_history_told_in_a_few_steps() -> None:
    """Few steps may be left that an operator without fault fails at."""
    told = []
    with mock.patch.object(binding, "is_over", return_value=True):
        bad = (seed for seed in range(1000) if not _is_restored(seed) and play(seed).findings)
        for seed in islice(bad, 4):
            script, strikes = shrunk(GAME, seed)
            assert play(seed, script, strikes).findings
            told.append((seed, script, strikes))
            if len(script.steps) + len(strikes) < 20 and _is_sound(*told[-1]):
                return
    pytest.fail(f"no history is short, and right without the fault: {told}")


def _is_sound(seed: int, script: Script, strikes: Collection[str]) -> bool:
    with mock.patch.object(binding, "is_over", IS_OVER):
        return not play(seed, script, strikes).findings
