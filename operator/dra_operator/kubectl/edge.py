"""Runs a command: reads the cluster or a snapshot, has it answered, prints the answer; errors are one line each."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from typing import Any

from dra_api.console import printable

from .answer import Answer, ExitCode, Problem


def answered(options: argparse.Namespace, module: str) -> int:
    """The exit code. ``options`` have the arguments of ``add_cluster_arguments``.

    ``module``, below this package, has ``answer(seen, options)``: what was observed and what is asked, to the answer,
    or Problem. It is loaded here, so that help does without it.
    """
    if getattr(options, "watch", False):
        return _followed(options, module)
    try:
        answer = _answer(options, module)
    except Problem as problem:
        return _refused(problem)
    _module("printing.output").show(answer, getattr(options, "output", None))
    return int(answer.code)


def _followed(options: argparse.Namespace, module: str) -> int:
    """Answers until it is interrupted; only a first question that fails ends it otherwise."""
    try:
        if options.source is not None:
            raise Problem("--watch needs a cluster: a snapshot does not change", ExitCode.USAGE)
        _module("printing.watching").follow(lambda: _answer(options, module), options.output)
    except Problem as problem:
        return _refused(problem)
    return int(ExitCode.CLEAR)


def _answer(options: argparse.Namespace, module: str) -> Answer:
    """Raises Problem."""
    gc.disable()  # an answer is quick, and the collector would look at all objects of a cluster again and again
    try:
        seen = _module("reading.read").read(options)
        answer: Answer = _module(module).answer(seen, options)
    finally:
        gc.enable()
    return answer


def _refused(problem: Problem) -> int:
    print(printable(f"kubectl dra: {problem}"), file=sys.stderr)
    return int(problem.code)


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")
