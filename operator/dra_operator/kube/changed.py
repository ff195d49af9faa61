"""The object that a write is about is not what the plan was made for any more, because another writer changed it.

::

    ObjectChanged
    ├── ClaimChanged
    │   └── ClaimFull        it took other consumers, and takes no more
    ├── VolumeChanged        a volume, or a claim to one
    └── PodChanged
"""


class ObjectChanged(Exception):
    """The plan no longer applies; nothing was written."""


class ClaimChanged(ObjectChanged):
    """Of a ResourceClaim."""


class ClaimFull(ClaimChanged):
    """The claim took other consumers in the meantime, and is full."""


class VolumeChanged(ObjectChanged):
    """Of a PersistentVolume or a PersistentVolumeClaim."""


class PodChanged(ObjectChanged):
    """Of a pod."""
