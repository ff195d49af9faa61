"""The settings of the operator: names, defaults, limits, units and meaning of each in one place, and how they are read.

Everything else about a setting follows from its line here: the flag ``--scheduler-name``, the variable
``DRA_OPERATOR_SCHEDULER_NAME``, the key ``scheduler-name`` of a ``--config`` file, the help text, and the line in
``docs/operator-settings.md``. ``OperatorSettings`` has the values.

``CommandLine`` reads flags, environment variables and a YAML file, in this order of precedence. ConfigArgParse finds
the values, as texts, and remembers where each came from. The declaration of its setting reads each of them, so all
sources have the same rules and the same complaints: a flag, a variable or a key of the file that is no setting is
refused. A former name counts for the setting that it has become, with a warning.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TextIO

import configargparse
import msgspec
import yaml
from dra_api.releases import AUTO, BUILT, chosen
from dra_api.validation.formats import driver_name
from msgspec import Meta, Struct, inspect

from dra_operator.admission.workloads import AdmissionSettings
from dra_operator.allocator import DEFAULT_BUDGET_STEPS, DEVICE_ORDERS, LeftAlone
from dra_operator.cache import SCHEDULER_NAME
from dra_operator.controllers import BackoffSettings, TimeSettings, controllers_of, names_admission
from dra_operator.gates import accepted, parse_gates
from dra_operator.scheduling import PLACEMENT_STRATEGIES, STRATEGIES
from dra_operator.scheduling.preemption import PREEMPTION_PATIENCE_SECONDS

_TIMES = TimeSettings()
_ADMISSION = AdmissionSettings()
_TIME_SLICES = _TIMES.time_slices
_Count = Annotated[int, Meta(ge=1, le=1000)]
_Wait = Annotated[float, Meta(ge=0.001, le=86400)]
_Lasting = Annotated[float, Meta(ge=1, le=86400)]
_Rate = Annotated[float, Meta(ge=0.1, le=10_000)]


def _about(text: str, allowed: str = "") -> Meta:
    return Meta(description=text, title=allowed or None)


class Contradiction(ValueError):
    """Settings that are right one by one, and not together."""


class RetrySettings(Struct, frozen=True):
    """When what failed is tried again; each field is a setting of its own, named after the group."""

    first: Annotated[_Wait, _about("seconds before the first retry; doubled with each failure in a row")]
    longest: Annotated[
        _Wait, _about("longest wait between retries, in seconds; at most 10 unless the API server refuses for good")
    ]
    rate: Annotated[_Rate, _about("retries per second, which the namespaces with failures share evenly")]
    burst: Annotated[_Count, _about("retries before the rate counts")]


def _retries(waits: BackoffSettings) -> RetrySettings:
    return RetrySettings(waits.first, waits.longest, waits.rate, waits.burst)


class OperatorSettings(Struct, frozen=True, kw_only=True):
    """All settings of ``dra-operator run``; times are in seconds."""

    kubeconfig: Annotated[str, _about("path to the kubeconfig file; none: $KUBECONFIG, or in-cluster", "a path")] = ""
    scheduler_name: Annotated[str, Meta(min_length=1), _about("place the pods that name this scheduler", "a name")] = (
        SCHEDULER_NAME
    )
    kubernetes_version: Annotated[
        str,
        Meta(pattern=f"^({'|'.join((AUTO, *BUILT))})$".replace(".", r"\.")),
        _about(
            "decide as this release of Kubernetes; auto: the API server's release at start-up",
            ", ".join((AUTO, *BUILT)),
        ),
    ] = AUTO
    feature_gates: Annotated[
        str,
        _about("changes to the feature gates of that release", "NAME=true or NAME=false, separated by commas"),
    ] = ""
    controllers: Annotated[
        str,
        _about(
            "controllers to run; auto: placement and allocation, plus the rest if no kube-controller-manager is "
            "running; admission (docs/kueue.md) is never among them, and may be added to auto",
            "some of templates, release, placement, eviction, allocation and admission, separated by commas, or auto, "
            "or auto,admission",
        ),
    ] = "auto"
    legacy_claim_names: Annotated[
        bool,
        _about(
            "accept a claim named POD-ENTRY that the pod owns without the annotation, as Kubernetes up to 1.27 made it"
        ),
    ] = False
    leader_elect: Annotated[bool, _about("stand by while another operator for the same scheduler name leads")] = True
    leader_elect_namespace: Annotated[str, Meta(min_length=1), _about("namespace of the Lease", "a name")] = (
        "kube-system"
    )
    leader_elect_lease_duration: Annotated[
        float,
        Meta(ge=2, le=3600),
        _about(
            "seconds after which a dead leader is replaced; the leader renews the Lease every 2/15 of it, and one "
            "request for the Lease may take a third of it"
        ),
    ] = 15.0
    metrics_host: Annotated[str, Meta(min_length=1), _about("address for metrics and probes", "an address")] = (
        "127.0.0.1"
    )
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        _about("port for metrics and probes; 0: any free port; unset: disabled"),
    ] = None
    request_timeout: Annotated[
        float,
        Meta(ge=1, le=300),
        _about("seconds for one request to the API server, which may spend 0.9 of them on a write"),
    ] = 30.0
    template_workers: Annotated[_Count, _about("pods whose claims are made from templates at the same time")] = (
        _TIMES.workers["templates"]
    )
    release_workers: Annotated[_Count, _about("claims that are released or cleaned up at the same time")] = (
        _TIMES.workers["release"]
    )
    eviction_workers: Annotated[_Count, _about("pods on tainted devices that are deleted at the same time")] = (
        _TIMES.workers["eviction"]
    )
    placement_workers: Annotated[_Count, _about("placed pods whose writes are under way at the same time")] = (
        _TIMES.workers["placement"]
    )
    retry: Annotated[RetrySettings, _about("failed pods and claims")] = _retries(_TIMES.retries)
    placement_retry: Annotated[RetrySettings, _about("pods that failed to be placed")] = _retries(
        _TIMES.placement_retries
    )
    search_budget: Annotated[
        int, Meta(ge=1000, le=1_000_000_000), _about("steps after which the search on one node gives up")
    ] = DEFAULT_BUDGET_STEPS
    planning_turn: Annotated[
        float, Meta(ge=0.001, le=10), _about("seconds that the decision about one pod may take before others go first")
    ] = _TIME_SLICES.turn
    planning_rest: Annotated[
        float,
        Meta(ge=0, le=1000),
        _about("after a longer decision about a pod, wait this many times its duration before the next one about it"),
    ] = _TIME_SLICES.rest
    filter_timeout: Annotated[
        float,
        Meta(ge=0, le=86400),
        _about("seconds that the search on one node may take before the attempt fails; 0: no limit"),
    ] = _TIMES.filter_timeout
    binding_timeout: Annotated[
        _Lasting, _about("seconds that devices with binding conditions may take to get ready")
    ] = _TIMES.binding_timeout
    volume_binding_timeout: Annotated[
        _Lasting, _about("seconds that PersistentVolumeClaims have to be bound on the node of their first pod")
    ] = _TIMES.volume_binding_timeout
    conflict_check_grace: Annotated[
        float,
        Meta(ge=0, le=60),
        _about(
            "seconds that a pod waits after its allocation, and at most three quarters of it before, where another "
            "scheduler allocates devices of the same driver"
        ),
    ] = _TIMES.grace
    own_devices_only: Annotated[
        bool,
        _about(
            "take only devices that a taint dra.kopf.dev/scheduler of the device or of its node gives to this scheduler"
        ),
    ] = False
    leave_drivers: Annotated[
        str, _about("drivers whose devices are left to other schedulers", "names, separated by commas")
    ] = ""
    leave_nodes: Annotated[
        str,
        _about(
            "nodes whose own devices are left to other schedulers; pods without claims may run there",
            "a label selector, as kubectl takes it",
        ),
    ] = ""
    scoring_strategy: Annotated[
        str,
        Meta(pattern=f"^({'|'.join(STRATEGIES)})$"),
        _about(
            "prefer the emptiest or the fullest of the nodes that fit, by cpu, memory and pod slots",
            " or ".join(STRATEGIES),
        ),
    ] = STRATEGIES[0]
    placement_strategy: Annotated[
        str,
        Meta(pattern=f"^({'|'.join(PLACEMENT_STRATEGIES)})$"),
        _about(
            "which of the nodes that fit is best by its devices; a DeviceClass may name another in its annotation "
            "dra.kopf.dev/placement-strategy",
            " or ".join(PLACEMENT_STRATEGIES),
        ),
    ] = PLACEMENT_STRATEGIES[0]
    device_order: Annotated[
        str,
        Meta(pattern=f"^({'|'.join(DEVICE_ORDERS)})$"),
        _about(
            "which devices of a node are tried first: as kube-scheduler does; the fullest; those that leave most room "
            "for usual requests; or those that keep PCIe roots and NUMA nodes whole",
            " or ".join(DEVICE_ORDERS),
        ),
    ] = DEVICE_ORDERS[0]
    placement_mix: Annotated[
        str,
        _about("file of what pods usually ask for: requests with weights; none: it is learned", "a path"),
    ] = ""
    preemption: Annotated[
        bool, _about("let a pod that fits nowhere preempt pods of lower priority, for their devices and node resources")
    ] = False
    preempt_other_schedulers: Annotated[
        bool, _about("with --preemption, also preempt pods that another scheduler has placed")
    ] = False
    preemption_patience: Annotated[
        _Lasting, _about("with --preemption, seconds that a pod waits for its victims before it preempts further pods")
    ] = PREEMPTION_PATIENCE_SECONDS
    admission_promise: Annotated[
        _Lasting,
        _about("with the controller admission, seconds that an admitted Workload keeps devices for pods to come"),
    ] = _ADMISSION.promise
    admission_backoff: Annotated[
        float,
        Meta(ge=10, le=86400),
        _about("with the controller admission, longest seconds between two looks at a Workload that does not fit"),
    ] = _ADMISSION.backoff
    audit_interval: Annotated[
        _Lasting, _about("seconds between two comparisons of the whole cache with the API server")
    ] = 300.0
    log_format: Annotated[
        str,
        Meta(pattern="^(text|json)$"),
        _about("format of log lines: text, or one JSON object per line", "text or json"),
    ] = "text"
    check_invariants: Annotated[bool, _about("verify the cache after every step, and log what is wrong; slow")] = False
    verbosity: Annotated[
        int,
        Meta(ge=0, le=2),
        _about(
            "log lines: 0 what happens to pods and claims, and all warnings; 1 also the reasons, node by node; "
            "2 also requests to the API server"
        ),
    ] = 0

    def __post_init__(self) -> None:
        features = accepted(parse_gates(self.feature_gates), chosen(self.kubernetes_version))
        controllers_of(self.controllers)
        for name in sorted(LeftAlone.of(self.leave_drivers, self.leave_nodes, unmarked=self.own_devices_only).drivers):
            if faults := list(driver_name(name, "")):
                raise ValueError(f"--leave-drivers: {name!r} is no driver's name: {faults[0].detail}")
        if self.filter_timeout != _TIMES.filter_timeout and not features.filter_timeout:
            raise Contradiction("--filter-timeout has no effect: the feature gate DRASchedulerFilterTimeout is off")
        is_timed = (self.admission_promise, self.admission_backoff) != (_ADMISSION.promise, _ADMISSION.backoff)
        if is_timed and not names_admission(self.controllers):
            raise Contradiction(
                "--admission-promise and --admission-backoff have no effect without --controllers admission"
            )
        if self.preempt_other_schedulers and not self.preemption:
            raise Contradiction("--preempt-other-schedulers has no effect without --preemption")
        if self.preemption_patience != PREEMPTION_PATIENCE_SECONDS and not self.preemption:
            raise Contradiction("--preemption-patience has no effect without --preemption")
        if self.binding_timeout != _TIMES.binding_timeout and not features.binding_conditions:
            raise Contradiction(
                "--binding-timeout has no effect: the feature gate DRADeviceBindingConditions or "
                "DRAResourceClaimDeviceStatus is off"
            )
        for group, retry in (("retry", self.retry), ("placement-retry", self.placement_retry)):
            if retry.first > retry.longest:
                raise Contradiction(
                    f"--{group}-first {retry.first:g} is longer than --{group}-longest {retry.longest:g}"
                )


class Setting(NamedTuple):
    """One setting as people see it. ``default`` and ``allowed`` are words."""

    path: tuple[str, ...]
    """Its field, preceded by that of its group if it is in one."""
    default: str
    meaning: str
    allowed: str
    is_switch: bool

    @property
    def field(self) -> str:
        """The name in Python, unique among all settings."""
        return "_".join(self.path)

    @property
    def name(self) -> str:
        """The key in a file; with two dashes the flag."""
        return self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return variable_of(self.name)


FORMER_NAMES: Final[Mapping[str, str]] = {
    "concerns": "controllers",
    "contested-grace": "conflict-check-grace",
}
"""Names of settings in earlier versions, each with the name that the setting has now.

