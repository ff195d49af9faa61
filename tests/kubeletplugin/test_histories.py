"""Random histories of a node's plugin, in which everything fails now and then; ``plugin_histories`` says what they are.

``PYTHONPATH=tests/support python -m campaign plugin-histories --seeds 0:100000 --workers 2`` plays as many as you like.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from dra_kubeletplugin import driver
from dra_kubeletplugin.claims.conflicts import Conflicts
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.files.claim_files import CdiFolder, ClaimFiles
from dra_kubeletplugin.slices import SlicePublisher
from history_kit.game import shrunk
from plugin_histories.history import GAME, play
from plugin_histories.script import script_of
from rounds import LONG

SUPPORT = Path(__file__).parents[1] / "support"


@LONG
def test_as_many_histories_as_fit_into_seconds_go_well() -> None:
    options = ["--seeds", "0:100000", "--seconds", "3", "--workers", "1"]
    command = [sys.executable, "-m", "campaign", "plugin-histories", *options]
    run = subprocess.run(
        command, env={"PYTHONPATH": str(SUPPORT)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    played = re.match(r"(\d+) seeds", run.stdout)
    assert played is not None
    assert int(played[1]) >= 4


@pytest.mark.parametrize("seed", [170822135, 6004522], ids=["whole", "shared"])
def test_a_device_in_a_damaged_record_stays_where_it_is_though_its_claim_is_allocated_another_one(seed: int) -> None:
    """The claim was allocated anew before: the record has the former device, or what that was given."""
    assert not play(seed).findings


def _unchecked(found: Any, *_: Any) -> tuple[Any, ...]:
    return tuple(found)


@pytest.mark.parametrize(
    ("what", "broken"),
    [
        ("answers with devices that no claim has", mock.patch.object(driver, "_checked", side_effect=_unchecked)),
        ("gives a node that a container has open", mock.patch.object(Conflicts, "refuse_owned", return_value=None)),
        ("gives a device that a container has", mock.patch.object(Conflicts, "refuse_held", return_value=None)),
        ("leaves CDI files", mock.patch.object(ClaimFiles, "remove", return_value=None)),
        ("leaves CDI files of devices that are gone", mock.patch.object(ClaimFiles, "withdraw", return_value=None)),
        ("sweeps files of others", mock.patch.object(CdiFolder, "_is_ours", return_value=True)),
        ("never prepares again", mock.patch.object(PreparedClaims, "holders", return_value=[])),
        ("restores no slices", mock.patch.object(SlicePublisher, "_foreign", return_value=None)),
    ],
)
def test_a_plugin_is_found_out_that(what: str, broken: AbstractContextManager[Any]) -> None:
    with broken:
        assert any(play(seed).findings for seed in range(300)), what


SOME_STEPS: Final = 20


@LONG
def test_a_history_is_told_in_a_few_steps() -> None:
    """Of a history that is not long: each step of it that does not matter costs plays until it is left out."""
    seeds = sorted(range(1000), key=lambda seed: abs(len(script_of(seed).steps) - SOME_STEPS))
    with mock.patch.object(Conflicts, "refuse_owned", return_value=None):
        found = (seed for seed in seeds if play(seed).findings)
        told = ((seed, *shrunk(GAME, seed)) for seed in found)
        # The order of sets of tasks follows their addresses: a rare story goes otherwise when it is played again.
        seed, script, strikes = next(it for it in told if all(play(*it).findings for _ in range(3)))
        for number in range(len(script.steps)):
            fewer = script._replace(steps=(*script.steps[:number], *script.steps[number + 1 :]))
            assert not play(seed, fewer, strikes).findings, f"{script.steps[number]} could be left out"
    assert not play(seed, script, strikes).findings
