"""Takes in what lists and watches bring of the kinds that the operator follows.

An echo costs no more than a look at its metadata: the operator wrote that version itself and has it from the answer, or
a list had it. Other objects are decoded one at a time, straight into the structs that the cache keeps; large ones lose
their unread parts before the next one is looked at. Malformed objects are kept apart (``malformed``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from dra_api.codec import brief
from dra_api.core import Pod
from dra_api.meta import Object, ObjectVersion
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Change

from dra_operator.cache import Source, without_bulk
from dra_operator.controllers import Control

from .audit import Audit
from .kind_table import Kinds
from .malformed import MalformedObjects

logger = logging.getLogger(__name__)

LARGE_BYTES: Final = 64 << 10
"""Bytes of JSON from which an object is kept without its bulk."""


class Intake:
    """For one cache. ``take`` is what each handler does with a change of its kind."""

    def __init__(self, control: Control, malformed_objects: MalformedObjects, audit: Audit, kinds: Kinds) -> None:
        self._control, self._malformed_objects, self._audit, self._kinds = control, malformed_objects, audit, kinds
        self.pod_seen: Callable[[Pod | None, Pod], None] = lambda _, __: None
        """Called with each new version of a pod, and with the version that the cache has."""

    def take(self, change: Change) -> None:
        """Put the change into the cache, unless the cache has it already."""
        resource, version = change.resource, change.version
        control, kind = self._control, self._kinds[resource]
        source = Source.LIST if change.event in ("LISTED", "MISSED") else Source.WATCH
        if change.event == "MISSED":
            logger.info("%s %s was deleted without an event", resource.kind, version.key)
        if change.is_end:
            control.delete(source, kind, version.key, version.uid or None)
            if resource == RESOURCE_CLAIMS:
                self._malformed_objects.deleted(version.key, version.uid or None)
            return
        if self._is_known(change, source):
            return
        try:
            obj = change.decoded(kind)
            is_large = len(change.content) > LARGE_BYTES
            raw = None if is_large else _kept(change, obj)
        except (ValueError, KeyError, TypeError) as error:
            self._malformed_objects.take(resource, brief(bytes(change.content)), error)
            return
        if is_large:
            obj = without_bulk(obj)
        self._audit.saw(resource, version.resource_version)
        if isinstance(obj, Pod):
            self.pod_seen(control.cluster.pods.get(obj.key), obj)
        control.apply(source, obj, raw)
        if resource == RESOURCE_CLAIMS and obj.key in self._malformed_objects.partially_decoded:
            self._correct(obj)

    def _is_known(self, change: Change, source: Source) -> bool:
        """Return whether the cache has this version, a newer one, or the end of the object."""
        resource, version = change.resource, change.version
        if resource == RESOURCE_CLAIMS and version.key in self._malformed_objects.partially_decoded:
            return self._malformed_objects.is_ahead_of(version.key, version.resource_version)
        store = self._control.cluster.store_of(self._kinds[resource])
        if not store.knows(version.key, version.uid, version.resource_version):
            return False
        known = store.get(version.key)
        if known is not None and version == ObjectVersion.of(known.metadata):
            self._control.apply(source, known)  # others see it by now: a pod may wait for that
        self._audit.saw(resource, version.resource_version)
        return True

    def _correct(self, claim: Object) -> None:
        """A good version of a malformed claim has come. It counts if it was taken in, perhaps without its bulk."""
        control, known = self._control, self._control.cluster.claims.get(claim.key)
        is_taken_in = known is not None and ObjectVersion.of(known.metadata) == ObjectVersion.of(claim.metadata)
        if is_taken_in and self._malformed_objects.corrected(claim.key, claim.metadata.uid):
            control.look_again()  # it may hold less than before


def _kept(change: Change, obj: Object) -> dict[str, Any] | None:
    """Return the object as the server sent it if the operator may soon write it as a whole, with its changes.

    It is a second decoding, so a pod whose claims are recorded already has an empty one: only that it came counts.
    """
    match obj:
        case Pod():
            if any(entry.resource_claim_template_name is not None for entry in obj.spec.resource_claims or ()):
                return change.object() if obj.status.resource_claim_statuses is None else {}
        case ResourceClaim() if obj.metadata.deletion_timestamp is not None:
            return change.object()
    return None
