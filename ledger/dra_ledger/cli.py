"""``dra-ledger``: who has which device, from what ``kubectl get -o json`` says.

Exit codes: 0, 2 for wrong usage or input that cannot be read, and the codes of ``dra_api.console``.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from dra_api import VERSION
from dra_api.console import finish, printable
from dra_api.releases import BUILT, NEWEST

_KINDS = "kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json"


_MISSING = {
    "ResourceSlice": "no device is known",
    "ResourceClaim": "devices count as free, though claims may hold them",
    "DeviceClass": "no class is known",
    "Node": "devices count as free, though their nodes may be gone",
    "Pod": "claims of a PodGroup show no pods",
}
"""What an answer is worth without a kind."""
_NEEDED = {"who": ("ResourceSlice", "ResourceClaim", "Pod"), "free": tuple(_MISSING)[:4], "export": tuple(_MISSING)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    options = parser().parse_args(arguments)
    return finish(lambda: _run(options))


def parser() -> argparse.ArgumentParser:
    """The command line; completion scripts are made from it (docs/completion.md)."""
    made = argparse.ArgumentParser(prog="dra-ledger", description="Who has which device, from lists of objects.")
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    for name, text in (
        ("who", "each device that a claim has, one line for each claim"),
        ("free", "how many devices of each class are free"),
        ("export", "the same and more as metrics for Prometheus"),
    ):
        command = commands.add_parser(name, help=text, epilog=f"the input: {_KINDS}")
        command.add_argument(
            "-f", "--file", action="append", metavar="FILE", help="JSON of kubectl or of the API; - is standard input"
        )
        command.add_argument(
            "--kubernetes-version",
            choices=tuple(BUILT),
            default=str(NEWEST),
            help="whose rules count (default: newest)",
        )
        if name == "export":
            command.add_argument(
                "--limit", type=int, default=10_000, metavar="N", help="devices, and claims, with series of their own"
            )
    return made


def _run(options: argparse.Namespace) -> int:
    from dra_api.codec import DecodeError

    from .ledger import Ledger  # not for help

    ledger = Ledger(options.kubernetes_version)
    for name in options.file or ["-"]:
        try:
            ledger.feed(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
        except (DecodeError, OSError) as error:
            print(f"dra-ledger: {name}: {error}", file=sys.stderr)
            return 2
    for name, fault in ledger.malformed.items():
        print(f"dra-ledger: left out, since it cannot be read: {printable(f'{name}: {fault}')}", file=sys.stderr)
    for kind in _NEEDED[options.command]:
        if kind in ledger.missing:
            print(f"dra-ledger: the input has no {kind}: {_MISSING[kind]}", file=sys.stderr)
    if options.command == "export":
        from .export import prometheus

        # The format is UTF-8 whatever the locale of a timer is, and knows no other escapes than its own.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        print(prometheus(ledger, max(0, options.limit)), end="")
    elif options.command == "free":
        _print([["CLASS", "FREE", "DEVICES", "CLAIMS"]] + [
            [row.name, str(row.free), str(row.devices), str(row.claims)] for row in ledger.tally("class")
        ])  # fmt: skip
    else:
        rows = [
            [
                entry.node or "<several>",
                entry.id,
                holder.key,
                ",".join(holder.pods) or "<none>",
                holder.since or "<unknown>",
            ]
            for entry, holder in ledger.holders()
        ]
        _print([["NODE", "DEVICE", "CLAIM", "PODS", "SINCE"], *rows])
    return 0


def _print(rows: list[list[str]]) -> None:
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
