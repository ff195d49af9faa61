"""A pod waits for each cause there is: ``kubectl dra why`` names it, beside what the stock kube-scheduler says.

``CAUSES=write KUBEBUILDER_ASSETS=FOLDER pytest tests/reliability/test_causes_beside_kube_scheduler.py`` writes both
texts into ``causes.md`` beside this file; ``CAUSES=print`` with ``-s`` prints them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import envtest
import pytest
from dra_api.meta import RESOURCE_QUOTAS
from dra_kube import NAMESPACES, PODS, Api, Forbidden, NotFound, Resource, connection
from dra_operator.commands.object_files import KINDS
from dra_operator.kubectl.cli import main
from envtest import needs_stock_control_plane
from scheduling_causes import ALL, NAMESPACE, POD, Cause, Json

# Without the controller of claims, which would take reservations off that no pod has.
CONTROLLERS: Final = "resourcequota-controller,persistentvolume-binder-controller"
SETTLED_SECONDS: Final = 2.0
"""So long a condition has to stay as it is: watches of kube-scheduler may be behind."""
PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Said:
    """``scheduler`` is what kube-scheduler wrote into the condition, empty if nothing; ``why`` is our answer."""

    scheduler: str
    node: str
    why: str
    code: int


class Beside:
    """One cluster for one cause after the other."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def said(self, cause: Cause) -> Said:
        """What both say. Leaves nothing behind but the namespace."""
        try:
            asyncio.run(self._furnish(cause))
            found = asyncio.run(self._scheduled(cause))
            why, code = self._why()
        finally:
            asyncio.run(self._clear())
        return Said(found[0], found[1], why, code)

    def _why(self) -> tuple[str, int]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["why", f"pod/{POD}", "-n", NAMESPACE, "--kubeconfig", str(self._kubeconfig)])
        return out.getvalue(), code

    async def _furnish(self, cause: Cause) -> None:
        async with Api(connection(self._kubeconfig)) as api:
            labels = {"resource.kubernetes.io/admin-access": "true"}
            if not await _exists(api, NAMESPACES, NAMESPACE):
                await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
            *others, waiting = cause.everything
            await api.patch(NAMESPACES, NAMESPACE, {"metadata": {"labels": labels}})
            for obj in others:
                await _make(api, obj)
            if any("adminAccess" in str(it) for it in others):  # the label goes once the template is there
                none = dict.fromkeys(labels)
                await api.patch(NAMESPACES, NAMESPACE, {"metadata": {"labels": none}})
            await asyncio.sleep(SETTLED_SECONDS / 2)
            await _make(api, waiting)

    async def _scheduled(self, cause: Cause) -> tuple[str, str]:
        """Condition and node of the pod, once they stay."""
        before, since, begun = ("", ""), time.monotonic(), time.monotonic()
        async with Api(connection(self._kubeconfig)) as api:
            while time.monotonic() - since < SETTLED_SECONDS or (cause.by_scheduler is not None and before == ("", "")):
                assert time.monotonic() - begun < PATIENCE_SECONDS, f"kube-scheduler says nothing: {before}"
                now = _verdict(await api.get(PODS, POD, NAMESPACE))
                if now != before:
                    before, since = now, time.monotonic()
                await asyncio.sleep(0.2)
        return before

    async def _clear(self) -> None:
        async with Api(connection(self._kubeconfig)) as api:
            await _drop(api, PODS)
            for resource, _ in KINDS.values():
                if resource.kind in _OURS:
                    await _drop(api, resource)
            await _drop(api, RESOURCE_QUOTAS)


