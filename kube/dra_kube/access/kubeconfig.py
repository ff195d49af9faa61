"""Kubeconfig files, read as client-go reads them: which cluster, user and namespace a context means.

Files of ``KUBECONFIG`` are merged: the first one to name a cluster, user, context or the current context wins, and
relative paths start at the folder of their file. Tokens, token files, client certificates and passwords are taken from
here. Only plugins (``exec``, ``auth-provider``) need the ``kubernetes`` package. Its import takes a third of a second
of processor time: commands for people would feel that at each call.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from dra_api import yaml_text

from dra_kube.errors import ConnectionSettingsError

from .credentials import Certificate, Pem

DEFAULT_FILE: Final = "~/.kube/config"
LARGEST_KUBECONFIG_BYTES: Final = 4 * 2**20
"""Largest file that is read. It holds certificates, and an entry for each cluster."""
_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_ENTRIES: Final = {"clusters": "cluster", "users": "user", "contexts": "context"}
JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a command line says beside the context; empty: as the context has it."""

    cluster: str = ""
    """Name of a cluster of the kubeconfig."""
    user: str = ""
    """Name of a user of the kubeconfig."""
    server: str = ""
    """Address of the API server."""
    token: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.cluster or self.user or self.server or self.token)


class Unusable(Exception):
    """The kubeconfig does not say where the server is, or as whom it is asked; the message has no secrets."""


def existing_files(paths: str) -> list[Path]:
    """Return the files of a list of paths that exist. Raises Unusable if that cannot be found out."""
    try:
        return [path for part in paths.split(os.pathsep) if (path := Path(part).expanduser()).is_file()]
    except (OSError, RuntimeError) as error:  # a folder that may not be searched, the home of an unknown user
        raise Unusable(f"{paths} cannot be found: {error}") from error


def read_kubeconfig(paths: str) -> dict[str, Any]:
    """Return the files of a list of paths as one, with absolute paths, and schemes in addresses.

    Raises ConnectionSettingsError and Unusable.
    """
    merged: dict[str, Any] = {"contexts": [], "clusters": [], "users": []}
    files = existing_files(paths)
    if not files:
        raise Unusable(
            f"{paths} {'is a folder, not a file' if Path(paths).expanduser().is_dir() else 'does not exist'}"
        )
    contents = [(path, _content(path)) for path in files]
    if all(content is None for _, content in contents):
        raise Unusable(f"{paths} is empty")
    for path, content in contents:
        if not isinstance(content, dict):
            continue
        if content.get("current-context") and not merged.get("current-context"):
            merged["current-context"] = content["current-context"]
        for kind, inner in _ENTRIES.items():
            known = {entry["name"] for entry in merged[kind]}
            entries = content.get(kind) or []
            if not isinstance(entries, list) or not all(_is_entry(entry, inner) for entry in entries):
                raise Unusable(f"{path}: {kind}: expected entries with name and {inner}")
            for entry in entries:
                if entry["name"] not in known:
                    merged[kind].append({**entry, inner: _absolute(entry.get(inner) or {}, path.parent)})
    return merged


def chosen_context(config: JSON, context: str | None) -> dict[str, Any]:
    """Return a context, by default the current one. Raises Unusable if it is not there."""
    name = context or config.get("current-context")
    if not name:
        raise Unusable("it has no current-context: choose one with --context")
    found = next((entry for entry in config["contexts"] if entry["name"] == name), None)
    if found is None:
        raise Unusable(f"it has no context {name}")
    return dict(found)


def overridden(config: JSON, context: str | None, overrides: Overrides) -> tuple[dict[str, Any], str | None]:
    """Return the kubeconfig with one more context, made from the overrides, and its name. Raises Unusable."""
    if not overrides:
        return dict(config), context
    try:
        about = dict(chosen_context(config, context)["context"])
    except Unusable:
        if context or not overrides.server:
            raise
        about = {}  # an address alone is enough, as it is for kubectl
    name = "(command line)"
    cluster, user = overrides.cluster or about.get("cluster"), overrides.user or about.get("user")
    for kind, given in (("clusters", overrides.cluster), ("users", overrides.user)):
        if given:
            _named(config, kind, given)
    made = dict(config)
    if overrides.server:
        known = _named(config, "clusters", cluster) if cluster else {}
        whole = {**known, "server": overrides.server}
        made["clusters"] = [*config["clusters"], {"name": name, "cluster": {**whole, "server": _address(whole)}}]
        cluster = name
    if overrides.token:
        made["users"] = [*config["users"], {"name": name, "user": {"token": overrides.token}}]
        user = name
    entry = {**about, "cluster": cluster, **({"user": user} if user else {})}
    made["contexts"] = [*config["contexts"], {"name": name, "context": entry}]
    return made, name


