"""Settings from flags, environment variables and a YAML file, in this order of precedence.

ConfigArgParse finds the values, as texts, and remembers where each came from. The declaration of its setting reads each
of them, so that all sources have the same rules and the same complaints: what is no setting is refused, be it a flag, a
variable or a key of the file. A former name counts for the setting that it has become, with a warning.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, TextIO

import configargparse

from .settings import FORMER_NAMES, OperatorSettings, Setting, described, settings_of, value_of, variable_of

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
            values: dict[str, Any] = super().parse(stream)
        except configargparse.ConfigFileParserException as error:
            raise configargparse.ConfigFileParserException(" ".join(str(error).split())) from error
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
        values = {}
        for field, setting in self._settings.items():
            text: str | None = getattr(options, field)
            if text is not None:
                values[field] = self._value(setting, text, origins.get(field, f"flag --{setting.name}"))
        if options.verbose:
            values["verbosity"] = min(2, options.verbose)
        try:
            return settings_of(values)
        except ValueError as error:  # settings that are right one by one, and contradict each other
            self.error(str(error))

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

    def _value(self, setting: Setting, text: str, origin: str) -> Any:
        try:
            return value_of(setting.field, text)
        except ValueError as error:
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
