"""What hands do that know kubectl: names typed back, options in any place, formats, tables on a terminal, Ctrl-C."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_kube import NoAnswerInTime
from dra_operator.kubectl import live
from dra_operator.kubectl.cli import main, parser
from dra_operator.kubectl.commands import COMMANDS

HERE = Path(__file__).parent
FROM = ("--from", str(HERE / "cluster.yaml"))
START = [sys.executable, "-c", "import sys; from dra_operator.kubectl.start import main; sys.exit(main())"]


def pod(name: str, owner: tuple[str, str] | None = None, group: str = "") -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "ml", "uid": name}
    if owner is not None:
        kind, called = owner
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": kind, "name": called, "uid": called, "controller": True}
        ]
    spec: dict[str, Any] = {"containers": [{"name": "c"}], "schedulerName": "dra-scheduler"}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


OBJECTS = [
    pod("waits-0", ("StatefulSet", "waits")),
    pod("web-7d4-x", ("ReplicaSet", "web-7d4")),
    pod("agent-x", ("DaemonSet", "agent")),
    pod("old-x", ("ReplicationController", "old")),
    pod("night-29000-x", ("Job", "night-29000")),
    pod("ring-0", None, "ring"),
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "alone", "namespace": "ml", "labels": {"team": "a"}},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
    },
]
TYPED = [
    *(
        ["ml/waits-0"],
        ["pod/ml/waits-0"],
        ["po", "ml/waits-0"],
        ["pod", "waits-0", "-n", "ml"],
        ["waits-0", "-n", "ml"],
    ),
    *(["sts/waits", "-n", "ml"], ["statefulset", "ml/waits"], ["statefulsets.apps/waits", "-n", "ml"]),
    *(["deploy/web", "-n", "ml"], ["rs/web-7d4", "-n", "ml"], ["replicaset", "ml/web-7d4"]),
    *(["ds/agent", "-n", "ml"], ["rc/old", "-n", "ml"], ["job/night-29000", "-n", "ml"], ["cj/night", "-n", "ml"]),
    *(["cronjob.batch/ml/night"], ["podgroup/ring", "-n", "ml"]),
    *(["ml/alone"], ["claim", "ml/alone"], ["resourceclaim.resource.k8s.io/ml/alone"], ["alone", "-n", "ml"]),
]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": OBJECTS}))
    return str(file)


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_a_name_is_understood_as_it_is_printed(
    words: list[str], cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["why", *words, "--from", cluster])
    out, err = capsys.readouterr()
    assert code in (0, 3), err
    name = words[-1] if "-n" not in words else words[-3]
    assert name.rpartition("/")[2] in out


def test_a_namespace_that_is_named_twice_has_to_be_the_same(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "ml/waits-0", "-n", "ml", "--from", cluster]) in (0, 3)
    capsys.readouterr()
    assert main(["why", "ml/waits-0", "-n", "web", "--from", cluster]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_what_why_prints_of_all_can_be_typed_back(capsys: pytest.CaptureFixture[str]) -> None:
    main(["why", "-A", *FROM, "-o", "name"])
    names = capsys.readouterr().out.split()
    assert names
    for name in names:
        assert main(["why", name, *FROM]) in (0, 3), name
        key = name.removeprefix("pod/")
        assert key in capsys.readouterr().out


def test_names_of_tables_can_be_typed_back(capsys: pytest.CaptureFixture[str]) -> None:
    for listed, asked in (
        (["top", "nodes"], ["drain", "{}"]),
        (["top", "nodes"], ["devices", "--node", "{}"]),
        (["top", "drivers"], ["pools", "--driver", "{}"]),
        (["top", "classes"], ["free", "--class", "{}"]),
        (["pools"], ["taint", "{}"]),
        (["devices"], ["who", "{}"]),
        (["devices"], ["taint", "{}", "--dry-run"]),
        (["free"], ["topology", "{}"]),
    ):
        main([*listed, *FROM, "-o", "name"])
        names = capsys.readouterr().out.split()
        assert names
        for name in names:
            words = [word.format(name) for word in asked]
            assert main([*words, *FROM]) in (0, 3), (words, capsys.readouterr().err)
            found = capsys.readouterr()
            assert "No devices found" not in found.err, words


@pytest.mark.parametrize("command", COMMANDS)
def test_a_namespace_and_where_the_cluster_is_are_taken_everywhere(command: str) -> None:
    needed = {"why": ["pod/x"], "who": ["x"], "taint": ["x"], "topology": ["x"], "drain": ["x"]}.get(command, [])
    where = ["-n", "ml", "-s", "https://h", "--token", "t", "--user", "u", "--cluster", "c", "--context", "x"]
    options = parser().parse_args([command, *needed, *where])
    assert (options.namespace, options.server, options.token, options.user, options.cluster) == (
        *("ml", "https://h", "t", "u", "c"),
    )


def test_options_before_the_command_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "ml", *FROM, "claims", "-o", "name"]) == 0
    before = capsys.readouterr().out
    assert main(["claims", "-n", "ml", *FROM, "-o", "name"]) == 0
    assert capsys.readouterr().out == before != ""


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"\n    {name}" in said for name in COMMANDS)


@pytest.mark.parametrize(("words", "shows"), [(["help"], "COMMAND"), (["help", "why"], "usage: kubectl dra why")])
def test_help_is_a_command_as_well(words: list[str], shows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert shows in capsys.readouterr().out


def test_a_node_that_does_not_exist_is_no_node_without_devices(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = output(capsys, "top", "nodes", "-o", "name").split()
    name = nodes[0].removeprefix("node/")
    assert main(["devices", "--node", f"{name}x", *FROM]) == 1
    assert f"there is no node {name}x; similar: {name}" in capsys.readouterr().err
    assert main(["devices", "--node", f"node/{name}", *FROM]) == 0


def test_devices_of_no_node_add_no_empty_name_to_those_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--node", "nope", "--from", str(HERE / "causes.yaml")]) == 1
    assert "there is no node nope; there are: cpu-1, gpu-1" in capsys.readouterr().err


async def test_a_server_that_never_answers_is_told_without_a_limit_of_the_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "VERSION_SECONDS", 0.2)

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        where = live.where(parser().parse_args(["top", "-s", f"http://127.0.0.1:{port}", "--token", "t"]))
        with pytest.raises(NoAnswerInTime, match=r"no answer within 0.2 s"):
            await live.observe(where, live.NO_LIMIT_SECONDS, "default")
        gone.set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_three_examples_which_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    said = capsys.readouterr().out
    examples = re.findall(r"^  kubectl dra (.+)$", said, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        words = shlex.split(re.split(r" [|>] ", example)[0])
        assert parser().parse_args(words).command == command


def test_settings_that_do_not_change_the_answer_are_taken_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    assert "--device-order" not in capsys.readouterr().out
    assert main(["top", *FROM, "--device-order", "aligned"]) == 0
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "--device-order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["whi", "pod/x"], "why"),
        (["device"], "devices"),
        (["docter"], "doctor"),
        (["claims", "--namespce", "x"], "--namespace"),
        (["devices", "--stat", "free"], None),  # an abbreviation, which argparse takes
        (["devices", "--drivr=x"], "--driver"),
        (["devices", "--state", "fre"], "free"),
        (["top", "nodse"], "nodes"),
        (["claims", "-o", "jsn"], "json"),
    ],
)
def test_a_misspelt_word_is_answered_by_the_similar_one(
    words: list[str], meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if meant is None:
        assert main([*words, *FROM]) == 0
        return
    with pytest.raises(SystemExit, match="2"):
        main([*words, *FROM])
    said = capsys.readouterr().err
    assert f"did you mean {meant}?" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "title"),
    [("node", "NODE"), ("no", "NODE"), ("ns", "NAMESPACE"), ("class", "DEVICECLASS"), ("driver", "DRIVER")],
)
def test_top_takes_kinds_under_all_their_names(word: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", word, *FROM]) == 0
    assert capsys.readouterr().out.startswith(title)


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, *FROM]) == 0
    return capsys.readouterr().out


def test_formats_of_kubectl_show_what_json_has(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(output(capsys, "devices", "-o", "json"))
    assert (found["apiVersion"], found["kind"]) == ("dra.kopf.dev/v1", "DeviceList")
    assert {(one["apiVersion"], one["kind"]) for one in found["items"]} == {("dra.kopf.dev/v1", "Device")}
    assert yaml.safe_load(output(capsys, "devices", "-o", "yaml")) == found
    names = [one["name"] for one in found["items"]]
    assert output(capsys, "devices", "-o", "jsonpath={.items[*].name}").split() == names
    template = 'jsonpath={range .items[*]}{.name}{"\\n"}{end}'
    assert output(capsys, "devices", f"-o={template}").split("\n")[:-1] == names
    table = output(capsys, "devices", "-o", "custom-columns=WHERE:.node,WHAT:.name,WHO:.holders[*].claim")
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["WHERE", "WHAT", "WHO"]
    assert [line[1] for line in lines[1:]] == names
    free = next(place for place, one in enumerate(found["items"]) if not one["holders"])
    assert lines[free + 1][2] == "<none>"


def test_headers_order_and_labels(capsys: pytest.CaptureFixture[str]) -> None:
    whole = output(capsys, "devices").splitlines()
    assert output(capsys, "devices", "--no-headers").splitlines() == whole[1:]
    by_name = output(capsys, "devices", "--sort-by", ".name", "-o", "name").split()
    assert [one.rpartition("/")[2] for one in by_name] == sorted(
        (one.rpartition("/")[2] for one in by_name), key=lambda name: int(name.rpartition("-")[2])
    )
    used = output(capsys, "top", "nodes", "--sort-by={.used}", "-o", "jsonpath={.items[*].used}").split()
    assert used == sorted(used, key=int)
    assert "LABELS" not in whole[0]
    labelled = output(capsys, "devices", "--show-labels").splitlines()
    assert labelled[0].endswith("LABELS")
    assert any("zone=" in line for line in labelled[1:])


def test_an_order_by_a_field_that_no_item_has_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--sort-by", ".nope", *FROM]) == 2
    said = capsys.readouterr()
    assert said.err == "kubectl dra: --sort-by: no item has the field .nope; -o json shows the fields\n"
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["devices", "-o", "jsonpath="], "jsonpath needs a template, as in jsonpath={.items[*].name}"),
        (["devices", "-o", "custom-columns="], "custom-columns needs columns"),
        (["fit", "--class", "gpu"], "unknown option --class; see"),
        (["taint", "--driver", "gpu.example.com", "gpu.example.com"], "unknown option --driver; see"),
        (["top", "nonsense"], "namespaces); see"),
    ],
)
def test_a_wrong_word_is_not_answered_by_one_that_is_not_alike(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*words, *FROM])
    said = capsys.readouterr().err
    assert says in said
    assert "did you mean" not in said


@pytest.mark.parametrize("text", ["", "---\n", "null", "apiVersion: v1\nkind: List\nitems: []\n"])
@pytest.mark.parametrize("command", [["doctor"], ["free"], ["why", "-A"]])
def test_a_file_without_any_object_is_no_cluster(
    command: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert main([*command, "--from", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"kubectl dra: {file} holds no object of a kind that kubectl dra reads: was it written to its end, "
        "by kubectl dra snapshot?\n"
    )


@pytest.mark.parametrize("form", ["jsonpath={.items", "custom-columns=A", "custom-columns=A:[", "jsonpath="])
def test_a_template_that_cannot_be_read_is_wrong_usage(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["devices", "-o", form, *FROM])
    assert capsys.readouterr().err.count("\n") == 1


def on_a_terminal(words: list[str], columns: int) -> str:
    """What the command writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [*START, *words], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment | {"NO_COLOR": "1"}
    )
    os.close(theirs)
    found = b""
    with process:
        while select.select([ours], [], [], 60)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            found += part
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("command", ["claims", "devices"])
def test_a_table_fits_the_terminal_and_wide_has_it_whole(command: str, tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all((HERE / "causes.yaml").read_text()))
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    words = [command, *(["-A"] if command == "claims" else []), "--from", str(file)]
    narrow = on_a_terminal(words, 80).splitlines()
    assert len(narrow) > 3
    assert max(map(len, narrow)) <= 80
    whole = on_a_terminal([*words, "-o", "wide"], 80)
    assert "…" not in whole
    assert max(map(len, whole.splitlines())) > 80


