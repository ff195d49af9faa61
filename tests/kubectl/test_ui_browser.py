"""The page of ``kubectl dra ui`` in Chromium, which ``KOPF_DRA_BROWSER`` names: a skip is told of in the summary."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, DRIVER, Page, browser, cluster
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.ui.server import running
from dra_operator.kubectl.ui.view import View

pytestmark = pytest.mark.skipif(not os.environ.get(BROWSER), reason=f"{BROWSER} names no browser")
MARKUP = "<img src=x onerror=alert(1)>"
MOST_ELEMENTS = 5000
ELEMENTS = "document.querySelectorAll('*').length"
FOCUS = "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
ACTIVE = (
    "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))?.getAttribute('aria-label')"
)
CUT_NUMBERS = (
    "[...document.querySelectorAll('#view-{view} .space .number')]"
    ".filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.textContent)"
)
"""Numbers and ages that their column cuts off."""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster of 60 nodes in three zones and two racks; a pod whose cause is markup, and a claim of many devices."""
    found = cluster(60)
    file = tmp_path_factory.mktemp("ui") / "cluster.json"
    pods = [it for it in found["items"] if it["kind"] == "Pod" and it["status"]["phase"] == "Pending"]
    pods[0]["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": MARKUP}]
    for pod in pods:
        pod["metadata"]["creationTimestamp"] = "2030-01-01T12:00:00Z"
    slices = [it for it in found["items"] if it["kind"] == "ResourceSlice"]
    slices[0]["spec"]["devices"][0]["attributes"]["model"] = {"string": MARKUP}
    file.write_text(json.dumps(found))
    return file


@asynccontextmanager
async def opened(source: Path, width: int = 1280, *, dark: bool = False, hash_: str = "") -> AsyncIterator[Page]:
    """The page, once it is drawn. It has written no error, and asked no other server, when the block ends."""
    async with running(parser(["ui"]).parse_args(["ui", "--from", str(source)])) as address, browser() as page:
        await page.shape(width, 800, dark=dark)
        await page.goto(f"{address}{hash_}")
        await page.until("performance.getEntriesByName('first picture').length")
        await page.until("document.querySelector('.table:not([hidden]) .space [role=row]') && true")
        yield page
        assert page.complaints == []
        assert {url for url in page.requested if not url.startswith(("data:", "about:"))} == {
            url for url in page.requested if url.startswith(address)
        }


