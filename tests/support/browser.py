"""Chromium without a window, driven by its DevTools protocol over a WebSocket.

``KOPF_DRA_BROWSER`` names the binary: ``chromium``, ``chromium-headless-shell`` or Chrome. Playwright and Selenium
would bring a driver of 40 MB for the ten calls that the page's test needs, and each its own idea of a browser.

A made-up cluster as a snapshot for ``kubectl dra ui``:

    python tests/support/browser.py 200 > cluster.json

Eight GPUs for each node, three in four taken, some shared or tainted; some nodes are cordoned, and pods wait for
different reasons. Equal for equal numbers of nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

JSON = dict[str, Any]
DRIVER: Final = "gpu.example.com"
DRA: Final = "resource.k8s.io/v1"
TOPOLOGY: Final = "topology.kubernetes.io"
TEAMS: Final = ("inference", "research", "training", "web")


def cluster(nodes: int) -> JSON:
    """A List with the header of a snapshot."""
    chance = random.Random(nodes)
    items = list(classes())
    for number in range(nodes):
        items += node(f"gpu-{number:03}", number, chance)
    items += waiting()
    items.append(lease())
    header = {"taken": "2030-01-02T00:00:00Z", "kubernetes": "1.36", "namespace": "research"}
    return {"apiVersion": "v1", "kind": "List", "snapshot": header, "items": items}


def classes() -> Iterator[JSON]:
    """One class, and the namespaces."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    yield {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}
    for team in TEAMS:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}


