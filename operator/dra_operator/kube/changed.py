"""The object that a write is about is not what the plan was made for any more, because another writer changed it.

::

    ObjectChanged
    ├── ClaimChanged
    │   ├── ClaimFull        it took other consumers, and takes no more
    │   └── ClaimStripped    it was written with a finalizer, and came back without
    ├── VolumeChanged        a volume, or a claim to one
    ├── PodGroupChanged
    └── PodChanged
"""


class ObjectChanged(Exception):
    """The plan no longer applies; nothing was written."""


class ClaimChanged(ObjectChanged):
    """Of a ResourceClaim."""


class ClaimFull(ClaimChanged):
    """The claim took other consumers in the meantime, and is full."""


class ClaimStripped(ClaimChanged):
    """A webhook or an admission policy took the finalizer off, and will do so again."""


class VolumeChanged(ObjectChanged):
    """Of a PersistentVolume or a PersistentVolumeClaim."""


class PodGroupChanged(ObjectChanged):
    """Of a PodGroup."""


class PodChanged(ObjectChanged):
    """Of a pod."""