A former name is taken from every source, with a warning. A setting that gets another name, or goes, is added here, to
the name of what replaces it.
"""


def described() -> Iterator[Setting]:
    """Every setting, in the order of the class."""
    for field in inspect.type_info(OperatorSettings).fields:  # type: ignore[attr-defined]
        kind, notes = _resolved(field.type)
        if isinstance(kind, inspect.StructType):
            for inner in kind.fields:
                default = getattr(field.default, inner.name)
                yield _setting((field.name, inner.name), inner.type, default, f"{notes['description']}: ")
        else:
            yield _setting((field.name,), field.type, field.default)


def settings_of(values: Mapping[str, Any]) -> OperatorSettings:
    """The settings with these values, which may be texts. Raises ValueError; its cause may say what is wrong."""
    content = msgspec.to_builtins(OperatorSettings())
    for field, value in values.items():
        *groups, name = _PATHS[field]
        reduce(getitem, groups, content)[name] = value
    return msgspec.convert(content, OperatorSettings, strict=False)


def variable_of(name: str) -> str:
    """Return the environment variable for the setting of this name."""
    return f"DRA_OPERATOR_{name.upper().replace('-', '_')}"


def value_of(field: str, text: str, before: Mapping[str, Any] | None = None) -> Any:
    """A single value, from text. Raises ValueError; its cause, if it has one, says what is wrong.

    ``before`` has the settings declared before it: the release says which feature gates there are.
    """
    return reduce(getattr, _PATHS[field], settings_of({**(before or {}), field: text}))


def _setting(path: tuple[str, ...], declared: inspect.Type, value: object, about: str = "") -> Setting:
    kind, notes = _resolved(declared)
    told_as = value if isinstance(value, str) else str(value).lower().removesuffix(".0")
    default = "none" if value in ("", None) else told_as
    allowed = notes.get("title") or _words(kind)
    return Setting(path, default, about + notes["description"], allowed, isinstance(kind, inspect.BoolType))


def _resolved(kind: inspect.Type) -> tuple[inspect.Type, dict[str, str]]:
    """The type itself, and what its annotations say."""
    notes: dict[str, str] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            notes |= kind.extra_json_schema or {}
            kind = kind.type
        else:
            kind = kind.types[0]
    return kind, notes


def _words(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case inspect.FloatType(ge=low, le=high):
            return f"a number from {low:g} to {high:g}"
        case _:
            return "a text"


_PATHS: Final = {setting.field: setting.path for setting in described()}


DESCRIPTION = """Run the operator until SIGINT or SIGTERM. A flag has precedence over its environment variable, and this
one over the file of --config, which is YAML with the names of the flags as keys."""


LIKENESS_SHARE: Final = 0.77
"""Share of its letters, as difflib counts them, from which a name is taken for a setting that was misspelt."""
_OF_SERVICES: Final = re.compile(r"DRA_OPERATOR_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")
"""What Kubernetes sets in a pod for Services whose names begin with dra-operator."""


class _SettingsFile(configargparse.YAMLConfigFileParser):  # type: ignore[misc]
    """Says in one line what is wrong with the file, with its name."""

    def parse(self, stream: TextIO) -> dict[str, str]:
        try:
            root = yaml.compose(stream, yaml.SafeLoader)
            stream.seek(0)
            values: dict[str, Any] = super().parse(stream) if root is not None else {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            said = " ".join(str(error).split())
            raise configargparse.ConfigFileParserException(f"Couldn't parse config file: {said}") from error
        except configargparse.ConfigFileParserException as error:
            raise configargparse.ConfigFileParserException(" ".join(str(error).split())) from error
        keys = Counter(key.value for key, _ in root.value) if root is not None else Counter[str]()
        for key, number in keys.items():
            if number > 1:
                raise configargparse.ConfigFileParserException(f"{key} stands {number} times in file {stream.name}")
        for key, value in values.items():
            if not isinstance(value, str):
                raise configargparse.ConfigFileParserException(
                    f"{key}: {value} from file {stream.name} is a list; write one value, as on the command line"
                )
        return values


def strangers(variables: Iterable[str]) -> list[str]:
    """The names that look like a setting's variable and are none: misspelt, or of another version."""
    known = {"DRA_OPERATOR_CONFIG", *map(variable_of, FORMER_NAMES), *(setting.variable for setting in described())}
    ours = (name for name in variables if name.startswith("DRA_OPERATOR_") and name not in known)
    return sorted(name for name in ours if not _OF_SERVICES.fullmatch(name))


