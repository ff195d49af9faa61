"""Finding the API server: what a user reads when the settings are wrong."""

from __future__ import annotations

import base64
import json
import os
import ssl
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from authority import Authority
from command import MARK, secret_in
from cryptography.x509.oid import ExtendedKeyUsageOID
from dra_kube import ConnectionSettingsError, Overrides, connection, contexts, namespace_of

TLS = sys.modules["dra_kube.access.credentials"]
CREDENTIALS = sys.modules["dra_kube.access.credentials"]


WITH_CONTEXT = "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
CLUSTER_OF_HALF_A_LETTER = (
    "clusters: [{name: c, cluster: {server: 'https://a:1', certificate-authority-data: abcde}}]\n"
)
WITH_A_PLUGIN = "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: 'true'}}}]\n"


def write(folder: Path, server: str = "https://127.0.0.1:1234/", proxy: str = "", **user: object) -> Path:
    file = folder / "config"
    cluster = {"server": server} | ({"proxy-url": proxy} if proxy else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "dev"}}],
        "clusters": [{"name": "dev", "cluster": cluster}],
        "users": [{"name": "dev", "user": user}],
    }
    file.write_text(yaml.safe_dump(config))
    return file


def test_a_kubeconfig_gives_address_and_token(tmp_path: Path) -> None:
    found = connection(write(tmp_path, token="abc"))
    assert found.host == "https://127.0.0.1:1234"
    assert found.authorization() == "Bearer abc"


def test_basic_auth_is_understood(tmp_path: Path) -> None:
    found = connection(write(tmp_path, username="me", password="pw"))
    assert found.authorization() == "Basic " + base64.b64encode(b"me:pw").decode()


@pytest.mark.parametrize(
    ("server", "own", "no_proxy", "used"),
    [
        ("https://api.example.com", "", "", "http://proxy:3128"),
        ("https://10.96.0.1:443", "", "10.0.0.0/16,.svc", "http://proxy:3128"),
        ("https://10.96.0.1:443", "", "localhost, 10.96.0.0/12", None),
        ("https://10.96.0.1:443", "", "10.96.0.1", None),
        ("https://api.example.com:6443", "", ".example.com", None),
        ("https://api.example.com", "", "*", None),
        ("https://api.example.com", "http://own:3128", "*", "http://own:3128"),
        ("https://127.0.0.1:6443", "", "", None),
        ("https://[::1]:6443", "", "", None),
        ("https://localhost:6443", "", "", None),
        ("https://localhost:6443", "http://own:3128", "", "http://own:3128"),
        ("http://api.example.com", "", "", None),
    ],
)
def test_a_proxy_of_the_environment_counts_where_go_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, own: str, no_proxy: str, used: str | None
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert connection(write(tmp_path, server, own, token="abc")).proxy == used


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        ("", "empty"),
        ("contexts: [", "cannot read"),
        ("kind: Config", "current-context"),
        (WITH_CONTEXT + CLUSTER_OF_HALF_A_LETTER, "certificate-authority-data is not base64"),
        (WITH_CONTEXT + CLUSTER_OF_HALF_A_LETTER + WITH_A_PLUGIN, "cannot read the kubeconfig .*; fix it, or pass"),
    ],
    ids=["missing", "empty", "no-yaml", "no-context", "no-base64", "no-base64-beside-a-plugin"],
)
def test_an_unusable_kubeconfig_is_named_with_the_remedy(tmp_path: Path, content: str | None, says: str) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConnectionSettingsError, match=says) as caught:
        connection(file)
    assert str(file) in str(caught.value)


def test_a_folder_in_place_of_a_kubeconfig_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match=f"{tmp_path} is a folder, not a file"):
        connection(tmp_path)


def embedding(folder: Path, authority: Authority) -> Path:
    """A kubeconfig with its certificate inside."""
    file = write(folder, token="abc")
    config = yaml.safe_load(file.read_text())
    config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(authority.pem).decode()
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
def without_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing like /tmp can be written to; the folder stands for the one in memory."""

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(TLS, "SHARED_MEMORY", str(memory))
    return memory


def test_embedded_certificates_need_no_temporary_folder(without_temporary_folder: Path, tmp_path: Path) -> None:
    authority = Authority.make("of this test")
    found = connection(embedding(tmp_path, authority))
    assert found.tls is not None
    assert len(found.tls.get_ca_certs()) == 1


def test_embedded_certificates_and_keys_leave_no_file_also_if_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package removes its files when the process ends, which a killed one does not do by itself."""
    folder, authority = tmp_path / "temporary", Authority.make("of a third test")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    file = embedding(tmp_path, authority)
    config = yaml.safe_load(file.read_text())
    pems = authority.issue(ExtendedKeyUsageOID.CLIENT_AUTH, "node-1")
    for name, pem in zip(("client-certificate-data", "client-key-data"), pems, strict=True):
        config["users"][0]["user"][name] = base64.b64encode(pem).decode()
    file.write_text(yaml.safe_dump(config))
    for _ in range(2):
        assert connection(file).tls is not None
        assert list(folder.iterdir()) == []


