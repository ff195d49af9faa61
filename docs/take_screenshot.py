"""Makes ``docs/ui.png``, the picture of ``kubectl dra ui`` on the page about kubectl dra. It needs Chromium.

.venv/bin/python docs/take_screenshot.py [NODES]        # 24 without a number
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from demo_cluster import DRIVER, cluster

PICTURE: Final = Path(__file__).with_name("ui.png")
SHOWN: Final = f"device={DRIVER}/gpu-003/gpu-7"
SIZE: Final = "1280,800"
SETTLED_MS: Final = 8000
FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
)
"""It asks this machine alone."""


def main() -> None:
    """Serve the made-up cluster, and have its page drawn."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    with TemporaryDirectory() as folder:
        snapshot = Path(folder, "cluster.json")
        snapshot.write_text(json.dumps(cluster(nodes)))
        command = [sys.executable, "-m", "dra_operator.kubectl.cli", "ui", "--from", str(snapshot)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                take(server.stdout.readline().strip() if server.stdout is not None else "")
            finally:
                server.terminate()


def take(address: str) -> None:
    """What Chromium shows at the address, once it has settled."""
    page = [f"--virtual-time-budget={SETTLED_MS}", f"--window-size={SIZE}", f"--screenshot={PICTURE}"]
    with TemporaryDirectory() as profile:
        browser = ["chromium", *FLAGS, f"--user-data-dir={profile}"]
        subprocess.run([*browser, *page, f"{address}#{SHOWN}"], check=True, capture_output=True, timeout=120)
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
