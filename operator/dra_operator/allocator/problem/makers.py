"""Which ledgers a request falls under, in the order in which they are asked.

The order matters for a request for all devices: the first ledger that refuses a device decides how the attempt
continues. A device that an earlier request shares violates a constraint rather than being used up (section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .domain import Domain
from .ledger import Ledger
from .ledgers import Ledgers


def counters(ledgers: Ledgers, domain: Domain) -> Iterable[Ledger]:
    """The counters of the pools whose devices the request may take."""
    node = ledgers.node
    consuming = domain.usable & node.view.consuming
    if not consuming or node.exempt(domain) or not node.features.partitionable_devices:
        return ()
    return ledgers.counters(consuming)


def constraints(ledgers: Ledgers, domain: Domain) -> Iterable[Ledger]:
    """The constraints of its claim, also for admin access."""
    return ledgers.constraints(domain) if domain.alternative.constraints else ()


def shares(ledgers: Ledgers, domain: Domain) -> Iterable[Ledger]:
    """Consumable capacity, if the request may take a device that has any."""
    node = ledgers.node
    return (ledgers.shares,) if domain.usable & node.shareable and not node.exempt(domain) else ()


MAKERS: tuple[Callable[[Ledgers, Domain], Iterable[Ledger]], ...] = (counters, constraints, shares)