def test_without_any_writable_folder_the_message_says_so(
    without_temporary_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(TLS, "SHARED_MEMORY", str(tmp_path / "file" / "below"))
    with pytest.raises(ConnectionSettingsError, match="mount one at /tmp") as caught:
        connection(embedding(tmp_path, Authority.make("of another test")))
    assert str(tmp_path / "config") in str(caught.value)
    assert connection(write(tmp_path, token="abc")).authorization() == "Bearer abc", "nothing is embedded"


def test_the_environment_variable_is_used_without_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path, token="from-env")))
    assert connection().authorization() == "Bearer from-env"


def with_contexts(folder: Path) -> str:
    """Two contexts, of which the current one names a namespace."""
    config = yaml.safe_load(write(folder).read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    config["contexts"].append({"name": "other", "context": {"cluster": "dev", "user": "dev"}})
    (folder / "config").write_text(yaml.safe_dump(config))
    return str(folder / "config")


@pytest.mark.parametrize(
    ("context", "namespace"),
    [(None, "team"), ("dev", "team"), ("other", "default"), ("unknown", "default")],
)
def test_the_namespace_is_that_of_the_context(tmp_path: Path, context: str | None, namespace: str) -> None:
    assert namespace_of(with_contexts(tmp_path), context) == namespace


def test_a_kubeconfig_without_current_context_has_contexts_all_the_same(tmp_path: Path) -> None:
    config = yaml.safe_load(Path(file := with_contexts(tmp_path)).read_text())
    del config["current-context"]
    Path(file).write_text(yaml.safe_dump(config))
    assert contexts(file) == ["dev", "other"]
    assert (namespace_of(file, "dev"), namespace_of(file)) == ("team", "default")


def test_without_a_kubeconfig_the_namespace_is_default(tmp_path: Path) -> None:
    assert namespace_of(str(tmp_path / "missing")) == "default"


def test_contexts_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_contexts(tmp_path)
    assert contexts(file) == ["dev", "other"]
    monkeypatch.setenv("KUBECONFIG", file)
    assert contexts() == ["dev", "other"]
    with pytest.raises(ConnectionSettingsError, match="cannot read the kubeconfig"):
        contexts(str(tmp_path / "missing"))


def test_an_empty_variable_is_said_like_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConnectionSettingsError, match=r"~/\.kube/config does not exist"):
        connection()


WRONG_CONFIGS = {
    "the token is a list": f"users: [{{name: u, user: {{token: [{MARK}]}}}}]",
    "YAML that ends in a token": f'users: [{{name: u, user: {{token: "{MARK}',
    "a tag before the token": f"users: [{{name: u, user: {{token: !!int {MARK}}}}}]",
    "a token in the place of a mapping": f"users: [{{name: u, user: {MARK}}}]",
    "data that are no base64": f"users: [{{name: u, user: {{client-key-data: {MARK}}}}}]",
    "a token after a tab": f"users:\n\t- token: {MARK}",
}


@pytest.mark.parametrize("wrong", WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_a_wrong_kubeconfig_is_told_without_its_secrets(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "config"
    path.write_text(f"{WITH_CONTEXT}clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n{wrong}")
    for read in (connection, contexts):
        assert secret_in(_complaint(read, path)) is None


@pytest.mark.parametrize(
    "content",
    ["contexts: 5", "contexts: [{name: [a], context: {}}]", "clusters: [{name: {a: b}, cluster: {}}]"],
)
def test_a_kubeconfig_of_other_types_is_a_wrong_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(f"current-context: a\n{content}")
    for read in (connection, contexts):
        assert "expected entries with name and" in _complaint(read, path)
    assert namespace_of(str(path)) == "default"


def test_a_kubeconfig_that_cannot_be_found_or_read_is_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read in (connection, contexts):
        assert "~no-such-user/config cannot be found" in _complaint(read, Path("~no-such-user/config"))
    path = write(tmp_path)
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    for read in (connection, contexts):
        assert _complaint(read, path) == f"cannot read the kubeconfig {path}: Permission denied"
    assert namespace_of(str(path)) == "default"


@pytest.mark.parametrize("user", ["{token: t}", "{exec: {apiVersion: v1, command: 'true'}}"], ids=["plain", "plugin"])
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("insecure-skip-tls-verify: 'false'", "insecure-skip-tls-verify is neither true nor false"),
        ("proxy-url: 5", "proxy-url is not a text"),
        ("tls-server-name: [a]", "tls-server-name is not a text"),
    ],
)
def test_settings_of_a_cluster_that_are_of_another_type_are_not_guessed(
    tmp_path: Path, setting: str, says: str, user: str
) -> None:
    """A quoted false must not leave the server's certificate unverified."""
    path = tmp_path / "config"
    cluster = f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1', {setting}}}}}]\n"
    path.write_text(f"{WITH_CONTEXT}{cluster}users: [{{name: u, user: {user}}}]")
    assert says in _complaint(connection, path)


