"""Records ``make demo`` as docs/demo.svg, the picture in the README.

    .venv/bin/python docs/record_demo.py

The demo writes plain lines. Rich draws them as a terminal, with the headings in colour.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH = 110


def main() -> int:
    """Run the demo and draw what it printed; its exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    command = [str(Path(sys.executable).with_name("dra-devcluster")), "demo"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        return done.returncode
    draw(["$ make demo", *done.stdout.splitlines()], PICTURE)
    return 0


def draw(lines: Sequence[str], picture: Path) -> None:
    """Draw a terminal with these lines."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in lines:
        console.print(styled(line))
    picture.write_text(console.export_svg(title="kopf-dra"))


def styled(line: str) -> Text:
    """A command in bold, and a heading of the demo, which begins with the time, in colour."""
    if line.startswith("$ "):
        return Text(line, style="bold")
    return Text(line, style="bold cyan" if re.match(r" *\d+\.\ds  ", line) else "")


if __name__ == "__main__":
    sys.exit(main())
