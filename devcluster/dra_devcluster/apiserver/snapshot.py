"""All objects in one file: written when the server stops, read when it starts."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from .errors import Json, SnapshotError
from .kinds import kind_of
from .served.registry import Registry
from .storage.store import Stored

_FORMAT_VERSION = 1


def save(registry: Registry, path: Path) -> None:
    """Replace the file in one step. Raises SnapshotError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(orjson.dumps({"format": _FORMAT_VERSION, "revision": registry.store.revision}) + b"\n")
            for collection in registry.store.collections():
                head = orjson.dumps({"group": collection.group, "resource": collection.resource})
                for stored in collection.all():
                    file.write(b'%s,"object":{%s}\n' % (head[:-1], stored.data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SnapshotError(f"cannot write the snapshot {path}: {error.strerror or error}") from error


def load(registry: Registry, path: Path) -> None:
    """Put the objects of the file into an empty store; a file that does not exist is made. Raises SnapshotError."""
    try:
        head, *lines = path.read_bytes().splitlines()
        first = orjson.loads(head)
        if first["format"] != _FORMAT_VERSION:
            raise ValueError(f"its format is {first['format']}, not {_FORMAT_VERSION}")
        registry.store.revision = int(first["revision"])
        entries = [orjson.loads(line) for line in lines]
        # Definitions first: they say how custom resources are to be read.
        for entry in sorted(entries, key=lambda entry: entry["resource"] != "customresourcedefinitions"):
            _restore(registry, entry)
    except FileNotFoundError:
        save(registry, path)  # better to hear now than at the end that it cannot be written
    except OSError as error:
        raise SnapshotError(f"cannot read the snapshot {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(
            f"{path} is not a snapshot of this server ({error}): remove it or pass another file"
        ) from error


def _restore(registry: Registry, entry: Json) -> None:
    obj: Json = entry["object"]
    collection = registry.store.collection(entry["group"], entry["resource"])
    if entry["resource"] == "customresourcedefinitions":
        registry.add_definition(obj)
    resource = registry.of_collection(collection)
    if resource is None:
        raise ValueError(f"{entry['resource']}.{entry['group']} is not served")
    fields = kind_of(resource).fields(obj)
    collection.restore(Stored(obj, int(obj["metadata"]["resourceVersion"]), fields))
