"""Writes what was observed, without secrets, to a file or to standard output."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace

from dra_api.command_line import path_word, shell

from dra_operator.kubectl.answer import Answer, Problem
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.sanitized import without_secrets

from .snapshot_file import document


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The snapshot, or where it was written to. Raises Problem."""
    text = json.dumps(document(replace(seen, objects=without_secrets(seen.objects))))
    notes = [f"not in the snapshot: {kind}: {why}" for kind, why in seen.unseen.items()]
    notes += [f"malformed, and not in the snapshot: {what}: {why}" for what, why in seen.malformed.items()]
    if options.file is None:
        return Answer(lines=[text], notes=notes)
    try:
        _write(options.file, text)
    except OSError as error:
        raise Problem(f"cannot write {options.file}: {error.strerror}") from error
    option = shell("--from", path_word(options.file))
    return Answer(lines=[f"{options.file}: {len(seen.objects)} objects; read it by {option}"], notes=notes)


def _write(path: str, text: str) -> None:
    """For this user alone: names, labels and messages may be confidential."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