def node(name: str, number: int, chance: random.Random) -> Iterator[JSON]:
    """The node, its slice, and claims with pods on three in four devices."""
    meta: JSON = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": {f"{TOPOLOGY}/zone": "abc"[number % 3], f"{TOPOLOGY}/rack": f"r{number // 32:02}"},
    }
    spec: JSON = {"unschedulable": True} if number % 17 == 5 else {}
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    yield {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": {"allocatable": room}}
    model = ("a100", "h100")[number % 2]
    devices: list[JSON] = []
    for place in range(8):
        attributes = {
            "model": {"string": model},
            "resource.kubernetes.io/numaNode": {"int": place // 4},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{place // 2 * 32:02x}"},
        }
        device: JSON = {"name": f"gpu-{place}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
        if place == 7:
            device["allowMultipleAllocations"] = True
        if chance.random() < 0.03:
            device["taints"] = [{"key": "example.com/ecc-errors", "effect": "NoSchedule"}]
        devices.append(device)
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    yield {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"{name}-gpu"}, "spec": spec}
    for place, device in enumerate(devices):
        if "taints" not in device and chance.random() < (0.55 + 0.4 * (number % 5 > 1)):
            yield from holder(name, place, chance)


def holder(node_name: str, place: int, chance: random.Random) -> Iterator[JSON]:
    """A claim with its pod; the last device of a node is shared."""
    team = chance.choice(TEAMS)
    name = f"{team}-{node_name.removeprefix('gpu-')}-{place}"
    result: JSON = {"request": "gpu", "driver": DRIVER, "pool": node_name, "device": f"gpu-{place}"}
    if place == 7:
        share = f"00000000-0000-4000-8000-{int(node_name.removeprefix('gpu-')):012}"
        result |= {"shareID": share, "consumedCapacity": {"memory": "20Gi"}}
    since = f"2030-01-01T{chance.randrange(24):02}:{chance.randrange(60):02}:00Z"
    yield claim(team, name, 1) | {
        "status": {
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
            "allocation": {"allocationTimestamp": since, "devices": {"results": [result]}},
        }
    }
    yield pod(team, name, {"nodeName": node_name}, "Running")


def waiting() -> Iterator[JSON]:
    """Pods that have no node: too many devices at once, a typo, and a tainted node set."""
    typo = {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "h200"'}}]}
    for name, count, more in (("llama-0", 8, {}), ("llama-1", 8, {}), ("typo", 1, typo)):
        yield claim("research", name, count, **more)
        yield pod("research", name, {}, "Pending")


def lease() -> JSON:
    meta = {"name": "dra-operator-dra-scheduler", "namespace": "kube-system"}
    spec = {"holderIdentity": "gpu-000_a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T23:59:58.000000Z"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def claim(namespace: str, name: str, count: int, **more: Any) -> JSON:
    """Asks for devices of the class."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-claim-{name}"}
    return {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def pod(namespace: str, name: str, spec: JSON, phase: str) -> JSON:
    """Uses the claim of its name."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-job-{name}", "controller": True}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "ownerReferences": [owner]}
    used = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    spec = {"schedulerName": "dra-scheduler", **used, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


BROWSER: Final = "KOPF_DRA_BROWSER"
FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""It reaches this machine alone: a page that needs the network fails."""
START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 60.0
KEYS: Final[Mapping[str, tuple[str, int]]] = {
    "Tab": ("Tab", 9),
    "Enter": ("Enter", 13),
    "Escape": ("Escape", 27),
    "PageUp": ("PageUp", 33),
    "PageDown": ("PageDown", 34),
    "End": ("End", 35),
    "Home": ("Home", 36),
    "ArrowLeft": ("ArrowLeft", 37),
    "ArrowUp": ("ArrowUp", 38),
    "ArrowRight": ("ArrowRight", 39),
    "ArrowDown": ("ArrowDown", 40),
}


class BrowserError(Exception):
    """The page threw, or the browser does not answer."""


class Page:
    """One tab. ``complaints`` are errors and refused loads that the page wrote to its console."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session = ""
        self._number = 0
        self.complaints: list[str] = []
        self.requested: list[str] = []

    async def open(self) -> None:
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._call(f"{domain}.enable")
        await self._call("Performance.enable", timeDomain="threadTicks")

    async def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                got = await self._socket.receive()
                if got.type is not WSMsgType.TEXT:
                    raise BrowserError(f"{method}: the browser is gone")
                answer = got.json()
                if answer.get("id") == number:
                    if "error" in answer:
                        raise BrowserError(f"{method}: {answer['error']['message']}")
                    return answer["result"]
                self._note(answer)

    def _note(self, event: Mapping[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])

    async def shape(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window, and the theme that the person prefers."""
        await self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._call("Emulation.setEmulatedMedia", features=[theme])

    async def goto(self, address: str) -> None:
        """Open an address; returns before the page is drawn."""
        await self._call("Page.navigate", url=address)

    async def value(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise. Raises BrowserError if it throws."""
        found = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{expression}: {found['exceptionDetails']['exception'].get('description')}")
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 60.0) -> Any:
        """The first true value of an expression. Raises BrowserError."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := await self.value(expression):
                return found
            await asyncio.sleep(0.02)
        body = await self.value("document.body.innerText.slice(0, 600)")
        raise BrowserError(f"never true: {expression}; complaints: {self.complaints}; the page says: {body}")

    async def processor_seconds(self) -> float:
        """The time for which the page's main thread has worked: other programs of the machine do not count."""
        metrics = (await self._call("Performance.getMetrics"))["metrics"]
        found: float = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
        return found

    async def press(self, key: str, *, shift: bool = False) -> None:
        """A key down and up, as from a keyboard."""
        name, code = KEYS.get(key, (key, ord(key[0].upper())))
        about: dict[str, Any] = {"key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        await self._call("Input.dispatchKeyEvent", **down, **about)
        await self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def write(self, text: str) -> None:
        """Letters into what has the focus."""
        await self._call("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        """A click into the middle of an element."""
        script = (
            f"(() => {{ const it = document.querySelector({selector!r}); it.scrollIntoView({{block: 'nearest'}}); "
            "const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        x, y = await self.value(script)
        for type_ in ("mousePressed", "mouseReleased"):
            await self._call("Input.dispatchMouseEvent", type=type_, x=x, y=y, button="left", clickCount=1)

    async def allow_clipboard(self) -> None:
        """As a person who uses the page does by a click."""
        session, self._session = self._session, ""
        await self._call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self._session = session

    async def picture(self, file: Path) -> None:
        """What is seen, as PNG or WebP by the name of the file."""
        kind = {"format": "webp", "quality": 80} if file.suffix == ".webp" else {"format": "png"}
        shot = await self._call("Page.captureScreenshot", **kind)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser(binary: str = "") -> AsyncIterator[Page]:
    """A page of a browser of its own, which ends with the block. Raises BrowserError if there is none."""
    binary = binary or os.environ.get(BROWSER, "")
    if not binary:
        raise BrowserError(f"{BROWSER} names no browser")
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            binary,
            *FLAGS,
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
            "about:blank",
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            address = await _address(process)
            reading = asyncio.create_task(_drain(process))
            async with ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                await page.open()
                yield page
            reading.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    said = b""
    async with asyncio.timeout(START_SECONDS):
        while line := await _line(process):
            said += line
            if found := re.search(rb"DevTools listening on (ws://\S+)", line):
                return found[1].decode()
    raise BrowserError(f"the browser does not start: {said.decode(errors='replace')[-2000:]}")


async def _line(process: asyncio.subprocess.Process) -> bytes:
    return await process.stderr.readline() if process.stderr is not None else b""


async def _drain(process: asyncio.subprocess.Process) -> None:
    """A full pipe would stop the browser."""
    while await _line(process):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, help="of the cluster")
    print(json.dumps(cluster(parser.parse_args().nodes)))
