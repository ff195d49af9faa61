"""The inputs that are kept: a folder for each target, a file for each input."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"


def names() -> list[str]:
    """The targets, each of which has a folder; known without an import of what they run."""
    return sorted(path.name for path in CORPUS.iterdir())


def inputs_of(target: str) -> list[tuple[str, bytes]]:
    """Name and content of each input of a target."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / target).iterdir())]