def test_a_scheme_in_capitals_is_verified_as_well(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"{WITH_CONTEXT}clusters: [{{name: c, cluster: {{server: 'HTTPS://127.0.0.1:1'}}}}]")
    tls = connection(path).tls
    assert tls is not None
    assert tls.verify_mode is ssl.CERT_REQUIRED


def _complaint(read: Callable[[str], object], path: Path) -> str:
    try:
        read(str(path))
    except ConnectionSettingsError as error:
        return str(error)
    return ""


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The token of a pod's service account, which is read again for each request."""
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("one")
    ca.write_bytes(Authority.make("root").pem)
    loader = import_module("kubernetes.config.incluster_config")
    monkeypatch.setattr(loader, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(loader, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setattr(loader.InClusterConfigLoader, "_read_token_file", _reads_always(loader))
    monkeypatch.setattr(CREDENTIALS, "LOOK_UP_SECONDS", 0.0)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return token


def _reads_always(loader: Any) -> Callable[[Any], None]:
    reads = loader.InClusterConfigLoader._read_token_file

    def read(self: Any) -> None:
        reads(self)
        self.token_expires_at = datetime.min

    return read


@pytest.mark.parametrize("fault", ["missing", "empty"])
def test_while_a_token_cannot_be_read_the_former_one_is_used(
    service_account: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    found = connection()
    assert found.authorization() == "Bearer one"
    if fault == "missing":
        service_account.unlink()
    else:
        service_account.write_text("")
    assert [found.authorization() for _ in range(3)] == ["Bearer one"] * 3
    assert ["cannot renew the credentials" in record.getMessage() for record in caplog.records] == [True]
    service_account.write_text("two")
    assert found.authorization() == "Bearer two"


def test_credentials_that_never_were_readable_are_an_error_of_ours(service_account: Path) -> None:
    found = connection()
    service_account.unlink()
    with pytest.raises(ConnectionSettingsError, match="cannot read the credentials"):
        found.authorization()


def from_a_token_file(token: Path) -> dict[str, Any]:
    return {"tokenFile": str(token)}


def from_a_plugin(token: Path) -> dict[str, Any]:
    """One that does not say until when its token is valid."""
    version = "client.authentication.k8s.io/v1"
    said = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "%s"}})
    return {"exec": {"apiVersion": version, "command": "sh", "args": ["-c", f"printf '{said}' $(cat {token})"]}}


@pytest.mark.parametrize("source", [from_a_token_file, from_a_plugin])
def test_credentials_that_the_server_refuses_are_loaded_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: Callable[[Path], dict[str, Any]],
) -> None:
    now = 0.0
    monkeypatch.setattr(CREDENTIALS, "time", SimpleNamespace(monotonic=lambda: now))
    token = tmp_path / "token"
    token.write_text("one")
    file = write(tmp_path, **source(token))
    found = connection(file)
    assert found.authorization() == "Bearer one"
    token.write_text("two")
    now = 5.0
    found.refused("Bearer zero")
    assert found.authorization() == "Bearer one", "the server has not seen this one"
    found.refused("Bearer one")
    now = 10.0
    assert found.authorization() == "Bearer two"
    token.write_text("three")
    found.refused("Bearer two")
    now = 15.0
    assert found.authorization() == "Bearer two", "not again and again"
    now = 30.0
    assert found.authorization() == "Bearer three"
    found.refused("Bearer three")
    if source is from_a_token_file:
        write(tmp_path, **from_a_plugin(token))
        now = 45.0
        assert found.authorization() == "Bearer three"
        assert "names a plugin now: start again" in caplog.text
    file.unlink()
    now = 60.0
    assert found.authorization() == "Bearer three"
    assert "cannot renew the credentials" in caplog.text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "exec: process returned 1"),
        (["/no/such/plugin"], "No such file or directory"),
        (["sh", "-c", "echo session has expired >&2; exit 3"], "session has expired"),
    ],
)
def test_a_plugin_that_gives_no_credentials_is_an_error_and_nothing_is_asked_without(
    tmp_path: Path, command: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command[0], "args": command[1:]}
    with pytest.raises(ConnectionSettingsError, match=f"the exec plugin {command[0]} gave no credentials: .*{said}"):
        connection(write(tmp_path, exec=plugin))
    assert caplog.messages == [], "the error says it"


