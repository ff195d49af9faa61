"""Runs many processes of one of our programs: it imports the program once, and forks for each of them.

``python -m dra_devcluster.forks dra-kubelet-plugin``; ``fork_server`` talks to it, one JSON object a line::

    stdin   {"id": 1, "arguments": ["simulated", "--config", "..."], "log": "/path"}     begin a process
            {"id": 1, "signal": 15}                                                      send it a signal
    stdout  {"id": 1, "code": 0}                                                         it has ended

When stdin ends, it ends all that live. The program is found by its name, as a shell finds it.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any, NoReturn

from dra_api.console import not_installed

Json = dict[str, Any]


def main(program: str) -> None:
    """Serve until stdin ends."""
    found = entry_points(group="console_scripts", name=program)
    if not found:
        sys.exit(not_installed(f"{program}, beside {sys.executable},", "devcluster"))
    run: Callable[[], int] = next(iter(found)).load()
    gc.freeze()  # what the children share is not touched by their collections
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    children: dict[int, int] = {}
    for order in _orders(children):
        if "signal" in order:
            for pid in [pid for pid, number in children.items() if number == order["id"]]:
                os.kill(pid, order["signal"])  # it has not been waited for, so the number is still its own
        elif pid := os.fork():
            children[pid] = order["id"]
        else:
            _become(program, run, order)
    for pid in children:
        os.kill(pid, signal.SIGTERM)


def _orders(children: dict[int, int]) -> Iterator[Json]:
    """What is read from stdin, until it ends; children that end meanwhile are reported."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                _report(children)
            if 0 in ready:
                piece = os.read(0, 65536)
                if not piece:
                    return
                *lines, text = (text + piece).split(b"\n")
                yield from map(json.loads, lines)


def _report(children: dict[int, int]) -> None:
    """All that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            os.write(1, json.dumps({"id": children.pop(ended[0]), "code": code}).encode() + b"\n")


def _become(program: str, run: Callable[[], int], order: Json) -> NoReturn:
    """Be the program, in the child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    sys.argv = [program, *order["arguments"]]
    sys.exit(run())


if __name__ == "__main__":
    main(sys.argv[1])
