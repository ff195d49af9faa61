"""What slices publish, and who holds what: pools, devices, counters, capacity, taints, and the claims that have them.

Examples:
    >>> from dra_ledger import Ledger
    >>> ledger = Ledger.of(b'{"kind": "List", "items": []}')  # what kubectl get -o json says, for one
    >>> ledger.devices(), ledger.pools(), ledger.tally("node")
    ([], [], [])

Pure: no I/O, no clock, no client. It stands below the operator and the commands, and imports ``dra_api`` and
``dra_cel`` only. These names are its public interface; the operator and the commands use the files as well. In this
package, a section without a page is a section of allocator.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .entries import CounterEntry, DeviceEntry, Holder, Left, PoolEntry, Tally
    from .ledger import Ledger

__all__ = ["CounterEntry", "DeviceEntry", "Holder", "Ledger", "Left", "PoolEntry", "Tally"]


def __getattr__(name: str) -> Any:
    """Load the ledger when it is asked for (PEP 562): the operator uses other files of the package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import entries, ledger

    return getattr(ledger if name == "Ledger" else entries, name)
