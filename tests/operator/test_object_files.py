"""Where ``-f`` finds Kubernetes objects, and what is said of files that hold none."""

from __future__ import annotations

import errno
import gc
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_api.meta import Object, ObjectMeta, Resource
from dra_api.yaml_text import YAML_LEVELS, loader
from dra_operator.commands.file_items import BadInput, documents
from dra_operator.commands.object_files import Item, is_snapshot, read_objects
from dra_operator.sources.kinds import WATCHED

Json = dict[str, Any]


def class_(name: str) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}


def names(*paths: str | Path) -> list[str]:
    return [found.metadata.name for found in read_objects(map(str, paths))]


TEXTS: dict[str, tuple[str, list[Any]]] = {
    "JSON": ('{"a": [1, 2.5, true, null, "x"]}', [{"a": [1, 2.5, True, None, "x"]}]),
    "JSON lines": ('{"a": 1}\n{"b": [2]}\n', [{"a": 1}, {"b": [2]}]),
    "JSON, one document behind the other": ('{\n "a": 1\n}{"b": 2}', [{"a": 1}, {"b": 2}]),
    "JSON that is YAML with two documents": ('{"a": 1}\n---\n{"b": 2}', [{"a": 1}, {"b": 2}]),
    "a list in JSON": ("\n [1]", [[1]]),
    "YAML": ("a: 1\nb: [x, 'y']\n", [{"a": 1, "b": ["x", "y"]}]),
    "several documents, one of them empty": ("a: 1\n---\n---\nb: 2\n", [{"a": 1}, None, {"b": 2}]),
    "YAML in flow style": ("{a: 1, b: [x]}", [{"a": 1, "b": ["x"]}]),
    "a timestamp without quotes": ("a: 2030-01-01T00:00:00Z", [{"a": "2030-01-01T00:00:00Z"}]),
    "an anchor": ("a: &it {b: 1}\nc: *it", [{"a": {"b": 1}, "c": {"b": 1}}]),
    "as deep as allowed": ("[" * YAML_LEVELS + "]" * YAML_LEVELS, [json.loads("[" * YAML_LEVELS + "]" * YAML_LEVELS)]),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "found"), TEXTS.values(), ids=TEXTS.keys())
def test_documents_are_read(text: str, found: list[Any]) -> None:
    assert documents(text) == found


@pytest.mark.parametrize("resource", WATCHED, ids=str)
def test_every_kind_that_the_operator_watches_is_read_from_files(tmp_path: Path, resource: Resource) -> None:
    item = {"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "it"}}
    needed: dict[str, Json] = {"ResourcePoolStatusRequest": {"spec": {"driver": "drv"}}}
    path = tmp_path / "it.json"
    path.write_text(json.dumps({**item, **needed.get(resource.kind, {})}))
    [found] = read_objects([str(path)])
    assert found.key == ("default/it" if resource.namespaced else "it")


def test_a_kind_that_the_operator_does_not_watch_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "it"}}))
    assert read_objects([str(path)]) == []


NESTED = "(?s)not YAML: .*(nested more than 100 levels deep|exceeded maximum nesting depth)"
"""The latter is what libyaml says since 0.2.6."""
BAD: dict[str, tuple[str, str]] = {
    "JSON that ends too early": (
        '{"a": 1',
        "not JSON: Input data was truncated; not YAML: while parsing a flow mapping",
    ),
    "JSON lines that end too early": ('{"a": 1}\n{"a": 2}\n{"a"', "not JSON: document 3: Expecting ':'"),
    "JSON nested too deep": ("[" * 100_000, NESTED),
    "YAML nested too deep": ("- " * 3000, NESTED),
    "YAML indented too deep": ("\n".join(" " * level + "a:" for level in range(3000)), NESTED),
    "a tag that makes objects": ("!!python/name:os.system", "could not determine a constructor"),
    "an open bracket": ("a: [", "not YAML: while parsing a flow node"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_with_a_text_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        documents(text)


def test_yaml_without_the_c_library_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_api.yaml_text.SAFE", loader(yaml.SafeLoader))
    for text, found in TEXTS.values():
        assert documents(text) == found
    with pytest.raises(ValueError, match="nested more than"):
        documents("- " * 200)


def test_a_directory_stands_for_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(class_("two")))
    (tmp_path / "a.json").write_text(json.dumps(class_("one")))
    (tmp_path / "c.yml").write_text(yaml.safe_dump(class_("three")))
    (tmp_path / "README.md").write_text("a: [")
    (tmp_path / "deeper.yaml").mkdir()
    assert names(tmp_path) == ["one", "two", "three"]


def test_a_directory_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{tmp_path}: no .yaml, .yml or .json file in this directory"):
        names(tmp_path)


def test_a_path_that_cannot_be_looked_at_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="aaa: File name too long"):
        names("a" * 5000)
    assert not is_snapshot("a" * 5000)

    def refused(self: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(BadInput, match=f"{tmp_path}: Permission denied"):
        names(tmp_path)


def test_a_dash_stands_for_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(class_("two")))
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(class_("one"))))
    assert names("-", tmp_path) == ["one", "two"]
    monkeypatch.setattr("sys.stdin", io.StringIO("kind: 7"))
    with pytest.raises(BadInput, match="-: document 1: expected a Kubernetes object"):
        names("-")


