"""What brings an object, or the news of its end, into the cache."""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """All of them, each with the file that reads it. Every one may be late, and may repeat what another has brought."""

    LIST = "list"
    """The list of each kind at the start, and of kinds that are served later: ``sources.initial_list``."""
    WATCH = "watch"
    """An event, or an item of a list, that Kopf hands to its handlers: ``sources.handlers``, ``sources.reception``."""
    STREAM = "stream"
    """The bytes of Kopf's watch, before Kopf reads them: ``sources.tracing``, ``sources.reception``."""
    ANSWER = "answer"
    """The server's answer to a write of the operator: ``kube``."""
    AUDIT = "audit"
    """A list of metadata, which shows what is gone: ``sources.audit``."""
    CONFLICT_CHECK = "conflict check"
    """The list of claims before a pod is bound to devices that another scheduler gives away: ``sources.last_look``."""
