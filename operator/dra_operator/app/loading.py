"""A cluster view filled by one LIST of every kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dra_api.meta import Object
from dra_kube import Api, NotServed, Resource

from .malformed import Quarantine
from .watched import REQUIRED, WATCHED

logger = logging.getLogger(__name__)


async def load_all(api: Api, load: Callable[[Iterable[Object]], None], quarantine: Quarantine) -> dict[Resource, str]:
    """Hand everything that exists to ``load``; the version in which the server has each kind.

    Kinds that the server does not have are left out: an optional one silently, others with a warning.
    """
    served: dict[Resource, str] = {}
    for resource, kind in WATCHED.items():
        try:
            served[resource] = await api.version_of(resource)
        except NotServed as error:
            if resource in REQUIRED:
                logger.warning("%s; claims cannot be handled until it does", error)
            continue
        listed = await api.list_as(resource, kind)
        for raw, fault in listed.malformed:
            quarantine.tell(resource, raw, fault)
        load(listed.items)
    return served
