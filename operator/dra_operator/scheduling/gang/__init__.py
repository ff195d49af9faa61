"""Gangs: pods that get devices and nodes together, or not at all."""

from .joint_search import JointPlan
from .members import NOTHING_SAME, SameValues
from .planning import joint_plan

__all__ = [
    "NOTHING_SAME",
    "JointPlan",
    "SameValues",
    "joint_plan",
]
