"""What the kubelet of Kubernetes 1.36 is known to do wrong, each with a switch.

The node agent does the right thing by default. A switch makes it behave as the kubelet, so that a driver or a
controller can be tried against the defect it will meet.
"""

from __future__ import annotations

from enum import StrEnum


class KubeletDefect(StrEnum):
    """The names, with the rule of the specification that tells more."""

    DUPLICATED_DEVICES = "duplicated-devices"
    """A driver's answer is added to its earlier one, so retries give a container the same device twice (KM-15)."""

    UNNOTICED_REALLOCATION = "unnoticed-reallocation"
    """A claim that is allocated anew counts as prepared, so a pod may run with the earlier devices (KM-16)."""

    FOREIGN_UNPREPARE = "foreign-unprepare"
    """A pod unprepares a claim of the same name that another pod holds (KM-18)."""

    HEALTH_STREAM_FOR_ALL = "health-stream-for-all"
    """Drivers without a health service are asked for a stream again and again (KM-22)."""

    HEALTH_BY_DRIVER = "health-by-driver"
    """The end of one instance's stream forgets what all instances reported, and pods show it late (KM-26)."""

    ACCUMULATED_CDI_IDS = "accumulated-cdi-ids"
    """The pod-resources API lists with each device the CDI ids of the devices before it as well (KM-28)."""