@pytest.mark.parametrize(
    "proxy", ["http://user:s3cret/x@proxy:3128", "http://user:s3cret#x@proxy:3128", "http://:s3cret@"]
)
def test_a_proxy_that_cannot_be_read_is_named_without_its_password(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(ConnectionSettingsError, match=r"cluster's proxy-url in .* is not an address such as") as caught:
        connection(write(tmp_path, "https://api.example.com", proxy))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("users", [None, [], [{"name": "other"}], [{"name": "dev", "user": {"password": "x"}}]])
def test_a_context_without_credentials_is_used_without_any(tmp_path: Path, users: Any) -> None:
    file = write(tmp_path)
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"users": users}))
    assert connection(file).authorization() is None


def two_of_each(folder: Path) -> str:
    """Contexts, clusters and users ``a`` and ``b``, of which ``a`` is the current context."""
    config = {
        "current-context": "a",
        "contexts": [{"name": it, "context": {"cluster": it, "user": it, "namespace": f"ns-{it}"}} for it in "ab"],
        "clusters": [{"name": it, "cluster": {"server": f"http://{it}"}} for it in "ab"],
        "users": [{"name": it, "user": {"token": f"token-{it}"}} for it in "ab"],
    }
    file = folder / "both"
    file.write_text(yaml.safe_dump(config))
    return str(file)


@pytest.mark.parametrize(
    ("context", "overrides", "host", "token"),
    [
        (None, Overrides(), "http://a", "Bearer token-a"),
        ("b", Overrides(), "http://b", "Bearer token-b"),
        (None, Overrides(cluster="b"), "http://b", "Bearer token-a"),
        (None, Overrides(user="b"), "http://a", "Bearer token-b"),
        ("b", Overrides(cluster="a", user="a"), "http://a", "Bearer token-a"),
        (None, Overrides(server="http://other:1"), "http://other:1", "Bearer token-a"),
        (None, Overrides(server="other:1"), "http://other:1", "Bearer token-a"),
        (None, Overrides(token="mine"), "http://a", "Bearer mine"),
        (None, Overrides(server="http://other", token="mine", user="b"), "http://other", "Bearer mine"),
    ],
)
def test_a_command_line_says_what_is_different(
    tmp_path: Path, context: str | None, overrides: Overrides, host: str, token: str
) -> None:
    found = connection(two_of_each(tmp_path), context, overrides)
    assert (found.host, found.authorization()) == (host, token)


@pytest.mark.parametrize("overrides", [Overrides(cluster="none"), Overrides(user="none", server="http://x")])
def test_a_name_that_is_not_there_is_an_error(tmp_path: Path, overrides: Overrides) -> None:
    with pytest.raises(ConnectionSettingsError, match=r"it has no (cluster|user) none"):
        connection(two_of_each(tmp_path), None, overrides)


@pytest.mark.parametrize("source", [from_a_token_file, from_a_plugin])
def test_an_address_without_a_scheme_is_asked_by_tls_if_the_cluster_says_how(
    tmp_path: Path, source: Callable[[Path], dict[str, Any]]
) -> None:
    (tmp_path / "token").write_text("t")
    file = write(tmp_path, "127.0.0.1:6443", **source(tmp_path / "token"))
    assert connection(file).host == "http://127.0.0.1:6443"
    config = yaml.safe_load(file.read_text())
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    file.write_text(yaml.safe_dump(config))
    assert connection(file).host == "https://127.0.0.1:6443"
    assert connection(file, None, Overrides(server="other")).host == "https://other"


def test_an_address_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    found = connection(None, None, Overrides(server="http://h:8080", token="t"))
    assert (found.host, found.authorization()) == ("http://h:8080", "Bearer t")


def test_the_first_of_several_files_wins_and_paths_start_at_their_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "token").write_text("from-file\n")
    first = {
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }
    second = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "http://k"}}],
        "users": [{"name": "u", "user": {"token": "second"}}],
    }
    (tmp_path / "one" / "config").write_text(yaml.safe_dump(first))
    (tmp_path / "two").write_text(yaml.safe_dump(second))
    found = connection(f"{tmp_path / 'one' / 'config'}{os.pathsep}{tmp_path / 'two'}")
    assert (found.host, found.authorization()) == ("http://k", "Bearer from-file")
