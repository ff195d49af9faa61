"""A reverse proxy between clients and an API server that loses, delays, refuses and repeats what passes through it.

::

    async with FaultProxy(connection(kubeconfig), seed=7) as proxy:
        proxy.write_kubeconfig(path, client="operator")
        with proxy.suffering(CutAfter(Target(verbs=("update",), resource="resourceclaims/status"), probability=0.3)):
            ...
        print(proxy.journal.writes())

``target`` says which requests a fault hits, ``fault`` and ``event_fault`` what happens to requests and to the events of
watches. ``dice`` decides whether it happens: from the seed, the request and how often it was made before, so that the
order in which requests of different objects arrive changes nothing. ``exchange`` is one request on its way, ``stream``
a watch, ``upstream`` the server behind, ``journal`` the record of everything. The server behind may be any: the
development cluster's or a real one.
"""

from .event_fault import BreakStream, DelayEvents, DoubleEvents, DropEvents, ErrorEvent, EventFault
from .fault import AnswerWrongly, CutAfter, CutBefore, Delay, DeliverLate, Fault, Hang, HangAfter, Refuse, Unserved
from .journal import Entry, Journal
from .proxy import FaultProxy
from .target import Target

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
