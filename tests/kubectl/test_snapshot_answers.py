"""Answers from a snapshot are those of the cluster: whatever a decision reads is in it."""

from __future__ import annotations

import ast
import copy
import importlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dra_api
import dra_operator
import pytest
from dra_api.core import Pod
from dra_operator.commands.object_files import KINDS, decoded
from dra_operator.kubectl import snapshot
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.sanitized import READ_ANNOTATIONS, without_secrets
from dra_operator.kubectl.snapshot import spooling
from dra_operator.scheduling import state
from histories import history
from histories.stage import Stage

Obj = dict[str, Any]
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
WANTED: Final = """
{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: wanted, namespace: ns},
 spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: wanted, namespace: ns}, spec: {schedulerName: dra-scheduler,
 containers: [{name: main}], resourceClaims: [{name: gpu, resourceClaimTemplateName: wanted}]}}
"""


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """What decides: everything of the operator and the API types that is not about writing or printing."""
    for package in (dra_operator, dra_api):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            name = ".".join((package.__name__, *path.relative_to(root).with_suffix("").parts))
            yield name.removesuffix(".__init__"), ast.parse(path.read_text())


def _read_keys(module: str, tree: ast.Module) -> Iterator[str]:
    """The constants by which the module looks into annotations or labels: ``.get(KEY)``, ``KEY in``, ``[KEY]``."""
    for node in ast.walk(tree):
        sides: list[tuple[ast.expr, ast.expr]] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            sides = [(node.func.value, node.args[0])]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            sides = [(node.comparators[0], node.left)]
        if isinstance(node, ast.Subscript):
            sides = [(node.value, node.slice)]
        for where, key in sides:
            if "annotations" in ast.unparse(where):
                yield from _value(module, key)


def _value(module: str, key: ast.expr) -> Iterator[str]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        yield key.value
    elif isinstance(key, ast.Name):
        found = getattr(importlib.import_module(module), key.id, None)
        if isinstance(found, str):
            yield found


def test_every_annotation_that_code_reads_is_in_a_snapshot() -> None:
    read = {key for module, tree in _modules() for key in _read_keys(module, tree)}
    ours = {getattr(state, name) for name in dir(state) if isinstance(getattr(state, name), str)}
    read |= {key for key in ours if key.startswith("dra.kopf.dev/gang")}
    assert len(read) > 10
    assert read - READ_ANNOTATIONS == set()


def test_labels_and_read_annotations_stay() -> None:
    labels = {"a": "b", "kueue.x-k8s.io/pod-group-name": "g"}
    said = dict.fromkeys(READ_ANNOTATIONS, "x")
    meta = {"name": "p", "labels": labels, "annotations": {**said, "secret": "s"}}
    pod = decoded("test", {"apiVersion": "v1", "kind": "Pod", "metadata": meta})
    assert pod is not None
    (kept,) = without_secrets([pod])
    assert (kept.metadata.labels, kept.metadata.annotations) == (labels, said)


def clusters(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[Observed]:
    """The cluster of a history: once while things happen, and once they have come to rest."""
    found: list[list[Obj]] = []

    def taken(stage: Stage) -> None:
        kinds = {resource: resource for resource, _ in KINDS.values()}
        found.append(
            [
                copy.deepcopy({**obj, "apiVersion": resource.api_version(), "kind": resource.kind})
                for (resource, _, _), obj in stage.server.objects.items()
                if resource in kinds
            ]
        )

    def before(act: Callable[[Stage], None]) -> Callable[[Stage], None]:
        def taken_first(stage: Stage) -> None:
            taken(stage)
            act(stage)

        return taken_first

    monkeypatch.setattr(Stage, "clear_up", before(Stage.clear_up))
    monkeypatch.setattr(history, "delete_everything", before(history.delete_everything))
    history.play(seed)
    made = [[it for obj in objects if (it := decoded("history", obj)) is not None] for objects in found]
    return [Observed(objects, NOW, namespace="ns", is_whole=True) for objects in made]


@pytest.mark.parametrize("seed", [1, 3, 5, 7, 13, 17, 19])
def test_answers_from_a_snapshot_are_those_of_the_cluster(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "wanted.yaml"
    wanted.write_text(WANTED)
    load = snapshot.load
    for number, seen in enumerate(clusters(seed, monkeypatch)):
        file = tmp_path / f"{number}.json"
        with spooling() as spool:
            for obj in seen.objects:
                spool.kept(obj)
            file.write_text("\n".join(spool.lines(snapshot.header_of(seen))))
        monkeypatch.setattr(snapshot, "load", lambda path, *_, seen=seen: seen if path == "live" else load(path))
        waiting = [pod for pod in seen.every(Pod) if not pod.spec.node_name]
        asked = [["why", "-A"], ["free"], ["fit", "-f", str(wanted)], ["fit", "-f", str(wanted), "--max"]]
        asked += [["why", f"pod/{pod.metadata.name}"] for pod in waiting[:4]]
        asked += [["defrag", "--for", f"pod/{pod.metadata.name}"] for pod in waiting[:2]]
        asked += [["defrag", "-f", str(wanted)]]
        for words in asked:
            said = []
            for source in ("live", str(file)):
                code = main([*words, "-n", "ns", "--from", source] if "-A" not in words else [*words, "--from", source])
                out = capsys.readouterr()
                said.append((code, out.out, out.err))
            assert said[0] == said[1], words
            assert said[0][0] in (0, 3), said[0]


def test_a_gang_that_lacks_pods_lacks_them_in_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members: list[Obj] = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}]
    for number in range(3):
        said = {"dra.kopf.dev/gang": "train", "dra.kopf.dev/gang-size": "4"}
        meta = {"name": f"p{number}", "namespace": "ns", "uid": f"u{number}", "annotations": said}
        spec: Obj = {"schedulerName": "dra-scheduler", "containers": [{"name": "main"}]}
        members.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    source, copied = tmp_path / "source.json", tmp_path / "copied.json"
    source.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": members}))
    assert main(["snapshot", str(copied), "--from", str(source)]) == 0
    capsys.readouterr()
    assert main(["why", "pod/p0", "-n", "ns", "--from", str(copied)]) == 3
    assert "1 more pod of gang train, which needs 4: 3 are there" in capsys.readouterr().out


HELD: Final = """
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 8, pods: 9}}}
---
{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: drv, nodeName: n1,
 pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: d0}, {name: d1}]}}
"""
HOLDER: Final = """
---
{apiVersion: v1, kind: Pod, metadata: {name: p%(it)s, namespace: ns, uid: up%(it)s}, status: {phase: Running},
 spec: {nodeName: n1, resourceClaims: [{name: g, resourceClaimName: c%(it)s}],
 containers: [{name: main, resources: {requests: {cpu: 2}}}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c%(it)s, namespace: ns, uid: uc%(it)s},
 spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}, status: {
 reservedFor: [{resource: pods, name: p%(it)s, uid: up%(it)s}], allocation: {devices: {results: [
 {request: gpu, driver: drv, pool: n1, device: d%(it)s}]}}}}
"""


@pytest.mark.parametrize("words", [["why", "pod/wanted"], ["drain", "n1"], ["free", "--class", "gpu"], ["doctor"]])
def test_objects_that_were_written_by_hand_need_no_uid(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, answers = HELD + "".join(HOLDER % {"it": it} for it in (0, 1)) + f"---{WANTED}", []
    for number, content in enumerate((text, re.sub(r", uid: \w+", "", text))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(content)
        code = main([*words, "-n", "ns", "--from", str(path)])
        answers.append((code, capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert "delete it (frees drv/n1/d0)" in answers[1][1] or words[0] != "why"
