"""``dra-operator simulate --compare-strategies``: what each strategy gives away of a cluster, and which one to set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_operator.cli import main
from trace_objects import nodes_with_devices as nodes
from trace_objects import template_for_any as template

Json = dict[str, Any]


def pod(name: str, second: int, template: str, node: str = "") -> Json:
    """A pod that was made in this second, and has its node already."""
    meta = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": f"2030-01-01T00:00:{second:02}Z"}
    claims = [{"name": "d", "resourceClaimTemplateName": template}]
    spec = {"containers": [{"name": "c", "resources": {"claims": [{"name": "d"}]}}], "resourceClaims": claims}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | ({"nodeName": node} if node else {})}


def said(capsys: pytest.CaptureFixture[str], folder: Path, *documents: Json) -> list[str]:
    path = folder / "snapshot.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert main(["simulate", "-f", str(path), "--compare-strategies"]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_strategy_that_gives_away_most_is_advised(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Emptiest first has a small pod on each node, and no room for a large one. Where the pods are now says nothing."""
    pods = [pod("large", 3, "four"), pod("a", 1, "one", "n1"), pod("b", 2, "one", "n1")]
    documents = [*nodes("n1", "n2", devices=4), template("one"), template("four", count=4), *pods]
    *lines, advice = said(capsys, tmp_path, *documents)
    assert [line.split() for line in lines] == [
        ["STRATEGY", "PODS", "PLACED", "OF", "DEVICES", "OF", "THE", "CLUSTER"],
        ["first-fit", "4", "6", "4.00", "50.00", "%"],
        ["emptiest", "4", "6", "4.00", "50.00", "%"],
        ["best-fit", "5", "6", "8.00", "100.00", "%"],
        ["packing", "5", "6", "8.00", "100.00", "%"],
        ["fgd", "5", "6", "8.00", "100.00", "%"],
        ["frag", "5", "6", "8.00", "100.00", "%"],
        [],
    ]
    best = "run the operator with --placement-strategy best-fit: it gives away most devices, 100 % more than first-fit"
    assert advice == best


def test_a_share_counts_as_a_part_of_its_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shared: Json = {"extra": {"allowMultipleAllocations": True}, "capacity": {"memory": "80Gi"}}
    documents = [template("half", capacity={"requests": {"memory": "40Gi"}}), pod("a", 1, "half")]
    lines = said(capsys, tmp_path, *nodes("n1", devices=1, **shared), *documents)
    assert lines[1].split() == ["first-fit", "2", "3", "1.00", "100.00", "%"]
    assert lines[-1] == "no strategy gives away 1 % more devices than first-fit: leave the setting as it is"


def test_files_without_such_pods_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(nodes("n1", devices=1)))
    assert main(["simulate", "-f", str(tmp_path / "nodes.yaml"), "--compare-strategies"]) == 2
    assert "no pod with claims in the files" in capsys.readouterr().err
