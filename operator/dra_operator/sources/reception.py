"""What Kopf brings: its events, and before it reads them, the bytes of its watches.

Most events are no news: the operator wrote the object itself and has it from the answer. These end here, before Kopf
spends its time on them (``deals_with``). The others are taken in here as well, by the function that Kopf's handlers
call: Kopf takes three turns of the event loop for each object that it has not heard of, so that behind a thousand new
pods another one would not be heard of for seconds, and a quarter of the processor time of a pod that comes and goes.

Large objects are taken in here as well. Each is decoded and cut to what is kept of it before the next one is: as dicts
they take ten times what their JSON does. Kopf gets what fails here.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from dra_api.codec import DecodeError, brief, convert, decode, decode_item
from dra_api.core import Pod
from dra_api.meta import Object, ObjectVersion
from dra_kube import PODS, RESOURCE_CLAIMS, Resource
from dra_kube.versions import from_served, listed_item

from dra_operator.cache import Source, revision, without_bulk
from dra_operator.controllers import Control

from .audit import Audit
from .cut import LARGE_BYTES, was_cut
from .kind_table import Kinds
from .known import News
from .malformed import MalformedObjects

logger = logging.getLogger(__name__)


class Reception:
    """For one cache. ``kopf_begins`` is called before each Kopf that feeds it."""

    def __init__(
        self,
        control: Control,
        malformed_objects: MalformedObjects,
        audit: Audit,
        kinds: Kinds,
        served: Mapping[Resource, str],
    ) -> None:
        self._control, self._malformed_objects, self._audit, self._kinds = control, malformed_objects, audit, kinds
        self._served = served
        self._heard_of: defaultdict[Resource, set[str]] = defaultdict(set)
        """UIDs of the objects of which Kopf has heard, and therefore keeps a record."""
        self.pod_seen: Callable[[Pod | None, Pod], None] = lambda _, __: None
        """Called with each pod that Kopf brings, and with the version that the cache has."""

    def kopf_begins(self) -> None:
        """A Kopf that begins has heard of no object."""
        self._heard_of.clear()

    def deals_with(self, resource: Resource, news: News) -> bool:
        """Whether an event is over before Kopf hears of it.

        It is over if the cache has that version or deletion already, and nothing waits for the watch to show it, and
        if it is taken in here. An event of that object that Kopf still has in line is older, and is dropped when its
        turn comes. But Kopf keeps a record of each object that it has heard of, so it hears of the end of that object
        as well.

        An unexpected error would end the watch. It is logged here, since Kopf's handler may drop the version as known.
        """
        heard_of, uid = self._heard_of[resource], news.version.uid
        if news.is_deleted and uid in heard_of:
            heard_of.remove(uid)
            return False
        try:
            if self._is_over(resource, news) or self._takes_in(resource, news):
                return True
        except Exception:
            version = news.version
            logger.exception(
                "%s %s of resourceVersion %s was not taken in whole",
                resource.kind,
                version.key,
                version.resource_version,
            )
        if not news.is_deleted:
            heard_of.add(uid)
        return False

    def _takes_in(self, resource: Resource, news: News) -> bool:
        """What cannot be decoded here is left to Kopf."""
        if revision(news.version.resource_version) is None:
            return False
        if len(news.content) > LARGE_BYTES and not news.is_deleted:
            self._take_in_large(resource, news)
            return True
        try:
            raw = msgspec.json.decode(news.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        self.received(resource, self._served[resource], "DELETED" if news.is_deleted else "MODIFIED", raw)
        return True

    def _take_in_large(self, resource: Resource, news: News) -> None:
        version = self._served[resource]
        reshape = None if version == resource.versions[0] else partial(listed_item, resource, version)
        content = bytes(news.content)
        try:
            obj = without_bulk(decode_item(self._kinds[resource], news.content, is_cut=True, reshape=reshape))
        except (DecodeError, ValueError, KeyError, TypeError) as error:
            self._malformed_objects.take(resource, brief(content), error)
            return
        self._take_in(resource, obj, None)

    def received(self, resource: Resource, version: str, event_type: str | None, raw: dict[str, Any]) -> None:
        """A watch event, or with type None an item of a list that Kopf made."""
        control, malformed_objects = self._control, self._malformed_objects
        if event_type == "DELETED":
            meta = raw["metadata"]
            name, namespace, uid = meta["name"], meta.get("namespace"), meta.get("uid")
            key = f"{namespace}/{name}" if namespace else name
            control.delete(Source.WATCH, self._kinds[resource], key, uid)
            if resource == RESOURCE_CLAIMS:
                malformed_objects.deleted(key, uid)
            return
        try:
            current = from_served(resource, version, raw)
            obj = convert(self._kinds[resource], current)
        except (DecodeError, ValueError, KeyError, TypeError) as error:
            malformed_objects.take(resource, raw, error)
            return
        self._take_in(resource, obj, None if was_cut(raw) else current)

    def _take_in(self, resource: Resource, obj: Object, raw: dict[str, Any] | None) -> None:
        control, malformed_objects = self._control, self._malformed_objects
        self._audit.saw(resource, obj.metadata.resource_version)
        if resource == RESOURCE_CLAIMS and malformed_objects.is_ahead_of(obj.key, obj.metadata.resource_version):
            return
        if isinstance(obj, Pod):
            self.pod_seen(control.cluster.pods.get(obj.key), obj)
        control.apply(Source.WATCH, obj, raw)
        if resource == RESOURCE_CLAIMS and obj.key in malformed_objects.partially_decoded:
            self._correct(obj)

    def _correct(self, claim: Object) -> None:
        """A good version of a malformed claim has come. It counts if it was taken in, perhaps without its bulk."""
        control, known = self._control, self._control.cluster.claims.get(claim.key)
        is_taken_in = known is not None and ObjectVersion.of(known.metadata) == ObjectVersion.of(claim.metadata)
        if is_taken_in and self._malformed_objects.corrected(claim.key, claim.metadata.uid):
            control.look_again()  # it may hold less than before

    def _is_over(self, resource: Resource, news: News) -> bool:
        version = news.version
        control, store = self._control, self._control.cluster.store_of(self._kinds[resource])
        if resource == RESOURCE_CLAIMS and version.key in self._malformed_objects.partially_decoded:
            return False
        if news.is_deleted:
            return version.uid in store.deleted
        if not store.knows(version.key, version.uid, version.resource_version):
            return resource == PODS and self._takes_binding(version, news.content)
        known = store.get(version.key)
        if known is not None and version == ObjectVersion.of(known.metadata):
            if control.awaits(known):
                return False
            control.apply(Source.STREAM, known)
        self._audit.saw(resource, version.resource_version)
        return True

    def _takes_binding(self, version: ObjectVersion, content: msgspec.Raw) -> bool:
        """Take in a pod that has its node from us: the answer to a binding, unlike others, does not hold the object."""
        control = self._control
        if version.uid not in control.cluster.bound:
            return False
        try:
            pod = decode(Pod, content)
        except DecodeError:
            return False  # Kopf hears of it, and the pod is found malformed
        if not pod.spec.node_name:
            return False
        self._audit.saw(PODS, version.resource_version)
        control.apply(Source.STREAM, pod)
        return True
