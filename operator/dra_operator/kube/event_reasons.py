"""The catalogue of event reasons: every Event that the operator writes has one of these.

``docs/how-it-works.md`` lists them for people; a test keeps the two alike.
"""

from __future__ import annotations

from enum import Enum


class EventReason(Enum):
    """Type, reason and meaning; reasons that kube-scheduler or the claim controller has are theirs."""

    SCHEDULED = (
        "Normal",
        "Scheduled",
        "The pod has its node; written ten times a second at most, since the pod shows it.",
    )
    BINDING_CONDITIONS_PENDING = (
        "Normal",
        "BindingConditionsPending",
        "The pod has its devices and waits for their binding conditions.",
    )
    GATE_REMOVED = (
        "Normal",
        "SchedulingGateRemoved",
        "The pod has its devices, and its scheduler may place it.",
    )
    VOLUMES_PENDING = (
        "Normal",
        "VolumeBindingPending",
        "The pod has its node and waits for its PersistentVolumeClaims to be bound there.",
    )
    FAILED_SCHEDULING = (
        "Warning",
        "FailedScheduling",
        "The pod waits, and why; written when the condition `PodScheduled` changes.",
    )
    CLAIM_ALLOCATED = (
        "Normal",
        "ClaimAllocated",
        "An immediate claim has its devices.",
    )
    FAILED_ALLOCATION = (
        "Warning",
        "FailedAllocation",
        "An immediate claim waits for devices, and why; or the annotation of a claim is wrong.",
    )
    CLAIM_PARKED = (
        "Warning",
        "ResourceClaimParked",
        "Another scheduler gave a device of the claim away as well; the claim keeps it, and no pod runs with it.",
    )
    FAILED_CLAIM_CREATION = (
        "Warning",
        "FailedResourceClaimCreation",
        "The operator cannot make a claim of the pod from its template, or cannot record its name.",
    )

    PREEMPTING = (
        "Normal",
        "Preempting",
        "The pod fits nowhere; pods of lower priority are ended for it, with `--preemption`.",
    )
    PREEMPTED = (
        "Normal",
        "Preempted",
        "The pod is ended, because one of higher priority needs its devices or its room on the node.",
    )
    DEVICE_TAINT_EVICTION = (
        "Normal",
        "DeviceTaintManagerEviction",
        "`Marking for deletion`: the pod is deleted, because a device of it has a taint with the effect NoExecute; "
        "`Cancelling deletion`: it was due later, and may stay.",
    )

    def __init__(self, kind: str, reason: str, meaning: str) -> None:
        self.kind, self.reason, self.meaning = kind, reason, meaning
