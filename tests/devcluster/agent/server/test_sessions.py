"""``exec`` in a terminal, and ``attach``, as ``kubectl exec -it``, ``attach -it`` and ``run -it`` use them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from dra_devcluster.agent.processes.logs import LogFollowers, TooSlow
from dra_devcluster.agent.processes.process import Input
from one_node import OneNode, session
from waiting import becomes

SUCCESS = {"metadata": {}, "status": "Success"}
COUNTER = "i=0; while true; do i=$((i+1)); echo number $i; sleep 0.1; done"


async def running(node: OneNode, script: str, *, volume: bool = False, **fields: Any) -> None:
    """A pod whose container runs the script, with a mount of its own if there is a volume."""
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", script], **fields}
    spec: dict[str, Any] = {"containers": [container]}
    if volume:
        container["volumeMounts"] = [{"name": "v", "mountPath": "/devcluster/v"}]
        spec["volumes"] = [{"name": "v", "emptyDir": {}}]
    await node.pod("pod-a", **spec)
    await node.phase("pod-a", "Running")


# --- exec ---


@pytest.fixture(params=["plain", "with a volume", "of an agent in the background"])
def volume(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the container has one. The shell of a script has its background commands ignore Ctrl-C."""
    ignored = request.param == "of an agent in the background"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    yield request.param == "with a volume"
    if before is not None:
        signal.signal(signal.SIGINT, before)


async def test_exec_in_a_terminal_has_its_size_its_signals_and_the_exit_code(node: OneNode, volume: bool) -> None:
    await running(node, "sleep 100", volume=volume, env=[{"name": "X", "value": "seen"}])
    async with session(node, "exec", "sh", stdin=True, tty=True) as client:
        await client.resize(111, 33)
        await client.type(b"stty size; tty; echo $X in $TERM\n")
        await client.until(b"33 111\r\n")
        await client.until(b"/dev/pts/")
        await client.until(b"seen in xterm\r\n")
        await client.resize(80, 24)
        await client.type(b"sh -c \"echo s''tarted; exec sleep 100\"\n")
        await client.until(b"started\r\n")
        await client.type(b"\x03")  # Ctrl-C ends the program in the foreground, not the shell
        await client.type(b"stty size; exit 5\n")
        await client.until(b"24 80\r\n")
        status = await client.end()
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "5"}]


async def test_a_program_in_a_terminal_ends_with_its_client(node: OneNode) -> None:
    await running(node, "sleep 100")
    async with session(node, "exec", "sh", "-c", "echo $$; exec sleep 100", stdin=True, tty=True) as client:
        pid = int(await client.until(b"\r\n"))
    await becomes(lambda: not _lives(pid))


async def test_what_is_left_in_the_background_does_not_keep_a_session_in_a_terminal(node: OneNode) -> None:
    await running(node, "sleep 100")
    async with session(node, "exec", "sh", "-c", "nohup sleep 100 & echo done", stdin=True, tty=True) as client:
        assert await client.end() == SUCCESS
        assert b"done\r\n" in client.output


async def test_a_malformed_size_and_unknown_channels_are_passed_over(node: OneNode) -> None:
    await running(node, "sleep 100")
    async with session(node, "exec", "sh", stdin=True, tty=True) as client:
        for size in (b"", b"{", b"[]", b'{"Width": -1, "Height": 7}', b'{"Width": 1e99}', b'{"Width": "x"}'):
            await client.send(4, size)
        await client.send(9, b"nothing")
        await client.resize(100_000, 30)
        await client.type(b"stty size; exit\n")
        await client.until(b"30 65535\r\n")
        assert await client.end() == SUCCESS


# --- attach ---


async def test_attach_shows_what_the_container_writes_from_now_on_until_it_ends(node: OneNode) -> None:
    await running(node, "trap 'echo last >&2; exit 3' TERM; " + COUNTER)
    async with session(node, "attach", stderr=True) as one, session(node, "attach") as other:
        for client in (one, other):
            await client.until(b"number ")
        await node.delete("pod-a")
        assert await one.end() == SUCCESS
        assert one.output.endswith(b"last\n")
        assert await other.end() == SUCCESS


