"""Every decoder of foreign input: its name, what runs it, and the errors that it documents."""

from __future__ import annotations

import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from dra_api.codec import DecodeError
from dra_api.conversion import ConversionError
from dra_cdi import CdiError
from dra_cel import CelError
from dra_devcluster.agent.errors import CheckpointCorrupted as KubeletCheckpointCorrupted
from dra_devcluster.agent.port_forward import SpdyError
from dra_devcluster.apiserver.errors import SnapshotError
from dra_devcluster.apiserver.verbs.patch import PatchRefused
from dra_devcluster.apiserver.wire import MalformedProtobuf
from dra_kube import ConnectionSettingsError, KubeError
from dra_kubeletplugin import ClaimError, MetadataError, SettingsError
from dra_kubeletplugin.errors import CheckpointCorrupted
from google.protobuf.message import DecodeError as NotAMessage

from fuzz import decoders, peers

SECONDS = 10.0
"""Processor time for one input: what is linear takes milliseconds, and a busy machine does not count."""
MEMORY = 1 << 30
"""Address space that one input may add."""


class Hangs(BaseException):
    """The time for one input is over. No ``except Exception`` of the code under test stops it."""


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` decodes an input; ``refusals`` are the errors that it may raise. ``rounds`` is its share of the suite."""

    run: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    about: str
    rounds: int = 100

    def finding(self, data: bytes) -> str | None:
        """What is wrong with the treatment of an input; None if it is accepted or refused as documented."""
        try:
            with _limits():
                self.run(data)
        except self.refusals:
            return None
        except Hangs:
            return f"takes more than {SECONDS:.0f} s of processor time"
        except MemoryError:
            return f"takes more than {MEMORY >> 20} MB"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return "".join(traceback.format_exception(error, limit=-6))
        return None


@contextmanager
def _limits() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_used() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _stop(_: int, __: FrameType | None) -> None:
    raise Hangs


def _used() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


# --- Every decoder of foreign input: its name, what runs it, and the errors that it documents ---

TARGETS: Final = {
    "api-answer": Target(peers.api_answer, (KubeError,), "answers of an API server to the client of dra_kube", 10),
    "api-request": Target(peers.api_request, (), "requests to the development cluster's API server", 60),
    "cdi": Target(decoders.cdi, (CdiError,), "CDI files"),
    "cel-cases": Target(decoders.cel_cases, (), "files of cases of dra-operator cel", 50),
    "cel-policy": Target(decoders.policy, (CelError, UnicodeDecodeError), "expressions of admission policies"),
    "cel-selector": Target(decoders.selector, (CelError, UnicodeDecodeError), "device selectors"),
    "hostdev": Target(decoders.hostdev, (SettingsError,), "the configuration file of hostdev", 60),
    "kubeconfig": Target(decoders.kubeconfig, (ConnectionSettingsError,), "kubeconfig files", 25),
    "kubelet-call": Target(peers.kubelet_call, (NotAMessage, ClaimError, KubeError), "gRPC calls of the kubelet", 25),
    "kubelet-checkpoint": Target(
        decoders.kubelet_checkpoint, (KubeletCheckpointCorrupted,), "the node agent's checkpoint"
    ),
    "labels": Target(decoders.labels, (DecodeError, ValueError), "label selectors in objects"),
    "list": Target(decoders.read_list, (DecodeError,), "lists of objects"),
    "metadata": Target(decoders.metadata, (MetadataError,), "files that tell a container of its devices"),
    "object": Target(decoders.take_in, (), "objects that the operator watches"),
    "patch": Target(peers.patches, (PatchRefused, ValueError), "patches"),
    "plugin-checkpoint": Target(decoders.plugin_checkpoint, (CheckpointCorrupted,), "the plugin's record of a claim"),
    "port-forward": Target(peers.port_forward, (SpdyError,), "frames of kubectl port-forward"),
    "prepare": Target(peers.prepare, (ValueError, ClaimError), "allocated claims, as a plugin reads them", 25),
    "probe-request": Target(peers.probe_request, (), "requests to the port for probes and metrics", 8),
    "protobuf": Target(peers.protobuf, (MalformedProtobuf,), "request bodies in protobuf"),
    "quantity": Target(decoders.quantity, (ValueError,), "quantities"),
    "settings": Target(decoders.settings, (), "the operator's settings file", 15),
    "simulate": Target(
        decoders.simulate, (), "files of objects of dra-operator simulate, and the decision on them", 15
    ),
    "simulate-cases": Target(decoders.simulate_cases, (), "files of cases of dra-operator simulate", 25),
    "simulated": Target(decoders.simulated, (SettingsError,), "the configuration file of the simulated driver", 40),
    "snapshot": Target(decoders.snapshot, (SnapshotError,), "snapshots of the development cluster", 4),
    "validation": Target(
        decoders.validate, (DecodeError, ConversionError, ValueError), "objects, as validation sees them"
    ),
    "version": Target(decoders.version, (ValueError,), "semantic versions"),
}
