"""Settings of the operator: where they come from, which source counts, and what is said about wrong ones."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from dra_api.releases import Release
from dra_operator.app import operator, run
from dra_operator.app.operator import Operator, times_of
from dra_operator.app.settings import (
    FORMER_NAMES,
    CommandLine,
    OperatorSettings,
    Setting,
    described,
    strangers,
    value_of,
)
from dra_operator.app.settings_page import page
from dra_operator.app.settings_page import schema as chart_schema
from dra_operator.controllers import BackoffSettings, TimeSettings, TimeSlices
from msgspec.structs import replace

PAGE = Path(__file__).parents[2] / "docs" / "operator-settings.md"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a settings file; gives its path."""

    def write(text: str) -> str:
        (tmp_path / "settings.yaml").write_text(text)
        return str(tmp_path / "settings.yaml")

    return write


def read(*words: str) -> OperatorSettings:
    return CommandLine().settings(words)


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        read(*words)
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1, line
    return line.strip().removeprefix("dra-operator run: ")


def test_without_anything_all_is_as_declared(write: Callable[[str], str]) -> None:
    assert read() == OperatorSettings()
    assert read("--config", write("# nothing yet\n")) == OperatorSettings()


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--scheduler-name", "mine"], {"scheduler_name": "mine"}),
        (["--metrics-port=0"], {"metrics_port": 0}),
        (["--no-leader-elect"], {"leader_elect": False}),
        (["--leader-elect=false"], {"leader_elect": False}),
        (["--leader-elect"], {}),
        (["--leader-elect-lease-duration", "2.5"], {"leader_elect_lease_duration": 2.5}),
        (["--check-invariants", "--metrics-host", "::"], {"check_invariants": True, "metrics_host": "::"}),
        (["-v"], {"verbosity": 1}),
        (["--verbose", "-vv"], {"verbosity": 2}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags(words: list[str], changed: dict[str, object]) -> None:
    assert read(*words) == OperatorSettings(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flag", "variable", "file", "used"),
    [
        ("flag", "variable", "file", "flag"),
        (None, "variable", "file", "variable"),
        ("flag", None, "file", "flag"),
        (None, None, "file", "file"),
        (None, None, None, "dra-scheduler"),
    ],
)
def test_flag_before_variable_before_file(
    flag: str | None,
    variable: str | None,
    file: str | None,
    used: str,
    write: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--scheduler-name", flag] if flag else []
    if variable:
        monkeypatch.setenv("DRA_OPERATOR_SCHEDULER_NAME", variable)
    if file:
        words += ["--config", write(f"scheduler-name: {file}\n")]
    assert read(*words).scheduler_name == used


@pytest.mark.parametrize(
    ("flag", "variable", "file", "leads"),
    [
        ("--leader-elect", "false", "false", True),
        ("--no-leader-elect", "true", "true", False),
        (None, "false", "true", False),
        (None, "True", "false", True),
        (None, None, "no", False),
    ],
)
def test_switches_have_the_same_order(
    flag: str | None,
    variable: str | None,
    file: str,
    leads: bool,
    write: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable:
        monkeypatch.setenv("DRA_OPERATOR_LEADER_ELECT", variable)
    words = ["--config", write(f"leader-elect: {file}\n")] + ([flag] if flag else [])
    assert read(*words).leader_elect is leads


def test_a_variable_names_the_file(write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_OPERATOR_CONFIG", write("metrics-port: 8080\n"))
    assert read().metrics_port == 8080


@pytest.mark.parametrize(
    ("variable", "is_strange"),
    [
        *(("DRA_OPERATOR_FEATURE_GATE", True), ("DRA_OPERATOR_METRICS", True), ("DRA_OPERATOR_REPORT", True)),
        *(("DRA_OPERATOR_FEATURE_GATES", False), ("DRA_OPERATOR_CONFIG", False), ("DRA_PLUGIN_X", False)),
        # Kubernetes sets such for each Service
        *(("DRA_OPERATOR_SERVICE_HOST", False), ("DRA_OPERATOR_METRICS_SERVICE_PORT_WEB", False)),
        *(("DRA_OPERATOR_PORT", False), ("DRA_OPERATOR_METRICS_PORT_8080_TCP_ADDR", False)),
    ],
)
def test_a_variable_that_looks_like_a_setting_and_is_none_is_found(variable: str, *, is_strange: bool) -> None:
    assert strangers(["PATH", variable]) == ([variable] if is_strange else [])


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("DRA_OPERATOR_FEATURE_GATE", " (did you mean DRA_OPERATOR_FEATURE_GATES?)"),
        ("DRA_OPERATOR_CONTROLERS", " (did you mean DRA_OPERATOR_CONTROLLERS?)"),
        ("DRA_OPERATOR_X", ""),
    ],
)
def test_it_is_refused_with_the_closest_one(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a flag and a key of the file are: the operator would run otherwise than it was told to."""
    monkeypatch.setenv(variable, "placement")
    assert complaint(capsys) == f"environment variable {variable} is not a setting{meant}; --help lists all"


def test_an_unknown_flag_is_refused_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "--controlers=placement") == (
        "unknown arguments: --controlers=placement (did you mean --controllers?); --help lists all"
    )


NAMES_OF_FORMER_VERSIONS = ("concerns", "contested-grace")
"""Settings that pages of settings have listed, and that have another name now. No name leaves this list."""
VALUES = {"controllers": ("placement", "placement"), "conflict-check-grace": ("2.5", 2.5)}
"""Of each setting that has a former name: a value, and what is read of it."""


def test_each_name_that_a_setting_ever_had_is_known() -> None:
    assert sorted(FORMER_NAMES) == sorted(NAMES_OF_FORMER_VERSIONS)
    assert FORMER_NAMES.keys().isdisjoint(setting.name for setting in described())
    assert set(FORMER_NAMES.values()) <= {setting.name for setting in described()}
    allowed = chart_schema()["properties"]["operator"]["properties"]["settings"]["properties"]
    assert allowed.keys() >= FORMER_NAMES.keys()


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize("former", NAMES_OF_FORMER_VERSIONS)
def test_a_former_name_counts_for_the_setting_with_a_warning(
    former: str, source: str, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = FORMER_NAMES[former]
    text, value = VALUES[name]
    words: list[str] = []
    match source:
        case "flag":
            words, origin = [f"--{former}", text], f"flag --{former}"
        case "variable":
            variable = f"DRA_OPERATOR_{former.upper().replace('-', '_')}"
            monkeypatch.setenv(variable, text)
            origin = f"variable {variable}"
        case _:
            words = ["--config", write(f"{former}: {text}\n")]
            origin = f"file {words[1]}"
    line = CommandLine()
    assert getattr(line.settings(words), name.replace("-", "_")) == value
    assert line.warnings == [f"setting {former} from {origin} is called {name} now, and counts for it; rename it"]


@pytest.mark.parametrize("former", NAMES_OF_FORMER_VERSIONS)
def test_a_former_name_beside_the_new_one_is_refused(
    former: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = FORMER_NAMES[former]
    text, _ = VALUES[name]
    variable = f"DRA_OPERATOR_{former.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, text)
    assert complaint(capsys, f"--{name}", text) == (
        f"{former} from variable {variable} is called {name} now, which flag --{name} sets as well; remove {former}"
    )


def test_a_wrong_value_under_a_former_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "from flag --concerns is wrong" in complaint(capsys, "--concerns", "placements")


def test_variables_of_services_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_OPERATOR_METRICS_SERVICE_HOST", "10.0.0.1")
    assert read() == OperatorSettings()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--metrics-port", "99999"],
            "--metrics-port: '99999' from flag --metrics-port is wrong; allowed: a whole number",
        ),
        (["--leader-elect-lease-duration", "nan"], "--leader-elect-lease-duration: 'nan' from flag"),
        (["--scheduler-name="], "--scheduler-name: '' from flag --scheduler-name is wrong; allowed: a name"),
        (["--controllers", "all"], "--controllers: 'all' from flag --controllers is wrong (all: not among templates"),
        (
            ["--feature-gates", "X=true"],
            "--feature-gates: 'X=true' from flag --feature-gates is wrong (unknown feature gate X; known are DRA",
        ),
        (
            ["--feature-gates", "DRADeviceTaints,DRAAdminAccess=yes"],
            "--feature-gates: 'DRADeviceTaints,DRAAdminAccess=yes' from flag --feature-gates is wrong (neither true "
            "nor false: DRAAdminAccess, DRADeviceTaints); allowed: NAME=true or NAME=false, separated by commas",
        ),
        (
            ["--leader-elect=perhaps"],
            "--leader-elect: 'perhaps' from flag --leader-elect is wrong; allowed: true or false",
        ),
        (
            ["--kubernetes-version", "1.38"],
            "--kubernetes-version: '1.38' from flag --kubernetes-version is wrong; allowed: auto, 1.32, 1.33",
        ),
        (
            ["--leave-drivers", "gpu.example.com nic.example.com"],
            "--leave-drivers: 'gpu.example.com nic.example.com' from flag --leave-drivers is wrong (--leave-drivers: "
            "'gpu.example.com nic.example.com' is no driver's name: must be a lowercase",
        ),
        (["--colour", "red"], "unknown arguments: --colour red"),
        (["--config", "/nowhere.yaml"], "Unable to open config file: /nowhere.yaml"),
    ],
)
def test_wrong_flags_are_named_with_what_is_allowed(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, *words).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--feature-gates", "DRASchedulerFilterTimeout=false", "--filter-timeout", "5"],
            "--filter-timeout has no effect: the feature gate DRASchedulerFilterTimeout is off",
        ),
        (
            ["--binding-timeout=60", "--feature-gates", "DRADeviceBindingConditions=false"],
            "--binding-timeout has no effect: the feature gate DRADeviceBindingConditions or",
        ),
        (["--preemption-patience=50"], "--preemption-patience has no effect without --preemption"),
        (["--preempt-other-schedulers"], "--preempt-other-schedulers has no effect without --preemption"),
        (
            ["--admission-promise=60"],
            "--admission-promise and --admission-backoff have no effect without --controllers",
        ),
        (
            ["--admission-backoff=20"],
            "--admission-promise and --admission-backoff have no effect without --controllers",
        ),
        (["--retry-first=50", "--retry-longest=20"], "--retry-first 50 is longer than --retry-longest 20"),
        (["--controllers="], "--controllers: '' from flag --controllers is wrong (no controller is named)"),
        (
            ["--feature-gates", "DRADeviceTaints=true,DRADeviceTaints=false"],
            "--feature-gates: 'DRADeviceTaints=true,DRADeviceTaints=false' from flag --feature-gates is wrong (neither",
        ),
        (
            ["--feature-gates", "DRADeviceTaintRules=true", "--kubernetes-version", "1.34"],
            "--feature-gates: 'DRADeviceTaintRules=true' from flag --feature-gates is wrong (",
        ),
        (
            ["--filter-timeout=-1"],
            "--filter-timeout: '-1' from flag --filter-timeout is wrong; allowed: a number",
        ),
        (
            ["--binding-timeout", "0.5"],
            "--binding-timeout: '0.5' from flag --binding-timeout is wrong; allowed: a number",
        ),
    ],
)
def test_settings_that_contradict_each_other_or_have_no_effect_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube-scheduler refuses such a time limit as well."""
    assert complaint(capsys, *words).startswith(said)


def test_time_limits_default_to_those_of_kube_scheduler() -> None:
    assert (OperatorSettings().filter_timeout, OperatorSettings().binding_timeout) == (10, 600)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DRA_OPERATOR_METRICS_PORT", "tcp://10.0.0.1:80")
    assert complaint(capsys) == (
        "--metrics-port: 'tcp://10.0.0.1:80' from variable DRA_OPERATOR_METRICS_PORT is wrong; "
        "allowed: a whole number from 0 to 65535"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("verbosity: 3", "--verbosity: '3' from file FILE is wrong; allowed: a whole number from 0 to 2"),
        ("leader-elect: sometimes", "--leader-elect: 'sometimes' from file FILE is wrong; allowed: true or false"),
        (
            "scheduler_name: x",
            "the file of --config has 'scheduler_name', which is not a setting (did you mean scheduler-name?); "
            "--help lists all",
        ),
        (
            "verbose: 2",
            "the file of --config has 'verbose', which is not a setting; --help lists all",
        ),
        (
            "no-leader-elect: true",
            "the file of --config has 'no-leader-elect', which is not a setting (did you mean leader-elect?); "
            "--help lists all",
        ),
        ("config: other.yaml", "the file of --config has 'config', which is not a setting; --help lists all"),
    ],
)
def test_a_wrong_entry_of_a_file_is_named(
    text: str, said: str, write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(f"{text}\n")
    assert complaint(capsys, "--config", file) == said.replace("FILE", file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list\n", "The config file doesn't appear to contain 'key: value' pairs"),
        (
            "metrics-port: [1, 2]\n",
            "metrics-port: [1, 2] from file FILE is a list; write one value, as on the command line",
        ),
        ("scheduler-name: {\n", "Couldn't parse config file: while parsing a flow"),
        ("controllers: templates\ncontrollers: auto\n", "controllers stands 2 times in file FILE"),
    ],
)
def test_a_file_that_is_no_mapping_of_values_is_refused_with_its_name(
    text: str, said: str, write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(text)
    line = complaint(capsys, "--config", file)
    assert line.startswith(said.replace("FILE", file))
    assert file in line


@pytest.mark.parametrize(
    "setting",
    [setting for setting in described() if setting.default not in ("none", "auto")],
    ids=lambda setting: setting.name,
)
def test_every_default_is_a_value_that_is_allowed(setting: Setting) -> None:
    assert value_of(setting.field, setting.default) == reduce(getattr, setting.path, OperatorSettings())


_TEXTS = {
    "kubeconfig": "file",
    "scheduler-name": "mine",
    "kubernetes-version": "1.36",
    "feature-gates": "DRADeviceTaints=true",
    "controllers": "placement",
    "leader-elect-namespace": "mine",
    "metrics-host": "::",
    "metrics-port": "8080",
    "leave-drivers": "gpu.example.com",
    "leave-nodes": "a=b",
    "scoring-strategy": "",
    "placement-strategy": "frag",
    "device-order": "",
    "placement-mix": "file",
    "log-format": "json",
}
_PARTNERS = {
    "preempt-other-schedulers": ["--preemption"],
    "preemption-patience": ["--preemption"],
    "admission-promise": ["--controllers=auto,admission"],
    "admission-backoff": ["--controllers=admission"],
}


@pytest.mark.parametrize("setting", list(described()), ids=lambda setting: setting.name)
@pytest.mark.parametrize("is_file", [False, True], ids=["flags", "file"])
def test_each_setting_can_be_changed(setting: Setting, is_file: bool, write: Callable[[str], str]) -> None:
    """Beside the settings without which it has no effect, in any order."""
    default: Any = reduce(getattr, setting.path, OperatorSettings())
    text = str(not default) if setting.is_switch else _TEXTS.get(setting.name, "")
    if not text and isinstance(default, str):
        text = next(word for word in setting.allowed.split() if word not in ("or", default))
    words = [f"--{setting.name}={text or default + 1}", *_PARTNERS.get(setting.name, [])]
    if is_file:
        pairs = (word.removeprefix("--").partition("=") for word in words)
        words = ["--config", write("\n".join(f'{name}: "{value or "true"}"' for name, _, value in pairs))]
    assert reduce(getattr, setting.path, read(*words)) != default


def test_a_setting_of_a_group_leaves_the_others_of_the_group_alone() -> None:
    changed = read("--placement-retry-rate", "7").placement_retry
    assert changed == replace(OperatorSettings().placement_retry, rate=7)
    assert OperatorSettings().placement_retry.rate != 7


def test_what_is_set_reaches_the_rooms(write: Callable[[str], str]) -> None:
    """Each value differs from its default, so that none can take another one's place."""
    file = write(
        """
        request-timeout: 11
        template-workers: 12
        release-workers: 13
        placement-workers: 14
        eviction-workers: 29
        retry-first: 15
        retry-longest: 16
        retry-rate: 17
        retry-burst: 18
        placement-retry-first: 19
        placement-retry-longest: 20
        placement-retry-rate: 21
        placement-retry-burst: 22
        search-budget: 2300
        planning-turn: 2.4
        planning-rest: 25
        binding-timeout: 26
        conflict-check-grace: 27
        audit-interval: 28
        check-invariants: true
        controllers: placement
        scheduler-name: mine
        feature-gates: DRADeviceTaintRules=true
        kubernetes-version: 1.36
        """
    )
    settings = read("--config", file)
    assert times_of(settings) == TimeSettings(
        workers={
            "templates": 12,
            "release": 13,
            "placement": 14,
            "eviction": 29,
            "pod-groups": 4,
            "group-conditions": 4,
            "taint-rules": 1,
            "pool-status": 1,
        },
        retries=BackoffSettings(15, 16, 17, 18),
        placement_retries=BackoffSettings(19, 20, 21, 22),
        time_slices=TimeSlices(2.4, 25),
        grace=27,
        binding_timeout=26,
    )
    assert (settings.search_budget, settings.audit_interval, settings.request_timeout) == (2300, 28, 11)
    made = Operator(settings)
    assert made.in_force._chosen == Release.V1_36
    assert made.in_force._gates == {"DRADeviceTaintRules": True}


def test_every_setting_goes_to_some_room() -> None:
    """One that is only declared would be accepted and have no effect."""
    read_here = {
        node.attr
        for module in (run, operator)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
    }
    assert [setting.path[0] for setting in described() if setting.path[0] not in read_here] == []


def test_without_anything_the_rooms_get_their_own_defaults() -> None:
    assert times_of(read()) == TimeSettings()
    assert read() == OperatorSettings()


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    text = "".join(capsys.readouterr().out.split())
    for setting in described():
        assert f"--{setting.name}" in text
        assert setting.variable in text
        assert "".join(setting.meaning.split()) in text


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run make settings"


@pytest.mark.parametrize(("text", "said"), [(None, "No such file"), ("[{weight: 1}]", "entry 1: expected the fields")])
def test_a_mix_that_cannot_be_read_ends_the_command(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "configure_logs", lambda *_: None)
    file = tmp_path / "mix.yaml"
    if text is not None:
        file.write_text(text)
    assert run.main(OperatorSettings(placement_mix=str(file))) == 2
    err = capsys.readouterr().err
    assert "--placement-mix" in err
    assert said in err