class PlainSettings:
    """What a kubeconfig without plugins says, under the names of the ``kubernetes`` package's ``Configuration``."""

    def __init__(self) -> None:
        self.host = ""
        self.proxy: str | None = None
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.username = ""
        self._password = ""
        self._token_file = ""
        self._token = ""
        self.ca: Pem | None = None
        self.certificate: Certificate | None = None

    @staticmethod
    def suits(user: JSON) -> bool:
        """Return whether the user of a kubeconfig needs no plugin."""
        return not user.get("exec") and not user.get("auth-provider")

    def load(self, cluster: JSON, user: JSON) -> None:
        """Take over a cluster and a user. Raises Unusable and OSError."""
        check_cluster(cluster)
        self.host = _text(cluster, "server")
        if not self.host:
            raise Unusable("its cluster has no server")
        self.proxy = _text(cluster, "proxy-url") or None
        self.verify_ssl = not cluster.get("insecure-skip-tls-verify")
        self.tls_server_name = _text(cluster, "tls-server-name") or None
        self.ca = _pem(cluster, "certificate-authority")
        certificate = _pem(user, "client-certificate")
        self.certificate = (certificate, _pem(user, "client-key")) if certificate else None
        self.username, self._password = _text(user, "username"), _text(user, "password")
        self._token, self._token_file = _text(user, "token"), _text(user, "tokenFile")
        if not self._token and self._token_file:
            self._token = Path(self._token_file).read_text().strip()

    def get_api_key_with_prefix(self, _: str, __: str | None = None) -> str | None:
        """Return the header's value for the token, or None without one."""
        return f"Bearer {self._token}" if self._token else None

    def get_basic_auth_token(self) -> str | None:
        """Return the header's value for user name and password."""
        return f"Basic {base64.b64encode(f'{self.username}:{self._password}'.encode()).decode()}"


def check_cluster(cluster: JSON) -> None:
    """Raise Unusable if a setting of the cluster has another type than client-go decodes.

    A quoted "false" is true in Python, and would switch the verification of the server's certificate off.
    """
    for name in ("server", "proxy-url", "tls-server-name"):
        _text(cluster, name)
    if not isinstance(cluster.get("insecure-skip-tls-verify") or False, bool):
        raise Unusable("insecure-skip-tls-verify is neither true nor false; write it without quotes")


def entry_of(config: JSON, kind: str, name: object) -> JSON:
    """Return the cluster or user of a name; empty if there is none."""
    return _named(config, kind, name) if any(entry["name"] == name for entry in config[kind]) else {}


def _named(config: JSON, kind: str, name: object) -> JSON:
    for entry in config[kind]:
        if entry["name"] == name:
            found: JSON = entry[_ENTRIES[kind]]
            return found
    raise Unusable(f"it has no {_ENTRIES[kind]} {name}")


def _is_entry(entry: object, inner: str) -> bool:
    return (
        isinstance(entry, dict)
        and "name" in entry
        and not isinstance(entry["name"], list | dict)
        and isinstance(entry.get(inner) or {}, dict)
    )


def _pem(entry: JSON, name: str) -> Pem | None:
    data = entry.get(f"{name}-data")
    if not data:
        return _text(entry, name) or None
    try:
        return base64.b64decode(data)
    except (ValueError, TypeError):
        raise Unusable(f"{name}-data is not base64") from None


def _text(entry: JSON, name: str) -> str:
    value = entry.get(name) or ""
    if not isinstance(value, str):
        raise Unusable(f"{name} is not a text")
    return value.strip()


def _address(cluster: JSON) -> str:
    """Return the server's address; one without a scheme gets one as in client-go: https if the cluster says how."""
    address = _text(cluster, "server")
    if not address or "://" in address:
        return address
    says_how = ("certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name")
    return f"{'https' if any(map(cluster.get, says_how)) else 'http'}://{address}"


def _absolute(entry: JSON, folder: Path) -> dict[str, Any]:
    files = {
        name: str((folder / value).absolute()) for name in _FILES if isinstance(value := entry.get(name), str) and value
    }
    if isinstance(entry.get("server"), str):
        files["server"] = _address(entry)
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and isinstance(command := plugin.get("command"), str):
        # A name is looked up in PATH, and a path with a slash starts at the file's folder.
        is_path = os.sep in command and not os.path.isabs(command)
        return {**entry, **files, "exec": {**plugin, "command": str(folder / command) if is_path else command}}
    return {**entry, **files}


def _content(path: Path) -> Any:
    """Read a file: one of any size, or YAML that stands for gigabytes, is refused, and values are shown in no error.

    Raises ConnectionSettingsError.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_KUBECONFIG_BYTES + 1)
    except OSError as error:
        raise ConnectionSettingsError(f"cannot read the kubeconfig {path}: {error.strerror or error}") from error
    if len(content) > LARGEST_KUBECONFIG_BYTES:
        raise ConnectionSettingsError(
            f"cannot read the kubeconfig {path}: it is larger than {LARGEST_KUBECONFIG_BYTES >> 20} MiB"
        )
    try:
        return yaml_text.load(content)
    except yaml.YAMLError as error:  # its text may show the line, and a token in it
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"{path}, line {mark.line + 1}" if mark else f"{path}"
        problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise ConnectionSettingsError(
            f"cannot read the kubeconfig {where}: not YAML: {problem}; fix it, or pass another one with --kubeconfig"
        ) from None
