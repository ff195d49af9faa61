"""Files that a user, an administrator or an earlier process wrote."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import zlib
from functools import cache
from pathlib import Path
from unittest import mock

import dra_cdi
import msgspec
from dra_api.releases.gates import FeatureGates
from dra_devcluster.agent.claims import checkpoint as node_checkpoint
from dra_devcluster.apiserver import server as snapshots
from dra_devcluster.apiserver.served.registry import Registry
from dra_kube import connection, contexts, namespace_of
from dra_kubeletplugin.drivers import read_file
from dra_kubeletplugin.drivers.hostdev.config import read_config
from dra_kubeletplugin.drivers.simulated import SimulatedConfig, resources_of
from dra_kubeletplugin.files.checkpoint import ClaimRecords
from dra_kubeletplugin.files.claim_files import decode_metadata
from dra_operator.app.settings.command_line import CommandLine
from dra_operator.commands import cel_command
from dra_simulator import command as simulate_command

_UID = "claim-uid"


@cache
def _folder() -> Path:
    """In memory where there is such a place."""
    shared = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared if shared.is_dir() else None)
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _file(data: bytes, name: str) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


class ExitCodeWrong(Exception):
    """A command ended with a code that says nothing of its input."""


def cdi(data: bytes) -> None:
    """A CDI file; what is accepted is written again as it was read."""
    spec = dra_cdi.decode(data)
    assert dra_cdi.decode(dra_cdi.encode(spec)) == spec


def plugin_checkpoint(data: bytes) -> None:
    """The record of a claim, also with the checksum of what was changed."""
    records = ClaimRecords(_folder())
    for content in (data, _with_checksum(data)):
        _file(content, f"{_UID}.json")
        records.read(_UID)


def _with_checksum(data: bytes) -> bytes:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(found, dict) or "record" not in found:
        return data
    record = json.dumps(found["record"])
    return (
        json.dumps(found | {"checksum": zlib.crc32(record.encode()), "record": 0})
        .replace('"record": 0', f'"record": {record}')
        .encode()
    )


def kubelet_checkpoint(data: bytes) -> None:
    """What the node agent remembers; what is accepted can be written."""
    node_checkpoint.encode(node_checkpoint.decode(data))


def snapshot(data: bytes) -> None:
    """What the development cluster remembers."""
    snapshots.load(Registry(FeatureGates.of({}), {}, "always-allow"), _file(data, "snapshot"))


def kubeconfig(data: bytes) -> None:
    """A kubeconfig. It may name programs; here none is started."""
    path = str(_file(data, "kubeconfig"))
    with mock.patch("subprocess.Popen", side_effect=OSError("not here")), mock.patch.dict(os.environ, KUBECONFIG=path):
        connection(path).authorization()
        contexts(path)
        namespace_of(path)


def hostdev(data: bytes) -> None:
    """The file of the driver for host devices."""
    read_config(_file(data, "hostdev.yaml"))


def simulated(data: bytes) -> None:
    """The file of the simulated driver."""
    config = read_file(_file(data, "simulated.yaml"), SimulatedConfig)
    resources_of(msgspec.structs.replace(config, node_name=config.node_name or "node-1"))  # which a flag says


def settings(data: bytes) -> None:
    """The operator's settings file. A wrong one ends the process with code 2."""
    with _silence():
        try:
            CommandLine().settings(["--config", str(_file(data, "settings.yaml"))])
        except SystemExit as end:
            if end.code != 2:
                raise ExitCodeWrong(end.code) from end


def metadata(data: bytes) -> None:
    """What a container reads of its devices."""
    decode_metadata(data)


def simulate(data: bytes) -> None:
    """Objects in a file: read, taken into the view, and every pod decided on."""
    _command(simulate_command, ["-f", str(_file(data, "objects.yaml")), "--sequential"])


def simulate_cases(data: bytes) -> None:
    """Allocation problems in a file."""
    _command(simulate_command, [str(_file(data, "cases.json"))])


def cel_cases(data: bytes) -> None:
    """Selectors and devices in a file."""
    _command(cel_command, [str(_file(data, "cases.jsonl")), "--repeat", "0"])


def _command(command: object, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]  # a module
    with _silence():
        code = command.run(parser.parse_args(words))  # type: ignore[attr-defined]
    if code not in (0, 1, 2):
        raise ExitCodeWrong(code)


def _silence() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
    return stack
