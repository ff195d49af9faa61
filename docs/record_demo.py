"""Records ``make demo`` as docs/demo.svg, the picture in the README: ``.venv/bin/python docs/record_demo.py``.

The demo writes plain lines. Rich draws them as a terminal, with the headings in colour.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH = 110


def main() -> int:
    """Run the demo and draw what it printed; its exit code."""
    command = [str(Path(sys.executable).with_name("dra-devcluster")), "demo"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        return done.returncode
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ make demo", style="bold"))
    for line in done.stdout.splitlines():
        console.print(styled(line))
    PICTURE.write_text(console.export_svg(title="kopf-dra"))
    return 0


def styled(line: str) -> Text:
    """A line of the demo: headings, which begin with the time, in colour."""
    return Text(line, style="bold cyan" if re.match(r" *\d+\.\ds  ", line) else "")


if __name__ == "__main__":
    sys.exit(main())
