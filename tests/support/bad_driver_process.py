"""The bad driver as a process: ``python bad_driver_process.py KUBELET_FOLDER [FAULT ...]``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from bad_driver import BadLauncher
from dra_driver_test.kit import Place

NAME = "bad.example.com"


async def main(kubelet: str, *faults: str) -> None:
    """Run until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    place = Place.below(Path(kubelet), os.environ["NODE_NAME"], Path(os.environ["KUBECONFIG"]))
    running = await BadLauncher(NAME, *faults).start(place, "")
    if ended := running.why_ended():
        raise SystemExit(ended)
    await stopped.wait()
    await running.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
