"""``kubectl_complete-dra``: the choices that kubectl shows after TAB."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import yaml
from command import kubectl_for
from dra_api import yaml_text
from dra_kube import Api, Unreachable
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.completion import main
from supervised import LiveCluster
from waiting import until


async def complete(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The choices, and the directive at the end."""
    assert await asyncio.to_thread(main, words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.split()


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        ([], [*sorted(COMMANDS), ":4"]),
        ([""], [*sorted(COMMANDS), ":4"]),
        (["w"], ["who", "why", ":4"]),
        (["top", ""], ["classes", "drivers", "namespaces", "nodes", ":4"]),
        (["devices", "--state", "t"], ["tainted", "taken", ":4"]),
        (["devices", "--state", "u"], ["unusable", ":4"]),
        (["claims", "--p"], ["--pending", ":4"]),
        (["free", "-o", ""], ["custom-columns=", "json", "jsonpath=", "name", "wide", "yaml", ":4"]),
        (["x"], [":4"]),
        (["--"], ["--help", "--version", ":4"]),
        (["why", ""], ["claim", "pod", ":4"]),
        (["why", "p"], ["pod", ":4"]),
        (["why", "--con"], ["--context", "--controllers", ":4"]),
        (["why", "pod", "--kubeconfig", ""], [":0"]),
        (["why", "pod", "--kubeconfig=dev"], [":0"]),
        (["why", "--controllers", "auto", ""], ["claim", "pod", ":4"]),
        (["why", "--controllers=auto", ""], ["claim", "pod", ":4"]),
        (["why", "-nother", ""], ["claim", "pod", ":4"]),
        (["why", "-h", ""], ["claim", "pod", ":4"]),
        (["why", "--unknown", ""], ["claim", "pod", ":4"]),
        (["why", "pod", "name", ""], [":4"]),
        (["why", "node", ""], [":4"]),
        (["how", ""], [":4"]),
    ],
    ids=" ".join,
)
async def test_words_of_the_command_are_completed(
    words: list[str], choices: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await complete(capsys, *words) == choices


async def test_names_come_from_the_cluster(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish()
    for name in ("one", "other", "two"):
        await cluster.add_pod(name)
    given = ["why", "--kubeconfig", str(kubeconfig)]
    assert await complete(capsys, *given, "pod", "-n", "ns", "") == ["one", "other", "two", ":4"]
    assert await complete(capsys, *given, "--namespace=ns", "pod", "o") == ["one", "other", ":4"]
    assert await complete(capsys, *given, "--namespace=ns", "po", "o") == ["one", "other", ":4"]
    assert await complete(capsys, *given, "--namespace=ns", "pods/o") == ["pods/one", "pods/other", ":4"]
    assert await complete(capsys, *given, "pod", "") == [":4"]
    assert await complete(capsys, *given, "claim", "-n", "ns", "") == [":4"]
    assert await complete(capsys, *given, "-n", "n") == ["ns", ":4"]
    assert await complete(capsys, *given, "--namespace=n") == ["ns", ":4"]
    assert await complete(capsys, *given, "--context", "") == ["dra-devcluster", ":4"]
    choose_namespace(kubeconfig, "ns")
    assert await complete(capsys, *given, "pod", "o") == ["one", "other", ":4"]
    assert await complete(capsys, *given, "pod", "-n", "default", "") == [":4"]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert await complete(capsys, "why", "pod", "-n", "ns", "t") == ["two", ":4"]
    assert await complete(capsys, "why", "--context", "") == ["dra-devcluster", ":4"]


@pytest.mark.parametrize("content", [None, "contexts: [", "kind: Config"], ids=["missing", "no YAML", "no contexts"])
@pytest.mark.parametrize("wanted", [["pod", ""], ["-n", ""], ["--context", ""]], ids=" ".join)
async def test_without_a_usable_kubeconfig_no_names_are_offered_and_nothing_is_said(
    content: str | None, wanted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    assert await complete(capsys, "why", "--kubeconfig", str(file), *wanted) == [":4"]


@pytest.mark.parametrize("fault", [Unreachable("no answer"), TimeoutError()], ids=["unreachable", "too late"])
async def test_without_an_answer_no_names_are_offered_and_nothing_is_said(
    fault: Exception, kubeconfig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Api, "list_versions", fail)
    assert await complete(capsys, "why", "--kubeconfig", str(kubeconfig), "pod", "") == [":4"]


async def test_kubectl_finds_it(
    cluster: LiveCluster, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = kubectl_for(kubeconfig, tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    await cluster.furnish()
    await cluster.add_pod("one")
    assert lines(await kubectl("__complete", "dra", "why", "")) == ["claim", "pod", ":4"]

    async def completes() -> bool:
        """It gives up soon, so that no terminal hangs; on a busy machine the next attempt is quicker."""
        return lines(await kubectl("__complete", "dra", "why", "-n", "ns", "pod", "")) == ["one", ":4"]

    await until("the pod is offered", completes)


def choose_namespace(kubeconfig: Path, namespace: str) -> None:
    """As ``kubectl config set-context --current --namespace`` does."""
    config = yaml_text.load(kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    kubeconfig.write_text(yaml.safe_dump(config))


def lines(shown: str) -> list[str]:
    """What a shell reads: kubectl mixes in what it says for debugging."""
    return [line for line in shown.splitlines() if not line.startswith(("[Debug]", "Completion ended"))]
