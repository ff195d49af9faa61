"""Validating admission policies: expressions in CEL that decide whether a write is accepted.

::

    policies = Policies(registry)
    policies.check(request)       # raises the refusal that the first policy asks for

`matching` says which requests a policy is about, `policy` evaluates one policy, and `policies` asks all that are bound.
Webhooks and mutating policies have no effect. Audit annotations are accepted, but there is no audit log to hold them.
"""

from dra_devcluster.apiserver.admission.policy import AdmissionRequest, GroupVersionKind, Operation

from .policies import Policies

__all__ = ["AdmissionRequest", "GroupVersionKind", "Operation", "Policies"]
