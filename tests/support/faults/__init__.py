"""A reverse proxy between clients and an API server that loses, delays, refuses and repeats what passes through it.

::

    async with FaultProxy(connection(kubeconfig), seed=7) as proxy:
        proxy.write_kubeconfig(path, client="operator")
        with proxy.suffering(CutAfter(Target(verbs=("update",), resource="resourceclaims/status"), probability=0.3)):
            ...
        print(proxy.journal.writes())

``effects`` has the faults: a target says which requests they hit, and a dice decides whether it happens, from the seed,
the request and how often it was made before, so that the order in which requests of different objects arrive changes
nothing. ``passage`` is one request on its way, or a watch, and the record of everything that passed. The server behind
may be any: the development cluster's or a real one.
"""

from faults.effects import (
    AnswerWrongly,
    BreakStream,
    CutAfter,
    CutBefore,
    Delay,
    DelayEvents,
    DeliverLate,
    DoubleEvents,
    DropEvents,
    ErrorEvent,
    EventFault,
    Fault,
    Hang,
    HangAfter,
    Refuse,
    Target,
    Unserved,
)
from faults.proxy import Entry, Journal

from .proxy import FaultProxy

__all__ = [
    "AnswerWrongly",
    "BreakStream",
    "CutAfter",
    "CutBefore",
    "Delay",
    "DelayEvents",
    "DeliverLate",
    "DoubleEvents",
    "DropEvents",
    "Entry",
    "ErrorEvent",
    "EventFault",
    "Fault",
    "FaultProxy",
    "Hang",
    "HangAfter",
    "Journal",
    "Refuse",
    "Target",
    "Unserved",
]
