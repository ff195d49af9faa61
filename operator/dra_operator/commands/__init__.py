"""Commands for people: ``dra-operator cel``, and what ``simulate`` and ``kubectl dra`` share. They do not need Kopf.

It is light, because help and completion load it.
"""

from __future__ import annotations

import argparse


def add_files_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``--file``; ``what`` says what the files hold."""
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="PATH",
        help=f"YAML or JSON with {what}, a directory of such files, or - for standard input; repeatable",
    )