_OURS: Final = (
    *("ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "Node"),
    *("PersistentVolumeClaim", "PersistentVolume", "StorageClass"),
)


async def _exists(api: Api, resource: Resource, name: str) -> bool:
    with suppress(NotFound):
        await api.get(resource, name)
        return True
    return False


async def _make(api: Api, obj: Json) -> None:
    resource, _ = KINDS[obj["kind"]]
    meta = dict(obj["metadata"])
    is_deleted = meta.pop("deleted", False)
    name, namespace = meta["name"], meta.get("namespace")
    for attempt in range(20):
        try:
            await api.create(resource, {**obj, "metadata": meta})
            break
        except Forbidden:  # a quota that is not counted yet
            if attempt == 19:
                raise
            await asyncio.sleep(0.5)
    if obj["kind"] == "ResourceClaim" and "status" in obj:
        await api.patch(resource, name, {"status": obj["status"]}, namespace, subresource="status")
    if is_deleted:
        await api.delete(resource, name, namespace)


async def _drop(api: Api, resource: Resource) -> None:
    """Until all are gone."""
    while found := (await api.list(resource))[0]:
        for obj in found:
            name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
            with suppress(NotFound):
                if obj["metadata"].get("finalizers"):
                    await api.patch(resource, name, {"metadata": {"finalizers": None}}, namespace)
                await api.delete(resource, name, namespace, grace_seconds=0)


def _verdict(pod: dict[str, Any]) -> tuple[str, str]:
    conditions = pod.get("status", {}).get("conditions") or ()
    said = next((it for it in conditions if (it["type"], it["status"]) == ("PodScheduled", "False")), None)
    text = f"{said['reason']}: {said['message']}" if said else ""
    return text, pod["spec"].get("nodeName", "")


def table(said: Iterator[tuple[str, Cause, Said]], version: str) -> str:
    """The two texts beside each other, as Markdown."""
    lines: list[str] = []
    before = ""
    for part, cause, texts in said:
        if part != before:
            lines += [
                "",
                f"**{part}**",
                "",
                f"| Cause | kube-scheduler {version} | `kubectl dra why` |",
                "|---|---|---|",
            ]
            before = part
        lines.append(f"| {cause.title} | {_cell(texts.scheduler or 'says nothing')} | {_cell(texts.why)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    kept = [line for line in text.strip().splitlines() if not line.endswith("what dra-operator would do:")]
    escaped = "\n".join(kept).replace("|", "\\|").replace("<", "&lt;")
    return "<br>".join(line.replace("  ", "&nbsp;&nbsp;") for line in escaped.splitlines())


RECORD = Path(__file__).with_name("causes.md")
CASES = [(part, cause) for part, causes in ALL.items() for cause in causes]
WANTED = os.environ.get("CAUSES", "")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    binaries = envtest.assets()
    assert binaries is not None
    with envtest.scheduling_api_server(binaries, tmp_path_factory.mktemp("plane"), CONTROLLERS) as kubeconfig:
        yield Beside(kubeconfig)


@pytest.fixture(scope="module")
def told() -> Iterator[list[tuple[str, Cause, Said]]]:
    """What was said, for the record."""
    found: list[tuple[str, Cause, Said]] = []
    yield found
    if WANTED == "write" and len(found) == len(CASES):
        binaries = envtest.assets()
        assert binaries is not None
        version = subprocess.run([binaries / "kube-scheduler", "--version"], capture_output=True, text=True, check=True)
        head = RECORD.read_text().partition("\n\n**")[0]
        RECORD.write_text(f"{head}\n{table(iter(found), version.stdout.split()[-1])}")


@needs_stock_control_plane
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("part", "cause"), CASES, ids=lambda it: it.slug if isinstance(it, Cause) else "")
def test_why_names_what_keeps_the_pod(
    part: str, cause: Cause, beside: Beside, told: list[tuple[str, Cause, Said]]
) -> None:
    said = beside.said(cause)
    told.append((part, cause, said))
    if WANTED == "print":
        print(f"\n=== {cause.title}\n{said.scheduler or said.node or 'nothing'}\n---\n{said.why}exit code {said.code}")
    assert said.node == "", "kube-scheduler places the pod"
    assert bool(said.scheduler) == (cause.by_scheduler is not None)
    assert said.code == 3, said.why
    assert re.search(cause.names, said.why), said.why