def _meant(word: str, spelt: Callable[[str], str] = str) -> str:
    """Return the rest of a complaint about an unknown name: the closest setting, if one is close, and where all are.

    ``spelt``: how the name of a setting is written where the unknown one stands.
    """
    names = {spelt(setting.name).lower(): spelt(setting.name) for setting in described()}
    prefix = len(spelt(""))
    rests = {name[prefix:]: shown for name, shown in names.items()}
    close = difflib.get_close_matches(word.lower()[prefix:], rests, n=1, cutoff=LIKENESS_SHARE)
    return f" (did you mean {rests[close[0]]}?); --help lists all" if close else "; --help lists all"


class CommandLine(configargparse.ArgumentParser):  # type: ignore[misc]
    """The arguments of ``dra-operator run``; made from the declarations of the settings."""

    def __init__(self) -> None:
        super().__init__(
            prog="dra-operator run",
            description=DESCRIPTION,
            config_file_parser_class=_SettingsFile,
            add_config_file_help=False,
            add_env_var_help=False,
        )
        self.add_argument(
            "--config",
            is_config_file=True,
            env_var="DRA_OPERATOR_CONFIG",
            metavar="FILE",
            help="YAML file with settings (variable DRA_OPERATOR_CONFIG)",
        )
        self._settings = {setting.field: setting for setting in described()}
        self.warnings: list[str] = []
        """Said of the settings that were read: log them."""
        for setting in self._settings.values():
            self._add(setting)
        for former in FORMER_NAMES:
            self.add_argument(
                f"--{former}", dest=former, env_var=variable_of(former), help=argparse.SUPPRESS, metavar="VALUE"
            )
        self.add_argument("-v", "--verbose", action="count", default=0, help="--verbosity 1; twice: --verbosity 2")

    def settings(self, words: Sequence[str]) -> OperatorSettings:
        """Return the given settings, with defaults for all others.

        A wrong value, and what is no setting, ends the process with exit code 2 and one line.
        """
        options, unknown = self.parse_known_args(list(words))
        origins = dict(self._origins())
        if unknown:
            closest = _meant(unknown[0].partition("=")[0], "--{}".format)
            self.error(f"unknown arguments: {' '.join(unknown)}{closest}")
        if strange := strangers(os.environ):
            self.error(f"environment variable {strange[0]} is not a setting{_meant(strange[0], variable_of)}")
        self._follow_former_names(options, origins)
        values: dict[str, Any] = {}
        for field, setting in self._settings.items():
            text: str | None = getattr(options, field)
            if text is not None:
                values[field] = self._value(setting, text, origins.get(field, f"flag --{setting.name}"), values)
        if options.verbose:
            values["verbosity"] = min(2, options.verbose)
        try:
            return settings_of(values)
        except ValueError as error:
            self.error(str(error.__cause__ or error))

    def error(self, message: str) -> NoReturn:
        """End with one line and exit code 2."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)

    def _add(self, setting: Setting) -> None:
        text = f"{setting.meaning}; {setting.allowed} (default: {setting.default}; variable {setting.variable})"
        common = {"env_var": setting.variable, "help": text.replace("%", "%%")}
        if not setting.is_switch:
            self.add_argument(f"--{setting.name}", metavar="VALUE", **common)
            return
        either = self.add_mutually_exclusive_group()
        either.add_argument(f"--{setting.name}", nargs="?", const="true", metavar="true|false", **common)
        either.add_argument(
            f"--no-{setting.name}", dest=setting.field, action="store_const", const="false", help="the same as =false"
        )

    def _follow_former_names(self, options: argparse.Namespace, origins: dict[str, str]) -> None:
        """Take the value of a former name for the setting that it is now; both together contradict each other."""
        for former, name in FORMER_NAMES.items():
            field, text = name.replace("-", "_"), getattr(options, former)
            if text is None:
                continue
            origin = origins.get(former, f"flag --{former}")
            if getattr(options, field) is not None:
                new = origins.get(field, f"flag --{name}")
                self.error(f"{former} from {origin} is called {name} now, which {new} sets as well; remove {former}")
            setattr(options, field, text)
            origins[field] = origin
            self.warnings.append(f"setting {former} from {origin} is called {name} now, and counts for it; rename it")

    def get_command_line_key_for_unknown_config_file_setting(self, key: str) -> NoReturn:
        """A key in the file that is not a setting."""
        self.error(f"the file of --config has {key!r}, which is not a setting{_meant(key)}")

    def get_possible_config_keys(self, action: Any) -> list[str]:
        """Only settings can be set in a file: no other file, no short forms."""
        is_setting = action.dest in (*self._settings, *FORMER_NAMES) and getattr(action, "env_var", None)
        return list(super().get_possible_config_keys(action)) if is_setting else []

    def _value(self, setting: Setting, text: str, origin: str, before: Mapping[str, Any]) -> Any:
        try:
            return value_of(setting.field, text, before)
        except ValueError as error:
            if isinstance(error.__cause__, Contradiction):
                return text  # it may agree with the settings that follow
            why = f" ({error.__cause__})" if error.__cause__ is not None else ""  # what a check says; types say nothing
            self.error(f"--{setting.name}: {text!r} from {origin} is wrong{why}; allowed: {setting.allowed}")

    def _origins(self) -> Iterator[tuple[str, str]]:
        """The origin of each value that does not come from a flag."""
        for source, entries in self.get_source_to_settings_dict().items():
            kind, _, file = source.partition("|")
            for key, (action, _) in entries.items():
                if kind == "config_file":
                    yield action.dest, f"file {file}"
                elif kind == "environment_variables":
                    yield action.dest, f"variable {key}"
