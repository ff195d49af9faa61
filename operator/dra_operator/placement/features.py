"""Features that a pod needs of its node, which declares those it has (kube-scheduler's NodeDeclaredFeatures)."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Pod


def needed_features(pod: Pod) -> Iterator[str]:
    """What ``node.status.declaredFeatures`` has to name for the pod to run there."""
    containers = (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))
    rules = (rule for container in containers for rule in container.restart_policy_rules or ())
    if any(rule.action == "RestartAllContainers" for rule in rules):
        yield "RestartAllContainersOnContainerExits"
    if pod.spec.host_network and pod.spec.host_users is False:
        yield "UserNamespacesHostNetworkSupport"
