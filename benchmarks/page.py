"""The page of ``kubectl dra ui`` in Chromium: first picture, elements in the document, and keys, by number of nodes.

A node has eight devices, three in four of them taken. *First picture* is the time from the address being opened until
totals and heat map are painted; the cluster has been read by then, as when the address is printed. *Work* is what it
takes of a processor, in the server and in the page's main thread. *Key* is the time from a key in the table of nodes,
or of pods that wait, until the frame after it: the middle one of 40, and the page's work for one. *Refresh* is the size
of an answer in which something has changed. Other programs on the machine change all of them.

    KOPF_DRA_BROWSER=chromium .venv/bin/python benchmarks/page.py [--nodes 5,200,5000] [--pods 0] [--pictures docs]

``--pods`` adds that number of pods. They wait for devices that no node has. ``--pictures docs`` makes the pictures of
docs/ui.md instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from aiohttp import ClientSession
from browser import DRIVER, Page, browser, claim, cluster, pod
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.ui.server import running

KEYS: Final = ("End", "ArrowUp", "PageUp", "Home", "ArrowDown", "PageDown", "PageDown", "ArrowDown")
TITLES: Final = (
    *("Nodes", "Devices", "Pods that wait", "First picture", "Work: server, page", "Elements", "Key, nodes"),
    *("Key, pods", "Refresh", "Read"),
)
WATCH: Final = """
window.taken = [];
addEventListener("keydown", (event) => {
  const began = event.timeStamp;
  requestAnimationFrame(() => { const gate = new MessageChannel();
    gate.port1.onmessage = () => taken.push(performance.now() - began); gate.port2.postMessage(0); });
}, true);
"""


def made(nodes: int, pods: int) -> dict[str, Any]:
    """The cluster, with pods that ask for more devices than a node has."""
    found = cluster(nodes)
    for number in range(pods):
        name = f"waits-{number}"
        found["items"] += [claim("research", name, 64), pod("research", name, {}, "Pending")]
    return found


async def keys(page: Page, table: str) -> str:
    """The middle one of 40 keys in a table, and the work for one, in milliseconds."""
    await page.value(f"taken.length = 0; document.getElementById('{table}').focus()")
    before = await page.processor_seconds()
    for _ in range(5):
        for key in KEYS:
            await page.press(key)
    await page.until(f"taken.length === {5 * len(KEYS)}")
    work = (await page.processor_seconds() - before) / (5 * len(KEYS))
    middle = statistics.median(await page.value("taken"))
    return f"{middle:.0f} ms, {1000 * work:.1f} ms"


async def measure(nodes: int, pods: int) -> str:
    """One line of the table."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "cluster.json")
        await asyncio.to_thread(file.write_text, json.dumps(made(nodes, pods)))
        began = time.monotonic()
        async with running(parser(["ui"]).parse_args(["ui", "--from", str(file)])) as address, browser() as page:
            read = time.monotonic() - began
            await page.shape(1280, 900)
            began_work = time.process_time()
            await page.goto(address)
            first = await page.until("performance.getEntriesByName('first picture')[0]?.startTime", 300)
            work = time.process_time() - began_work, await page.processor_seconds()
            await page.until("document.querySelectorAll('.tile').length", 300)
            await page.value(WATCH)
            of_nodes = await keys(page, "rows")
            elements = await page.value("document.querySelectorAll('*').length")
            await page.value("location.hash = 'waiting'")
            await page.until("document.querySelector('#waiting-rows .space [role=row]') && true", 300)
            of_pods = await keys(page, "waiting-rows")
            elements = max(elements, await page.value("document.querySelectorAll('*').length"))
            async with ClientSession() as http, http.get(f"{address}api/overview") as answer:
                size = len(await answer.read())
    return (
        f"| {nodes:,} | {8 * nodes:,} | {pods + 3:,} | {first / 1000:.1f} s | {work[0]:.2f} s, {work[1]:.2f} s "
        f"| {elements:,} | {of_nodes} | {of_pods} | {size / 1000:,.0f} kB | {read:.0f} s |"
    )


BY_ZONE: Final = (
    "(() => { const it = document.getElementById('group'); it.value = 'zone';"
    " it.dispatchEvent(new Event('change', {bubbles: true})); })()"
)
DEVICE: Final = f"location.hash = 'device=' + encodeURIComponent('{DRIVER}/gpu-003/gpu-7')"
PICTURES: Final = (
    ("ui-5000.webp", 5000, 800, "", "document.querySelector('.tile') && true"),
    ("ui-200.webp", 200, 800, BY_ZONE, "document.querySelectorAll('#groups li').length === 3"),
    ("ui-5.webp", 5, 640, DEVICE, "document.querySelector('#details dl') && true"),
)
"""File, nodes, height, actions on the page, and the sign of their end; the smallest one is dark."""


async def draw(folder: Path) -> None:
    """Make the pictures."""
    for name, nodes, height, script, until in PICTURES:
        with TemporaryDirectory() as temporary:
            source = Path(temporary, "cluster.json")
            await asyncio.to_thread(source.write_text, json.dumps(cluster(nodes)))
            async with running(parser(["ui"]).parse_args(["ui", "--from", str(source)])) as address, browser() as page:
                await page.shape(1280, height, dark=nodes == 5)
                await page.goto(address)
                await page.until("document.querySelector('.tile') && true", 300)
                if script:
                    await page.value(script)
                await page.until(until)
                await asyncio.sleep(1)  # what has changed glows for a moment
                await page.picture(folder / name)


async def main() -> None:
    """Print the table."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--nodes", default="5,200,5000", help="numbers of nodes, with commas (%(default)s)")
    words.add_argument("--pods", type=int, default=0, help="pods more that wait (%(default)s)")
    words.add_argument("--pictures", type=Path, metavar="FOLDER", help="make the pictures of docs/ui.md in there")
    given = words.parse_args()
    if given.pictures is not None:
        await draw(given.pictures)
        return
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
    for number in given.nodes.split(","):
        print(await measure(int(number), given.pods), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