async def text(page: Page, selector: str) -> str:
    found: str = await page.value(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


async def choose(page: Page, selector: str, value: str) -> None:
    """A value of a menu, as a person chooses it."""
    script = f"const it = document.querySelector({json.dumps(selector)}); it.value = {json.dumps(value)};"
    await page.value(f"(() => {{ {script} it.dispatchEvent(new Event('change', {{bubbles: true}})); }})()")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
async def test_the_page_fits_its_window_in_both_themes(snapshot: Path, width: int, dark: bool) -> None:
    async with opened(snapshot, width, dark=dark) as page:
        for view in ("nodes", "waiting", "claims", "classes"):
            await page.value(f"location.hash = '{view}'")
            await page.until(f"document.querySelector('#view-{view} .space [role=row]') && true")
            assert await page.value("document.documentElement.scrollWidth - innerWidth") <= 0, view
            assert await page.value(ELEMENTS) < MOST_ELEMENTS
            assert await page.value(CUT_NUMBERS.format(view=view)) == [], view
        ground = await page.value("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
        square = await page.value(
            "(() => { const it = document.getElementById('map'); location.hash = 'nodes';"
            " return [...it.getContext('2d').getImageData(8, 8, 1, 1).data]; })()"
        )
        assert square[3] == 255, "a square of the heat map is painted"


async def test_nodes_are_found_grouped_and_filtered(snapshot: Path) -> None:
    async with opened(snapshot) as page:
        assert (await text(page, "#found")).startswith("480 devices on 60 nodes")
        await choose(page, "#group", "zone")
        await page.until("document.querySelectorAll('#groups li').length === 3")
        assert (await text(page, "#groups li")).startswith("a 20 nodes, ")
        await page.click("#groups button")
        await page.until("document.getElementById('found').textContent.startsWith('160 devices on 20 nodes')")
        await choose(page, "select[data-facet=model]", "h100")
        await page.until("document.getElementById('found').textContent.startsWith('80 devices on 10 nodes')")
        await page.click(".state[data-state=tainted]")
        await page.until("[...document.querySelectorAll('.tile')].every((it) => it.dataset.state === 'tainted')")
        await page.click("#clear")
        await page.until("document.getElementById('found').textContent.startsWith('480 devices')")
        assert await page.value(FOCUS) == "find"
        await page.write("gpu-007")
        await page.until("document.getElementById('found').textContent.startsWith('8 devices on 1 node')")
        name = await page.until("document.querySelector('.tile')?.getAttribute('aria-label')")
        assert name.startswith("node gpu-007, device gpu-0: ")


async def test_the_keyboard_alone_leads_to_a_device_and_back(snapshot: Path) -> None:
    async with opened(snapshot) as page:
        for _ in range(30):
            await page.press("Tab")
            if await page.value(FOCUS) == "rows":
                break
        assert (await page.value(ACTIVE)).startswith("node gpu-000, ")
        await page.press("End")
        assert (await page.value(ACTIVE)).startswith("node gpu-059, ")
        await page.press("ArrowUp")
        assert (await page.value(ACTIVE)).startswith("node gpu-058, ")
        await page.press("Enter")
        await page.until("document.querySelector('#details .tree a') && true")
        assert await text(page, "#details h2") == "gpu-058"
        assert await page.value("document.activeElement.tagName") == "H2"
        await page.press("Tab")
        await page.press("Enter")
        await page.until("document.querySelector('#details .badge') && location.hash.startsWith('#device=')")
        assert await page.value("decodeURIComponent(location.hash)") == f"#device={DRIVER}/gpu-058/gpu-0"
        await page.press("Escape")
        assert await page.value(FOCUS) == "rows"
        assert (await page.value(ACTIVE)).startswith("node gpu-058, "), "the line is still the one that was left"
        await page.press("/")
        assert await page.value(FOCUS) == "find"


async def test_waiting_pods_are_sorted_searched_and_their_command_copied(snapshot: Path) -> None:
    async with opened(snapshot, hash_="#waiting") as page:
        await page.allow_clipboard()
        await page.until(
            "document.querySelector('#waiting-rows .space [role=row]')?.textContent.includes('12h') && true"
        )
        await page.until(
            "document.getElementById('waiting-judged').hidden && document.querySelectorAll('.kind').length"
        )
        await page.click("#waiting-find")
        await page.write("typo")
        await page.until("document.getElementById('waiting-found').textContent.startsWith('1 of 3')")
        await page.click("#waiting-rows .copy")
        command = f"kubectl dra why --from={snapshot} -n research -- pod typo"
        await page.until("!document.getElementById('said').hidden")
        assert await text(page, "#said") == f"Copied: {command}"
        assert await page.value("navigator.clipboard.readText()") == command
        await page.value("document.getElementById('waiting-rows').focus()")
        await page.press("Enter")
        await page.until("document.querySelector('#details .fixes') && true", 90)
        assert await text(page, "#details code") == command


async def test_claims_and_classes_lead_to_their_details(snapshot: Path) -> None:
    async with opened(snapshot, hash_="#claims") as page:
        await page.until("document.querySelector('#claims-rows .space [role=row]') && true")
        await page.click("#claims-rows [data-sort=devices]")
        await page.click("#claims-rows [data-sort=devices]")
        await page.until("document.querySelector('#claims-rows [aria-sort=descending]') && true")
        await page.value("location.hash = 'classes'")
        await page.until("document.querySelector('#classes-rows .space [role=row]')?.textContent.startsWith('gpu480')")
        assert await text(page, "#classes-found") == "1 class"
        await page.click("#classes-rows .space [role=row] .name")
        await page.until("document.querySelector('#details .lines') && true")
        await page.click("#details button.group")
        await page.until("document.querySelector('[data-facet=class]').value === 'gpu' && location.hash === '#nodes'")


async def test_markup_of_others_is_text(snapshot: Path) -> None:
    async with opened(snapshot, hash_="#waiting") as page:
        await page.until(f"document.body.textContent.includes({json.dumps(MARKUP)})")
        assert await page.value("document.images.length") == 0
        await page.value(f"location.hash = 'device=' + encodeURIComponent('{DRIVER}/gpu-000/gpu-0')")
        await page.until(f"document.getElementById('details').textContent.includes({json.dumps(MARKUP)})")
        assert await page.value("document.images.length") == 0


@pytest.fixture(scope="module")
def crowd(snapshot: Path) -> Path:
    """The same with 3,000 pods more that wait."""
    found: dict[str, Any] = json.loads(snapshot.read_bytes())
    pod = next(it for it in found["items"] if it["kind"] == "Pod" and it["status"]["phase"] == "Pending")
    for number in range(3000):
        found["items"].append(
            {**pod, "metadata": {"name": f"p-{number}", "namespace": "research", "uid": f"u-{number}"}}
        )
    file = snapshot.with_name("crowd.json")
    file.write_text(json.dumps(found))
    return file


async def test_many_lines_are_a_few_elements(crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "judge", lambda view: {"revision": view.revision, "seconds": 0.0})
    async with opened(crowd, hash_="#waiting") as page:
        await page.until("document.querySelector('#waiting-rows .space [role=row]') && true")
        await page.value("document.getElementById('waiting-rows').focus()")
        await page.press("End")
        await page.until("document.querySelector('#waiting-rows [aria-selected]').textContent.includes('research/')")
        assert await page.value("document.getElementById('waiting-rows').getAttribute('aria-rowcount')") == "3004"
        assert await page.value("document.querySelectorAll('#waiting-rows [role=row]').length") < 60
        assert await page.value(ELEMENTS) < MOST_ELEMENTS


@pytest.mark.parametrize("view", ["waiting", "claims", "classes"])
async def test_a_list_that_is_not_there_yet_says_so(snapshot: Path, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tens of thousands of claims the first answer takes seconds."""
    may_answer, answer = threading.Event(), getattr(View, view)

    def held(*asked: Any) -> Any:
        assert may_answer.wait(60)
        return answer(*asked)

    monkeypatch.setattr(View, view, held)
    async with running(parser(["ui"]).parse_args(["ui", "--from", str(snapshot)])) as address, browser() as page:
        await page.goto(f"{address}#{view}")
        await page.until(f"document.getElementById('{view}-found')?.textContent === 'loading'")
        may_answer.set()
        await page.until(f"document.querySelector('#view-{view} .space [role=row]') && true")
        assert "loading" not in await text(page, f"#{view}-found")
