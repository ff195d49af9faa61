"""Brute force: the allocation that an exhaustive search in the reference order finds (allocator.md).

Slow on purpose: every rule is written down as the specification says it, selectors are evaluated anew on
every device in every attempt, nothing is indexed, remembered or skipped. What the real allocator decides is
compared with this, and timed against it. It shares no code with the allocator.
"""

from allocator_oracle.pools import Fault, Gates, OutOfSteps, Problem, Taken
from allocator_oracle.search import SHARE, Answer, answer

from .search import Search

__all__ = ["SHARE", "Answer", "Fault", "Gates", "OutOfSteps", "Problem", "Search", "Taken", "answer"]