READY = "import sys; from dra_operator.kubectl import start; print('ready', flush=True); sys.exit(start.main())"


def interrupted_after(seconds: float, words: list[str]) -> tuple[int, str]:
    """Exit code and errors of a command that Ctrl-C reaches some time after the interpreter has started."""
    command = [sys.executable, "-c", READY, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_ctrl_c_ends_a_command_in_one_line_at_any_moment() -> None:
    begun = time.monotonic()
    subprocess.run([*START, "top", *FROM], stdout=subprocess.DEVNULL, check=True)
    whole = time.monotonic() - begun
    codes = set()
    for step in range(12):
        code, err = interrupted_after(whole * step / 12, ["top", *FROM])
        assert "Traceback" not in err
        assert (code, err) in ((130, "kubectl dra: interrupted\n"), (0, "")), (code, err)
        codes.add(code)
    assert 130 in codes


INTERRUPTED = """
import asyncio, signal, sys
from dra_operator.kubectl import start
from dra_operator.kubectl import cli

def importing():
    try:
        import interrupted
        signal.pause()
    finally:
        print("whole" if interrupted.is_whole else "cut", flush=True)

async def cancelled():
    try:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)

cli.main = {"importing": importing, "cancelled": lambda: asyncio.run(cancelled())}[sys.argv[1]]
start.main()
"""


@pytest.mark.parametrize(("what", "said"), [("importing", "whole\n"), ("cancelled", "cleaned up\n")])
def test_ctrl_c_waits_for_an_import_and_lets_a_command_clean_up(what: str, said: str, tmp_path: Path) -> None:
    """An exception in the middle of an import may crash the process: msgspec makes its classes then."""
    source = "import signal\nis_whole = False\nsignal.raise_signal(signal.SIGINT)\nis_whole = True\n"
    (tmp_path / "interrupted.py").write_text(source)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", INTERRUPTED, what]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, said, "kubectl dra: interrupted\n")
