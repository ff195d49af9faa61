"""Makes the pictures of the page about ``kubectl dra ui``, at 5, 200 and 5,000 nodes, with Chromium.

KOPF_DRA_BROWSER=chromium .venv/bin/python docs/take_screenshot.py 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from browser import DRIVER, Page, browser, cluster
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.ui.server import running

HERE: Final = Path(__file__).resolve().parent


class Picture(NamedTuple):
    """The view of one size of a cluster: a hash of the address, a facet to group by."""

    nodes: int
    hash: str = ""
    group: str = ""
    dark: bool = False
    height: int = 800

    @property
    def file(self) -> Path:
        """The file of the picture."""
        return HERE / f"ui-{self.nodes}.webp"


PICTURES: Final = (
    Picture(5, hash=f"#device={DRIVER}/gpu-003/gpu-7", dark=True, height=640),
    Picture(200, group="zone"),
    Picture(5000),
)


async def take(picture: Picture) -> None:
    """Serve the made-up cluster, and have its page drawn."""
    with TemporaryDirectory() as folder:
        snapshot = Path(folder, "cluster.json")
        await asyncio.to_thread(snapshot.write_text, json.dumps(cluster(picture.nodes)))
        async with running(parser(["ui"]).parse_args(["ui", "--from", str(snapshot)])) as address, browser() as page:
            await page.shape(1280, picture.height, dark=picture.dark)
            await page.goto(f"{address}{picture.hash}")
            await page.until("performance.getEntriesByName('first picture').length", 300)
            await group_by(page, picture.group)
            await page.until("document.querySelectorAll('.tile').length > 30")
            await asyncio.sleep(2)  # animations of new tiles end
            await page.picture(picture.file)
    print(f"{picture.file}: {picture.file.stat().st_size} bytes")


async def group_by(page: Page, facet: str) -> None:
    """As a person chooses it."""
    if facet:
        await page.value(
            f"(() => {{ const it = document.getElementById('group'); it.value = '{facet}';"
            " it.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
        await page.until("document.querySelectorAll('#groups li').length > 1")


async def main(numbers: Collection[int]) -> None:
    """Take the pictures of clusters with these numbers of nodes."""
    for picture in PICTURES:
        if picture.nodes in numbers:
            await take(picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [picture.nodes for picture in PICTURES]
    parser.add_argument("nodes", type=int, nargs="*", default=sizes, help=f"of clusters (all of {sizes})")
    asyncio.run(main(parser.parse_args().nodes))
