"""What really happened to claims and pods, seen at the API server and checked in every state that it went through.

::

    async with Witness(api) as witness:
        ...
        await witness.caught_up()
        assert witness.findings() == []
        assert await witness.leaks() == []

``witness`` records every version of every claim and pod from watches of its own; ``history`` puts them in the order of
their resourceVersions, which one store counts for both kinds, and walks through the states; ``rules`` says what must
hold in each; ``objects`` reads claims and pods. Nothing of the operator is used: its memory may be what is wrong.
"""

from .history import Finding, History
from .witness import Witness

__all__ = ["Finding", "History", "Witness"]
