"""Looking after nodes: taints, cordon, drain."""

from __future__ import annotations

from collections.abc import Callable

from command import BlockingKubectl


def test_taints_come_and_go(kubectl: BlockingKubectl, node: str) -> None:
    assert kubectl("taint", "node", node, "gpu=broken:NoSchedule").strip() == f"node/{node} tainted"
    assert kubectl.read("node", node)["spec"]["taints"] == [{"effect": "NoSchedule", "key": "gpu", "value": "broken"}]
    assert kubectl("taint", "node", node, "gpu-").strip() == f"node/{node} untainted"
    assert "taints" not in kubectl.read("node", node)["spec"]


def test_a_cordoned_node_says_so(kubectl: BlockingKubectl, node: str) -> None:
    assert kubectl("cordon", node).strip() == f"node/{node} cordoned"
    assert kubectl.rows("node", node)[0][1].endswith(",SchedulingDisabled")
    assert kubectl("uncordon", node).strip() == f"node/{node} uncordoned"
    assert "unschedulable" not in kubectl.read("node", node)["spec"]


def test_drain_evicts_the_pods_of_the_node(kubectl: BlockingKubectl, pod: Callable[..., str], node: str) -> None:
    pod("here", nodeName=node, terminationGracePeriodSeconds=0)
    pod("elsewhere")
    said = kubectl("drain", node, "--force", "--timeout=20s")
    assert f"pod/here evicted\nnode/{node} drained" in said
    assert [row[0] for row in kubectl.rows("pods")] == ["elsewhere"]


def test_describe_a_node_lists_its_pods(kubectl: BlockingKubectl, pod: Callable[..., str], node: str) -> None:
    pod("here", nodeName=node)
    text = kubectl("describe", "node", node)
    assert "here" in text.split("Non-terminated Pods:")[1]
