"""The states of a container: its runs, as the runtime keeps them on disk, or why it does not run."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class ContainerRecord(msgspec.Struct, frozen=True):
    """One run of a container; ``exit_code`` None while it runs. Times are RFC 3339, ``attempt`` counts from 0."""

    id: str
    attempt: int
    pid: int
    ticks: int
    started_at: str
    finished_at: str | None = None
    exit_code: int | None = None


class ContainerState(msgspec.Struct, frozen=True):
    """The latest run of a container and the one before."""

    current: ContainerRecord
    previous: ContainerRecord | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run."""

    reason: str
    message: str = ""
