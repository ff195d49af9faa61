"""The program under test: cases go to its standard input, one line each; it answers each with one line.

One case at a time: the next one is sent when the answer is there. A program that ends, takes too long, or writes
something else costs only the case it was asked; it is started again for the next one.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Any

Json = dict[str, Any]


class NoAnswer(Exception):
    """The program ended, took too long, or wrote something else than an answer; the message says which."""


class Program:
    """A command that is started when it is first asked. Raises FileNotFoundError if there is no such command."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = list(command)
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def ask(self, case: Json) -> Json:
        """The answer to one case. Raises NoAnswer."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            self.close()
            raise NoAnswer(f"no answer within {self._timeout:g} s") from None
        except BrokenPipeError:
            line = None
        if line is None:
            code = self.close()
            raise NoAnswer(f"the program ended with code {code}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            self.close()
            raise NoAnswer(f"not JSON: {error}: {line[:200]!r}") from error
        if not isinstance(answer, dict) or answer.get("name") != case["name"]:
            self.close()
            raise NoAnswer(f"not an answer to {case['name']}: {line[:200]!r}")
        return answer

    def close(self) -> int | None:
        """End the program; the code it ended with by itself, if it did."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return code

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._lines = queue.Queue()
            threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()
        return self._process


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    """Hand over what the program writes, and its end."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)