def test_a_value_that_contains_itself_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.write_text("kind: Node\nmetadata: &m\n  name: n\n  labels: *m\n")
    with pytest.raises(BadInput, match="not YAML: a value contains itself by an alias"):
        names(path)


def many(number: int) -> Json:
    """A list of claims of 4 kB, as ``kubectl get`` writes it."""
    marks = {f"mark-{it:02d}.example.com": "x" * 40 + ": - & *y" for it in range(60)}
    meta = {"namespace": "ns", "annotations": marks, "labels": {"text": "a\n- b\n\n  c\n"}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": {}}}
    items = [{**about, "metadata": {**meta, "name": f"claim-{it}"}} for it in range(number)]
    return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}


def separate(body: Json) -> Json:
    """The same without common parts: an alias stands for these in YAML."""
    found: Json = json.loads(json.dumps(body))
    return found


FORMS: Mapping[str, Callable[[Json], str]] = {
    "JSON": json.dumps,
    "indented JSON": lambda body: json.dumps(body, indent=4),
    "a list in JSON": lambda body: json.dumps(body["items"]),
    "YAML of kubectl": lambda body: yaml.safe_dump(separate(body), width=80),
    "YAML of kubectl, with a comment": lambda body: yaml.safe_dump(separate(body)).replace("items:\n", "items:\n# x\n"),
    "several documents": lambda body: yaml.safe_dump_all(separate(body)["items"]),
    "YAML with aliases": yaml.safe_dump,
}
IN_PARTS = {"JSON", "indented JSON", "a list in JSON", "YAML of kubectl"}
"""All values of the other forms are in memory at once."""


@pytest.mark.parametrize("form", FORMS)
def test_a_large_file_is_read_as_a_short_one(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short").write_text(FORMS[form](many(12)))
    short = read_objects([str(tmp_path / "short")])
    monkeypatch.setattr("dra_operator.commands.file_items._COMPOSED_BYTES", 0)
    texts: list[object] = []

    def keep(item: Item, obj: Object) -> Object:
        texts.append(item.text)
        assert item.read_again() == obj
        return obj

    assert read_objects([str(tmp_path / "short")], keep) == short
    assert len(short) == 12
    assert all(texts) is (form in IN_PARTS)


@pytest.mark.parametrize("form", sorted(IN_PARTS))
def test_a_dump_takes_little_more_memory_than_its_text(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_operator.commands.file_items._COMPOSED_BYTES", 0)
    path = tmp_path / "dump"
    path.write_text(FORMS[form](many(60 if "YAML" in form else 600)))
    read_objects([str(path)])  # the first use imports modules and compiles patterns
    gc.collect()
    tracemalloc.start()
    read_objects([str(path)], lambda _, obj: type(obj)(metadata=ObjectMeta(name=obj.metadata.name)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * path.stat().st_size + 700_000


def test_long_yaml_of_another_form_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_operator.commands.object_files.LONGEST_YAML_BYTES", 1 << 20)
    (tmp_path / "long.yaml").write_text("---\na: 1\n" * 130_000)
    with pytest.raises(BadInput, match=r"more than 1 MiB .* write JSON \(kubectl get -o json\)"):
        read_objects([str(tmp_path / "long.yaml")])
