"""How urgently waiting pods are looked at: at once, or with many others in rounds (``WideKey``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_operator.cache.key import Key, Keys, WideKey

FEW_PODS: Final = 8
"""So many pods that name an object are looked at at once whenever it changes."""


def place(pods: Iterable[str]) -> Keys:
    """At once: the change is about the pods themselves."""
    return tuple(Key("placement", pod) for pod in pods)


def place_widely(pods: Iterable[str]) -> Keys:
    """In rounds: the change is one of the cluster, and may help any number of pods."""
    return tuple(WideKey("placement", pod) for pod in pods)


def place_users(pods: Iterable[str]) -> Keys:
    """Pods that name the object that changed: in rounds if they are many, since a tenant may change it all the time."""
    users = list(pods)
    return place(users) if len(users) <= FEW_PODS else place_widely(users)
