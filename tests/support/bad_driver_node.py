"""What the instances of the bad driver on one node have in common: names, devices and files."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

from dra_driver_test.kit import Place
from dra_kube import RESOURCE_CLAIMS, Api, NotFound

Json = dict[str, Any]
SHARED_ONLY, PARTITIONS, NETWORK, TWO_POOLS = (
    "kind: shared only",
    "kind: partitions",
    "kind: network-attached",
    "kind: two pools",
)
KINDS = (SHARED_ONLY, PARTITIONS, NETWORK, TWO_POOLS)
"""What a sound driver may be beside a plain one."""
FIRST = "gpu-0"
"""A device that every kind has."""


class Damaged(Exception):
    """The state cannot be read: nothing is prepared until it is mended."""


class BadNode:
    """The driver's files on a node, and its faults."""

    def __init__(self, place: Place, driver: str, faults: frozenset[str]) -> None:
        self.place, self.driver, self.faults = place, driver, faults
        self.starts = 0
        self.uid = ""
        self.rebooted = False
        self._known: set[str] = set()

    def has(self, *faults: str) -> bool:
        """Whether the driver has one of these faults."""
        self._known.update(faults)
        return not self.faults.isdisjoint(faults)

    @property
    def driver_name(self) -> str:
        """The name that it registers and publishes."""
        if self.has("its name is in upper case"):
            return self.driver.upper()
        if self.has("its name changes at each start"):
            return f"{self.starts}-{self.driver}"
        return self.driver

    @property
    def folder(self) -> Path:
        """The driver's own folder."""
        return self.place.plugins / self.driver

    @property
    def salt(self) -> str:
        """What CDI ids begin with; it should never change."""
        if self.has("its ids change at each start"):
            return f"s{self.starts}"
        if self.has("its ids change after a kill"):
            kept = self.folder / "salt"
            return kept.read_text() if kept.exists() else f"s{self.starts}"
        return "claim"

    def _remove(self, pattern: str) -> None:
        for path in self.place.cdi.glob(pattern):
            path.unlink()

    def remember(self) -> None:
        """What happens at a clean stop only."""
        if self.has("it removes its files when it stops"):
            self._remove(f"{self.driver}-*.json")
        if self.has("its ids change after a kill"):
            (self.folder / "salt").write_text(self.salt)

    # --- state: claim uid to namespace, name and [pool, device, may be taken twice] ---

    @property
    def _file(self) -> Path:
        return self.folder / "state.json"

    def state(self) -> dict[str, Json]:
        """What is prepared."""
        try:
            loaded: dict[str, Json] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            if self.has("it forgets a damaged state"):
                return {}
            raise Damaged(f"the state is damaged: {error}") from error
        return loaded

    async def save(self, state: dict[str, Json]) -> None:
        """In one step."""
        if self.has("it remembers three claims"):
            state = dict(list(state.items())[-3:])
        if self.has("its state is written in place"):
            await self.write_in_place(state)
        hidden = self.folder / ".state"
        hidden.write_text(json.dumps(state))
        hidden.replace(self._file)

    async def write_in_place(self, state: dict[str, Json]) -> None:
        """With a moment in which the file is not whole."""
        self._file.write_text("{")
        await asyncio.sleep(0.3)
        self._file.write_text(json.dumps(state))

    # --- CDI files ---

    def cdi_file(self, claim: Any) -> Path:
        """The file of a claim."""
        if self.has("its files are named by claims"):
            return self.place.cdi / f"{self.driver}-{claim.namespace}-{claim.name}-{claim.uid}.json"
        return self.place.cdi / f"{self.driver}-{claim.uid}.json"

    def write_cdi(self, path: Path, spec: Json) -> None:
        """Write a file, complete when it appears."""
        text = json.dumps(spec)
        if not self.has("it needs the CDI folder"):
            path.parent.mkdir(exist_ok=True)
        if self.has("a file is not JSON"):
            text = text[:-1]
        if self.has("it writes files in place"):
            path.write_text(text)
        else:
            hidden = path.parent / f".{uuid.uuid4()}"
            hidden.write_text(text)
            hidden.replace(path)
        if self.has("every user can write its files"):
            path.chmod(0o666)
        if self.has("it leaves temporary files"):
            (path.parent / f"{path.name}.tmp").touch()
        if self.has("two files describe a device"):
            (path.parent / f"again-{path.name}").write_text(text)

    # --- start ---

    def check_start(self) -> None:
        """Raises what ends a bad driver at its start."""
        try:
            state = self.state()
        except Damaged:
            if self.has("it does not start with a damaged state"):
                raise
            state = {}
        emptied = bool(state and not list(self.place.cdi.glob("*.json")))
        self.rebooted = self.rebooted or emptied
        if self.starts > 1 and self.has("it removes its files when it starts"):
            self._remove(f"{self.driver}-*.json")
        if self.starts > 1 and self.has("it removes files that contain its name when it starts"):
            self._remove(f"*{self.driver}-2*")
        if emptied and self.has("it does not start after a reboot"):
            raise RuntimeError("the state does not fit the CDI folder")

    async def check_claims(self, api: Api) -> None:
        """Raises what ends a bad driver at its start."""
        if self.has("it waits for ever when its start fails"):
            await api.list(RESOURCE_CLAIMS)
        if not self.has("it reads prepared claims when it starts"):
            return
        for known in self.state().values():
            try:
                await api.get(RESOURCE_CLAIMS, known["name"], known["namespace"])
            except NotFound as error:
                raise RuntimeError(f"a prepared claim is missing: {error}") from error
