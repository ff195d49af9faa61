"""How a check ends if it does not pass::

CheckEnd
├── Finding      the driver did something that it must not do; the text says what was expected
├── NotJudged    the check applies, and the driver lacks what it needs, such as devices; the text has the remedy
└── Skipped      the check does not apply to this driver, or not to this way of running it; the text says why
BenchError       the bench cannot be set up: no API server, no driver, unusable settings
"""

from __future__ import annotations

CHECK_SECONDS = 600.0
"""A check that takes longer ends with a finding: the slowest waits three times for slices that others deleted."""


class CheckEnd(Exception):
    """A check ended early."""


class Finding(CheckEnd):
    """The driver is at fault."""


class NotJudged(CheckEnd):
    """Whether the driver is at fault cannot be told."""


class Skipped(CheckEnd):
    """The check does not apply."""


class BenchError(Exception):
    """The bench cannot be set up; the text has cause and remedy."""