async def test_attach_to_a_container_that_has_ended_is_refused(node: OneNode) -> None:
    await node.pod("pod-a", "exit 0")
    await node.phase("pod-a", "Succeeded")
    async with session(node, "attach") as client:
        assert (await client.end())["message"] == "container c is not running"


async def test_input_that_is_for_one_client_ends_when_that_goes(node: OneNode) -> None:
    await running(node, "cat; echo end of input; sleep 100", stdin=True, stdinOnce=True)
    async with session(node, "attach") as watcher:
        async with session(node, "attach", stdin=True) as client:
            await client.type(b"typed\n")
            await client.until(b"typed\n")
        await watcher.until(b"end of input")


async def test_input_stays_open_for_the_next_client_and_is_typed_whole(node: OneNode) -> None:
    await running(node, "cat", stdin=True)
    for _ in range(2):
        large = os.urandom(150_000).hex().encode()
        async with session(node, "attach", stdin=True) as client:
            await client.type(large)
            await client.type(b"\n")
            await client.close_input()
            await client.until(large + b"\n")


async def test_a_client_that_does_not_ask_for_the_input_cannot_type(node: OneNode) -> None:
    await running(node, "cat", stdin=True)
    async with session(node, "attach") as mute, session(node, "attach", stdin=True) as client:
        await mute.type(b"unheard\n")
        await client.type(b"heard\n")
        await mute.until(b"heard\n")
        await client.until(b"heard\n")
        assert b"un" not in mute.output + client.output


async def test_attach_to_a_container_with_a_terminal(node: OneNode) -> None:
    await running(node, "stty -echo; sh", stdin=True, tty=True)
    async with session(node, "attach", stdin=True, tty=True) as client:
        await client.resize(91, 17)
        await client.type(b"stty size; tty\n")
        await client.until(b"17 91\r\n")
        await client.until(b"/dev/pts/")
        await client.type(b"exit 4\n")
        assert await client.end() == SUCCESS, "the exit code is in the pod's status"
    status = await node.phase("pod-a", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert "17 91" in await node.log("pod-a")


# --- parts ---


async def test_a_follower_that_is_far_behind_is_cut_off_and_others_are_not() -> None:
    followers = LogFollowers()
    with followers.follow() as quick, followers.follow() as slow:
        for number in range(2000):
            followers.write("stdout", b"%d" % number)
            assert await anext(quick) == ("stdout", b"%d" % number)
        followers.end()
        assert [piece async for piece in quick] == []
        seen = []
        with pytest.raises(TooSlow):
            async for piece in slow:
                seen.append(piece)  # what came before the error counts
    assert len(seen) == 1000
    with followers.follow() as late:
        assert [piece async for piece in late] == []


async def test_input_waits_for_its_reader_and_ends_with_it() -> None:
    ours, theirs = os.pipe()
    keyboard = Input(os.fdopen(theirs, "wb", buffering=0))
    writing = asyncio.create_task(keyboard.write(b"x" * 200_000))
    await asyncio.sleep(0)
    read = 0
    while read < 200_000:
        read += len(await asyncio.to_thread(os.read, ours, 65536))
    await asyncio.wait_for(writing, 30)
    writing = asyncio.create_task(keyboard.write(b"x" * 200_000))
    await asyncio.sleep(0)
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(writing, 30)
    keyboard.close()
    await keyboard.write(b"too late")


async def test_input_that_is_closed_ends_the_writer_that_waits() -> None:
    ours, theirs = os.pipe()
    keyboard = Input(os.fdopen(theirs, "wb", buffering=0))
    writing = asyncio.create_task(keyboard.write(b"x" * 200_000))
    await asyncio.sleep(0)
    keyboard.close()
    await asyncio.wait_for(writing, 30)
    os.close(ours)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
