"""The commands on the pages do what the pages say: typed in one after the other, in an empty folder.

Every command of every page is run by a story here or by another test or by CI, or stands in ``NOT_RUN`` with the
reason.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dra_devcluster.agent.processes.process import why_impossible
from pages import BY_NAME, PAGES, ROOT, Line
from rounds import LONG


@dataclass(frozen=True)
class Story:
    """Blocks of pages (page, number of the block), in order, and what a reader has or does beside them.

    ``words`` stand for what a reader has to fill in, or sees instead; ``before`` is done before the block of that
    number in the story; ``refused`` are commands that must fail, as the page says; ``check`` must succeed in the end.
    """

    blocks: tuple[tuple[str, int], ...]
    check: str
    words: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[int, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    needs_kubectl: bool = True
    needs_mounts: bool = False

    def lines(self) -> Iterator[tuple[int, Line]]:
        """Each line that is run, with the number of its block in the story."""
        for number, (page, block) in enumerate(self.blocks):
            yield from ((number, line) for line in BY_NAME[page].console()[block] if reason(page, line) is None)

    def filled(self, text: str) -> str:
        """A text of a page with the words of the story."""
        for word, instead in self.words.items():
            text = text.replace(word, instead)
        return text


RUNNING = "kubectl wait pod --all --for=jsonpath='{.status.phase}'=Running --timeout=60s"
STORIES = {
    "a cluster to play with": Story(
        (
            ("README.md", 1),
            ("README.md", 2),
            ("README.md", 3),
            ("docs/simulate.md", 0),
            ("docs/operator.md", 0),
            ("docs/kubectl-dra.md", 0),
            ("docs/ledger.md", 0),
            ("docs/ledger.md", 1),
            ("docs/gangs.md", 0),
        ),
        check="! grep -q Traceback servers.log; grep -q dra_device_info dra.prom; "
        "kubectl wait pod gang-1 gang-2 --for=condition=Ready --timeout=60s",
        words={
            "kubectl dra why pod inline-claim": "kubectl wait pod inline-claim --for=condition=PodScheduled "
            "--timeout=60s; kubectl dra why pod inline-claim",
            "pod/train -n ml": "pod/inline-claim -n default",
            "why pod NAME -n NAMESPACE": "why pod inline-claim -n default",
            "FILE": "dev.kubeconfig",
            "8080": "0",  # another process of this machine may have that port
        },
        before={
            3: f"{RUNNING}; kubectl get nodes,resourceslices,deviceclasses -o yaml > cluster.yaml; "
            "cp manifests/examples/inline-claim.yaml pod.yaml",
            8: "kubectl delete -f manifests/examples/ --timeout=60s",  # they hold all devices
        },
    ),
    "a driver in ten minutes": Story(
        tuple(("docs/driver-author.md", number) for number in range(3)),
        check="kubectl get pods,resourceslices --all-namespaces",
        # All of them take a minute of an idle machine.
        words={"dra-driver-test --quick": "dra-driver-test --quick --check 'registration.*' --check 'prepare.*'"},
        needs_mounts=True,
    ),
    "a driver in an afternoon": Story(
        (("docs/driver-author.md", 3),),
        check="kubectl get pod hello",
        # The folder of the node is the only thing that a reader has to fill in: `up` printed it.
        words={"/tmp/dra-.../nodes/node-1": "$(sed -n 's/^ *node-1: //p' up.log)"},
    ),
    "devices of this machine": Story(
        (("docs/driver-author.md", 3),),
        check="kubectl get pod player",
        words={
            "/tmp/dra-.../nodes/node-1": "$(sed -n 's/^ *node-1: //p' up.log)",
            "python examples/01_hello.py": "dra-kubelet-plugin hostdev --config examples/hostdev/toys.yaml",
            "examples/01_hello.yaml": "examples/05_toys.yaml",
            "pod/hello": "pod/player",
            "logs hello": "logs player",
            "I was told: good night": "my toys: /dev/null /dev/zero",
        },
    ),
    "roles, tokens and a stuck claim": Story(
        (("docs/devcluster.md", 1), ("docs/devcluster.md", 2), ("docs/operating.md", 4)),
        check="kubectl wait --for=delete resourceclaim/stuck --timeout=30s",
        words={"resourceclaim NAME": "resourceclaim stuck"},
        before={
            2: "sed 's/name: .*-claim$/name: stuck/; /^---/,$d' manifests/examples/external-claim.yaml > stuck.yaml; "
            "kubectl create -f stuck.yaml; kubectl patch resourceclaim stuck --type merge "
            """--patch '{"metadata":{"finalizers":["resource.kubernetes.io/delete-protection"]}}'; """
            "kubectl delete resourceclaim stuck --wait=false"
        },
        refused=("kubectl delete pod web --as jane",),
    ),
    "without a cluster": Story(
        (("docs/hostdev.md", 0), ("docs/completion.md", 0)),
        check="grep -q search-budget ~/.local/share/bash-completion/completions/dra-operator",
        needs_kubectl=False,
    ),
}
ENGINE = "needs a container engine and a registry; .ci/image builds the image without them"
BY_CI = ".ci/run does it, in a fresh clone"
INSTALLS = "installs into the environment in which the tests run"
RECORDED = "tests/kubectl compares it with the recorded answer about a cluster in a file"
CHART = "needs helm; tests/manifests/test_chart.py renders the chart where there is one"
DEPLOYED = "tests/manifests/test_deployment.py does it, with a stand-in for the image"
NOT_RUN = {  # page, the beginnings of the commands, and why no story has them
    ("docs/quality.md", "python docs/quality.py"): "needs data that is not in the repository, and hours",
    ("docs/simulate.md", "python examples/trace/"): "tests/support/trace_objects.py runs both",
    ("docs/simulate.md", "dra-operator simulate --trace"): "tests/quality and tests/simulator/test_replay.py play them",
    ("docs/placement-strategies.md", "kubectl dra snapshot"): "tests/kubectl/test_snapshot.py writes one",
    ("docs/placement-strategies.md", "dra-operator simulate"): "tests/simulator/test_strategy_comparison.py compares",
    ("README.md", "git clone"): BY_CI,
    ("README.md", "make "): BY_CI,
    ("README.md", "docker "): ENGINE,
    ("README.md", "kind load"): ENGINE,
    ("README.md", "(cd manifests/"): "needs kustomize, whose `edit` kubectl does not have",
    ("README.md", "kubectl apply -k"): DEPLOYED,
    ("README.md", "kubectl apply -f manifests/examples/"): DEPLOYED,
    ("README.md", "helm install"): CHART,
    ("CONTRIBUTING.md", "make install"): BY_CI,
    ("docs/driver-author.md", "git clone"): BY_CI,
    ("docs/driver-author.md", "make install"): BY_CI,
    ("docs/kueue.md", "kubectl "): "tests/operator/test_admission_checks.py types them where Kueue's kinds are served",
    ("docs/kubectl-check.md", "kubectl dra lint"): RECORDED,
    ("docs/kubectl-check.md", "kubectl dra doctor"): RECORDED,
    ("docs/kubectl-check.md", "kubectl dra taint"): RECORDED,
    ("docs/kubectl-dra.md", "kubectl dra topology"): RECORDED,
    ("docs/kubectl-fit.md", "kubectl dra fit"): RECORDED,
    ("docs/kubectl-fit.md", "curl -s localhost:8484"): "tests/kubectl/test_serve.py asks such questions",
    ("docs/kubectl-fit.md", "kubectl dra drain"): RECORDED,
    ("docs/defragment.md", "kubectl dra defrag -f"): RECORDED,
    ("docs/defragment.md", "kubectl dra defrag --for"): "moves pods, as tests/kubectl/test_defrag.py does",
    ("CONTRIBUTING.md", "pre-commit install"): "changes the clone of the project",
    ("docs/completion.md", "pip install"): INSTALLS,
    ("docs/devcluster.md", "dra-devcluster demo"): BY_CI,
    ("docs/driver-test.md", "pip install"): INSTALLS,
    ("docs/driver-test.md", "dra-driver-test"): "takes minutes, and one of them a node; tests/drivertest has its own",
    ("docs/hostdev.md", "dra-kubelet-plugin hostdev --config serial.yaml"): "needs root on a node with such devices",
    ("docs/install-drivers.md", "kubectl apply -k"): DEPLOYED,
    ("docs/install-drivers.md", "kubectl rollout"): DEPLOYED,
    ("docs/operating.md", "kubectl apply -k"): DEPLOYED,
    ("docs/kubernetes-1.37.md", "kubectl "): DEPLOYED,
    ("docs/operating.md", "kubectl rollout"): DEPLOYED,
    ("docs/operating.md", "kubectl label"): DEPLOYED,
    ("docs/operating.md", "kubectl get resourceclaims"): DEPLOYED,
    ("docs/operating.md", "kubectl delete"): DEPLOYED,
    ("docs/territories.md", "kubectl taint"): "tests/reliability/test_mixed_queue.py taints one, on a real server",
    ("docs/territories.md", "helm upgrade"): CHART,
    ("docs/ui.md", "cd headlamp"): "needs npm; .github/workflows/headlamp.yaml builds and tests the plugin",
    ("docs/ui.md", "mkdir -p"): "installs into a Headlamp of the machine",
    ("docs/ui.md", "kubectl dra ui"): "tests/kubectl/test_ui.py serves a page of another origin",
    ("docs/why.md", "kubectl "): "tests/operator/test_why.py asks about pods that wait",
}
LASTING = re.compile(
    r"(dra-devcluster up|kopf run|dra-operator run|dra-kubelet-plugin hostdev .*--node-name|\d+_\w+\.py)\b"
)
SECONDS = 200


def reason(page: str, line: Line) -> str | None:
    """Why no story runs the command of the page."""
    return next((why for (of, start), why in NOT_RUN.items() if of == page and line.command.startswith(start)), None)


def script(story: Story) -> str:
    """A shell script of the lines: what lasts runs in the background, and ends with the script."""
    steps = ["set -eu -o pipefail", "trap 'jobs -p | xargs -r kill; wait' EXIT"]
    before = dict(story.before)
    for number, line in story.lines():
        steps.append(before.pop(number, ":"))
        command = story.filled(line.command)
        if line.command in story.refused:
            steps.append(f"if {command}; then echo not refused; exit 1; fi")
        elif not LASTING.search(command):
            steps.append(command)
        elif kubeconfig := re.search(r"dra-devcluster up .*--kubeconfig (\S+)", command):
            steps.append(f"{command} >up.log 2>&1 &")
            # The kubeconfig comes before the folders of the nodes are printed.
            ready = f"[ -s {kubeconfig[1]} ] && grep -q 'Ctrl-C ends' up.log"
            steps.append(f"until {ready}; do kill -0 $! && sleep 0.1; done")
        else:
            steps.append(f"{command.removesuffix('&').strip()} >>servers.log 2>&1 &")
    return "\n".join([*steps, story.check])


def environment_at(folder: Path) -> None:
    """This environment at another place, where a story may add programs."""
    own = Path(sys.prefix)
    (folder / "bin").mkdir(parents=True)
    for path in (*own.iterdir(), *(own / "bin").iterdir()):
        if path.name != "bin":
            (folder / path.relative_to(own)).symlink_to(path)


@LONG
@pytest.mark.parametrize("name", STORIES)
def test_the_commands_of_a_story_work(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    if story.needs_kubectl and not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed: the commands of the documentation are NOT run")
    if story.needs_mounts and (obstacle := why_impossible()):
        pytest.skip(f"no mounts on this machine: {obstacle}")
    for name in ("operator", "manifests", "examples", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = Path(sys.executable).parent
    environment_at(tmp_path / ".venv")
    shell = subprocess.Popen(
        ["bash", "-c", script(story)],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGTERM)
        output, _ = shell.communicate()
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert shell.returncode == 0, "\n".join([output, *logs])
    for _, line in story.lines():
        assert all(story.filled(said) in output for said in line.prints), output


def test_every_command_is_run_or_stands_here_with_a_reason() -> None:
    run = {line.command for story in STORIES.values() for _, line in story.lines()}
    shown = [(page.name, line) for page in PAGES for block in page.console() for line in block]
    assert [(page, line.command) for page, line in shown if line.command not in run and not reason(page, line)] == []
    used = {reason_of for page, line in shown if (reason_of := reason(page, line))}
    assert set(NOT_RUN.values()) == used
    assert [
        key for key in NOT_RUN if not any(key[0] == page and line.command.startswith(key[1]) for page, line in shown)
    ] == []
    commands = {line.command for _, line in shown}
    assert len(commands & run) / len(commands) > 0.5


def test_every_block_of_commands_is_marked_as_such() -> None:
    """A block without a language would not be looked at."""
    loose = [
        (page.name, body)
        for page in PAGES
        for kind in ("", "sh", "bash", "shell", "text")
        for body in page.blocks(kind)
    ]
    assert [(page, body) for page, body in loose if re.search(r"^\$ ", body, re.MULTILINE)] == []
