"""Checks before publishing whether an API server of Kubernetes 1.36 accepts these pools.

The publisher does not check, because a newer server may allow more. A driver whose pools come from a configuration file
checks when it starts, where an error still reaches the administrator. Spec: plugin-helper.md 4.3
and 4.7.
"""

from __future__ import annotations

from dra_api.meta import ObjectMeta
from dra_api.resource import ResourceSlice
from dra_api.validation import summary, validate_resource_slice

from dra_kubeletplugin.errors import PoolInvalid

from .check import checked
from .model import Owner, Resources
from .plan import Publication, plan_pool


def check_resources(resources: Resources, *, driver: str, node_name: str = "") -> None:
    """Raise PoolInvalid if a slice would be refused; the message names the pool, the field and the rule."""
    owner = Owner.node(node_name) if node_name else None
    for name, pool in resources.items():
        publication = Publication(driver, name, owner, node_name)
        for write in plan_pool(publication, checked(name, pool), ()).create:
            candidate = ResourceSlice(metadata=ObjectMeta(name="candidate"), spec=write.spec)
            if faults := validate_resource_slice(candidate):
                raise PoolInvalid(f'pool "{name}", slice #{write.index}: {summary(faults)}')
