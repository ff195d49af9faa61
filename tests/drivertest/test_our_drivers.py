"""The kit is fair to drivers that know nothing of it: the simulated one, and sound ones of five kinds, as processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest
import sound_driver
from dra_devcluster.processes import command
from dra_driver_test.cli import main
from rounds import LONG, a_half, a_third, one_of

ASKED_OF_SOUND_ONES = ["prepare.*", "claims.*", "versions.*", "configuration.*"]
"""Which the sound drivers below have to pass as well: each run asks a half of them."""
QUICK = ["registration.[hios]*", "unprepare.*", "concurrency.*", "names.*", *a_half(ASKED_OF_SOUND_ONES)]
"""Of these no check waits for long; ``dra-driver-test`` without ``--check`` runs all. A run outside of CI asks a third:
the driver starts as a process for many of them."""
PLACES = ["--plugin-registration-path", "{registry}", "--datadir", "{plugins}", "--cdi-dir", "{cdi}"]
PARAMETERS = ["--parameters", '{"color": "red"}', "--bad-parameters", '{"color": 1}']


def test_the_simulated_driver_passes(capsys: pytest.CaptureFixture[str]) -> None:
    driver = command("dra-kubelet-plugin", "simulated", "--node-name", "{node}", *PLACES)
    code = main([*PARAMETERS, *(word for one in a_third(QUICK) for word in ("--check", one)), "--", *driver])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert " 0 failed, 0 warned, " in printed.splitlines()[-1]


SOUND: Final = [
    "--node-name",
    "{node}",
    "--kubelet-dir",
    "{kubelet}",
    "--cdi-dir",
    "{cdi}",
    "--rolling-update-uid",
    "{uid}",
]
ONCE_UNFAIR: Final = [
    "prepare.*",
    "claims.*",
    "versions.*",
    "configuration.of-*",
    "slices.left-over-are-removed",
    "slices.of-others-stay",
    "restart.prepares-the-same-again",
    "rolling.keeps-the-answers",
]
"""Those that have accused a sound driver, and some more. With ``KOPF_DRA_WHOLE_KIT=1`` all run, five minutes a kind."""
FEWEST_JUDGED: Final = 150
"""How many checks of a whole run say something of a driver that has neither health nor metadata."""


WHOLE: Final = "KOPF_DRA_WHOLE_KIT" in os.environ


@LONG
@pytest.mark.timeout(3600 if WHOLE else 300)
@pytest.mark.parametrize("kind", one_of([*sound_driver.KINDS]))
def test_a_sound_driver_is_not_accused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [] if WHOLE else [word for one in ONCE_UNFAIR for word in ("--check", one)]
    told = ["--parameters", '{"color": "green"}', "--bad-parameters", '{"color": 1}', "--json", str(tmp_path / "out")]
    code = main([*told, *checks, "-j", "2", "--", sys.executable, sound_driver.__file__, kind, *SOUND])
    printed = capsys.readouterr().out
    assert code == 0, printed
    counts = json.loads((tmp_path / "out").read_text())["counts"]
    assert (counts["failed"], counts["warned"], counts["not judged"]) == (0, 0, 0), printed
    assert not WHOLE or counts["passed"] >= FEWEST_JUDGED
