"""``dra-devcluster demo`` as a process: the story that it tells, and how it fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from command import left_in, run
from dra_api.releases import NEWEST
from dra_devcluster import demo
from dra_devcluster.processes import ended
from rounds import LONG

BIN = Path(sys.executable).parent
STORY = [
    rf"API server v{NEWEST}\.\S+ at https://127\.0\.0\.1:\d+",
    r"plugin on node-2 registered and published device-00, device-01",
    r"operator started, process \d+",
    r"claim own-1-device-\w+ generated, allocated (node-[12]/device-0[01]), reserved for own-1",
    r"prepared on node-[12]: simulated\.dra\.example\.com-[-0-9a-f]+-device-0\.json",
    r"inside pod own-1: admin_color=green, claim_own_1_device_\w+_device=true, user_purpose=demo",
    r"claim shared allocated node-[12]/device-0[01], reserved for shared-1 and shared-2, both on node-[12]",
    r"pod impossible is pending: 0/2 nodes are available: .*impossible-device-\w+ request \"device\" .*none of",
    r"event FailedScheduling: 0/2 nodes are available",
    r"pod waiting is pending: 0/2 nodes are available: .*in use",
    r"deleted pod own-1, which held (node-[12]/device-0[01])",
    r"pod waiting runs with (node-[12]/device-0[01])",
    r"no pod, nothing allocated, no CDI file; claims made by hand stay, unallocated: shared",
    r"operator ended by itself with exit code 0",
]
SCRIPT = "import sys; sys.executable = sys.argv.pop(1); from dra_devcluster.cli import main; sys.exit(main(['demo']))"
"""The demo, with another interpreter for the processes that it starts."""


@LONG
async def test_the_story_is_told_in_order_and_nothing_else_is_said(home: Path) -> None:
    code, output = await run(["dra-devcluster", "demo"], TMPDIR=home)
    assert code == 0, output
    told = [found for line in STORY if (found := re.search(line, output))]
    assert [found.re.pattern for found in told] == STORY, output
    assert [found.start() for found in told] == sorted(found.start() for found in told)
    own, freed, again = (found[1] for found in told if found.re.groups)
    assert own == freed == again, "the waiting pod got the device that was given back"
    assert all(re.match(r"( *\d+\.\ds  |        [- ] |$)", line) for line in output.splitlines()), output
    assert left_in(home) == []


@LONG
async def test_a_step_that_fails_is_named_with_the_exit_code(home: Path) -> None:
    programs = home / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(BIN / "python3")
    for name in ("lib", "pyvenv.cfg"):
        (programs.parent / name).symlink_to(BIN.parent / name)
    broken = programs / "dra-operator"
    broken.write_text("#!/bin/sh\necho this operator is out of order >&2\nexit 7\n")
    broken.chmod(0o755)
    code, output = await run([sys.executable, "-c", SCRIPT, str(programs / "python3")], TMPDIR=home)
    assert code == 1
    assert "FAILED: A class, a template, and two pods that each want a device of their own: " in output
    assert "operator ended with exit code 7" in output
    assert "this operator is out of order" in output
    assert "--- the last lines of operator.log" in output
    assert "Traceback" not in output
    assert left_in(home) == ["venv"]


async def test_a_plugin_that_cannot_start_ends_the_story_at_once(home: Path) -> None:
    (home / "python3").symlink_to(BIN / "python3")  # without its venv: our packages are not beside it
    code, output = await run([sys.executable, "-c", SCRIPT, str(home / "python3")], TMPDIR=home)
    assert code == 1
    assert "plugin-node-1 ended with exit code 1" in output
    assert "No module named 'dra_devcluster'" in output
    assert "Traceback" not in output
    assert left_in(home) == ["python3"]


def test_a_log_that_is_no_text_is_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process may write anything before it ends, such as a piece of a core."""

    async def play(folder: Path, story: demo.Story) -> None:
        log = folder / "operator.log"
        log.write_bytes(b"out of order \xff\n")
        raise ended("operator", 7, log)

    monkeypatch.setattr(demo, "play", play)
    assert demo.run() == 1
    told = capsys.readouterr().err
    assert "FAILED: operator ended with exit code 7:\nout of order \ufffd\n" in told
    assert "--- the last lines of operator.log\nout of order \ufffd\n" in told
