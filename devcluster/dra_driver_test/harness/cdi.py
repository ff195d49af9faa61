"""The CDI folder as a container runtime reads it."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_cdi import CdiDirectory, CdiError, ContainerEdits, decode

from dra_driver_test.errors import Finding, Skipped

try:
    import inotify_simple  # type: ignore[import-untyped]  # the library ships no types
except ImportError:  # not a Linux system
    inotify_simple = None

SUFFIXES = (".json", ".yaml")


class CdiView:
    """What the files of drivers describe now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.suffix in SUFFIXES)

    def describing(self, ids: Iterable[str]) -> list[Path]:
        """The files that describe some of these devices. On a real node, those of other drivers lie beside them."""
        wanted, found = set(ids), []
        for path in self.files():
            with suppress(CdiError, OSError):
                spec = decode(path.read_bytes())
                if any(f"{spec.kind}={device.name}" in wanted for device in spec.devices):
                    found.append(path)
        return found

    def known(self) -> set[str]:
        return set(CdiDirectory(self.folder).index().devices)

    def check_nothing_left(self, before: set[str], after: str) -> None:
        """Raises Finding when the files describe devices that were not known before; ``after`` says of what."""
        if left := self.known() - before:
            raise Finding(f"{after}, and CDI files still describe {sorted(left)}")

    @contextmanager
    def nothing_left(self, after: str) -> Iterator[None]:
        """The same for the devices that were known at the begin of the block."""
        before = self.known()
        yield
        self.check_nothing_left(before, after)

    def faults(self) -> dict[str, str]:
        """By file name, what a runtime refuses."""
        return {name: str(error) for name, error in CdiDirectory(self.folder).index().errors.items()}

    def conflicts(self, kinds: Container[str]) -> set[str]:
        """Devices of these kinds that several files describe. On a real node, other drivers have such as well."""
        return {id_ for id_ in CdiDirectory(self.folder).index().conflicts if id_.partition("=")[0] in kinds}

    def edits(self, ids: Iterable[str]) -> ContainerEdits:
        """What changes in a container that gets these devices. Raises Finding."""
        try:
            return CdiDirectory(self.folder).index().resolve(ids)
        except CdiError as error:
            raise Finding(str(error)) from error

    @contextmanager
    def new_files(self) -> Iterator[list[Path]]:
        """At the end the list has the files that were added."""
        before, added = set(self.files()), list[Path]()
        yield added
        added.extend(path for path in self.files() if path not in before)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """In the block nobody can read or change the folder, not even root: its path is a link to itself."""
        aside = self.folder.with_name(f"{self.folder.name}-aside")
        self.folder.rename(aside)
        try:
            self.folder.symlink_to(self.folder.name)
            yield
        finally:
            self.folder.unlink(missing_ok=True)
            aside.rename(self.folder)

    def neighbours(self, driver: str, files: Iterable[Path]) -> dict[Path, str]:
        """What drivers of similar names would have written, named as the driver names its own files; by path.

        Raises Skipped for a driver that wrote nothing.
        """
        texts = {}
        for name in (f"{driver}-2", f"{driver}munity", f"my-{driver}"):
            for file in files:
                named = file.name.replace(driver, name) if driver in file.name else f"{name}-{file.name}"
                path = file.with_name(named).with_suffix(".json")
                device = {"name": path.stem, "containerEdits": {"env": [f"NEIGHBOUR={name}"]}}
                texts[path] = json.dumps({"cdiVersion": "0.6.0", "kind": f"{name}/device", "devices": [device]})
        if not texts:
            raise Skipped("the driver writes no CDI files")
        return texts

    @contextmanager
    def foreign(self, texts: Mapping[Path, str]) -> Iterator[None]:
        """Files of other drivers, which are removed at the end of the block, however it ends.

        Raises Finding if the driver removed or changed some.
        """
        try:
            for path, text in texts.items():
                path.write_text(text)
            yield
            gone = sorted(path.name for path, text in texts.items() if not path.exists() or path.read_text() != text)
        finally:
            for path in texts:
                path.unlink(missing_ok=True)
        if gone:
            raise Finding(f"the driver removed or changed CDI files of other drivers: {', '.join(gone)}")

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """At the end the set has the names of files that were written where runtimes read them, not renamed there."""
        if inotify_simple is None:
            raise Skipped("the check needs inotify, which this system does not have")
        written: set[str] = set()
        with inotify_simple.INotify(nonblocking=True) as watch:
            watch.add_watch(str(self.folder), inotify_simple.flags.CLOSE_WRITE)
            yield written
            names = (event.name for event in watch.read(timeout=0))
            written.update(name for name in names if Path(name).suffix in SUFFIXES)
