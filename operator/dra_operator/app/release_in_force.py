"""The release of Kubernetes by which the operator goes, and what follows from it: features, and the kinds to watch.

It is decided once in the life of the process, so that nothing changes to and fro while the API servers of a cluster are
upgraded one after the other. What they answer later is listened to: the lowest release of the last minutes is the one
that all of them have, and if that is not the one in force, the log and ``/readyz?verbose`` say so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from dra_api.releases.gates import defaults_of
from dra_api.releases.release import NEWEST, Release, release_of

from dra_operator.allocator import Features
from dra_operator.gates import features_of
from dra_operator.sources.kind_table import Kinds
from dra_operator.sources.kinds import watched_kinds

logger = logging.getLogger(__name__)

AGREED_SECONDS: Final = 600.0
"""So long an answer counts: as long as it takes until each API server behind one address has answered some look."""


class CommonRelease:
    """The release that all API servers of a cluster have: the lowest that one of them answered lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_at: dict[Release, float] = {}

    def heard(self, version: Mapping[str, object]) -> Release:
        """The common release, now that an API server has answered so at ``/version``."""
        now = self._clock()
        self._heard_at[release_of(version)[0]] = now
        return min(release for release, at in self._heard_at.items() if now - at < AGREED_SECONDS)


class ReleaseInForce:
    """``gates`` are changes to the release's feature gates; without a ``release`` that of the API server counts.

    ``preemption``: whether what it needs is watched.
    """

    def __init__(
        self,
        gates: Mapping[str, bool],
        release: Release | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        preemption: bool = False,
    ) -> None:
        self._gates = gates
        self._chosen, self._preemption = release, preemption
        self._is_decided = False
        self._common = CommonRelease(clock)
        self.release = release or NEWEST
        self.features = Features()
        self.kinds: Kinds = watched_kinds(self.features, preemption=preemption)
        self.note = ""
        """What people should know about it."""
        self._note_at_start = ""

    def decide(self, version: Mapping[str, object]) -> None:
        """Go by what the API server says at ``/version``, the first time. Raises GateError."""
        if self._is_decided:
            return
        if self._chosen is not None:
            release, unusual, defaults = self._chosen, "", {}
        else:
            (release, unusual), defaults = release_of(version), defaults_of(version)
        self.features = features_of({**defaults, **self._gates}, release)
        self.kinds = watched_kinds(self.features, preemption=self._preemption)
        self.release, self._is_decided = release, True
        self.note = self._note_at_start = unusual or f"as Kubernetes {release}"
        logger.log(logging.WARNING if unusual else logging.INFO, "%s", unusual or f"deciding as Kubernetes {release}")

    def heard(self, version: Mapping[str, object]) -> Release:
        """The release that all API servers have, now that one has answered so at ``/version``."""
        common = self._common.heard(version)
        if self._chosen is None and self._is_decided:
            note = self._note_at_start if common == self.release else self._note_beside(common)
            if note != self.note and note != self._note_at_start:
                logger.warning("%s", note)
            self.note = note
        return common

    def _note_beside(self, common: Release) -> str:
        if common > self.release:
            news = f"all API servers are Kubernetes {common} now; restart the operator to decide as they do"
        else:
            news = f"an API server is Kubernetes {common}; restart the operator once all of them have the same release"
        return f"as Kubernetes {self.release}, but {news}"
