"""The kit is fair to a driver that knows nothing of it: the simulated one, as a process."""

from __future__ import annotations

import pytest
from dra_devcluster.processes import command
from dra_driver_test.cli import main

QUICK = [
    "registration.[hios]*",
    "prepare.*",
    "claims.*",
    "unprepare.*",
    "concurrency.*",
    "versions.*",
    "configuration.*",
    "names.*",
]
"""Of these no check waits for long; ``dra-driver-test`` without ``--check`` runs all."""
PLACES = ["--plugin-registration-path", "{registry}", "--datadir", "{plugins}", "--cdi-dir", "{cdi}"]
PARAMETERS = ["--parameters", '{"color": "red"}', "--bad-parameters", '{"color": 1}']


def test_the_simulated_driver_passes(capsys: pytest.CaptureFixture[str]) -> None:
    driver = command("dra-kubelet-plugin", "simulated", "--node-name", "{node}", *PLACES)
    code = main([*PARAMETERS, *(word for one in QUICK for word in ("--check", one)), "--", *driver])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert " 0 failed, 0 warned, " in printed.splitlines()[-1]
