"""Templates of ``-o jsonpath=``: cases of client-go's own table, and the real kubectl where there is one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from dra_operator.kubectl import jsonpath
from dra_operator.kubectl.jsonpath import Template, TemplateError

STORE: Any = {
    "Name": "jsonpath",
    "Book": [
        {"Category": "reference", "Author": "Nigel Rees", "Price": 8.95},
        {"Category": "fiction", "Author": "Evelyn Waugh", "Price": 12.99},
        {"Category": "fiction", "Author": "Herman Melville", "Price": 8.99},
    ],
    "Bicycle": [{"Color": "red", "Price": 19.95, "IsNew": True}, {"Color": "green", "Price": 20.01, "IsNew": False}],
    "Labels": {"engineer": 10, "web/html": 15, "k8s-app": 20, "kubernetes.io/hostname": "127.0.0.1"},
}
POINTS: Any = [{"id": "i1", "x": 4}, {"id": "i2", "x": -2, "z": 1}, {"id": "i5", "x": None, "z": 1}]
CASES = [
    ("hello jsonpath", None, "hello jsonpath"),
    ("{..}", [1, 2, 3], "[1,2,3]"),
    ("{[?(@<5)]}", [2, 6, 3, 7], "2 3"),
    ('{"{"}', None, "{"),
    ("{[1,3,4]}", [0, 1, 2, 3, 4], "1 3 4"),
    ("{[0:2]}", ["Monday", "Tuesday"], "Monday Tuesday"),
    ("hello {.Name}", STORE, "hello jsonpath"),
    ("{$.Labels.web/html}", STORE, "15"),
    ("{.Labels.k8s-app}", STORE, "20"),
    (r"{.Labels.kubernetes\.io/hostname}", STORE, "127.0.0.1"),
    ("{.Labels['kubernetes.io/hostname']}", STORE, "127.0.0.1"),
    ("{.Bicycle[*].Color}", STORE, "red green"),
    ('{range .Bicycle[*]}{ "{" }{ @.* }{ "} " }{end}', STORE, "{red 19.95 true} {green 20.01 false} "),
    ("{..Price}", STORE, "8.95 12.99 8.99 19.95 20.01"),
    ("{...Price}", STORE, "8.95 12.99 8.99 19.95 20.01"),
    ("{.Bicycle}", STORE, json.dumps(STORE["Bicycle"], separators=(",", ":"))),
    ("{.Book[-1:].Author}", STORE, "Herman Melville"),
    ("{..Book[2].Author}", STORE, "Herman Melville"),
    ("{.Bicycle[?(@.IsNew==true)].Color}", STORE, "red"),
    ('{.Book[?(@.Category == "fiction")].Price}', STORE, "12.99 8.99"),
    ("{.hello}", STORE, ""),
    ("before-{.hello}after", STORE, "before-after"),
    ("{[?(@.z)].id}", POINTS, "i2 i5"),
    ("{[0]['id']}", POINTS, "i1"),
    ("{[-1]['x']}", POINTS, "null"),
    ('{range [*]}{.id}{"\\t"}{.x}{"\\n"}{end}', POINTS, "i1\t4\ni2\t-2\ni5\tnull\n"),
    ("{range .Book[*]}{range $.Bicycle[*]}{.Color}{end}{end}", STORE, "redgreen" * 3),
    ("{.Book[::2].Author}", STORE, "Nigel Rees Herman Melville"),
    ("{.Book[0].Author}{' by '}{.Name}", STORE, "Nigel Rees by jsonpath"),
]
WRONG = [
    ("{hello}", "unrecognized identifier hello"),
    ("{.Book[?(@.Price<>10)]}", "unrecognized filter operator <>"),
    ("{range .Labels.*}{@}{end}{end}", "not in range, nothing to end"),
    ("{............Price}", "expected a name"),
    ("{range .Book[*]}{.Author}", "a range has no"),
    ("{.Book", "not closed"),
    ("{.Book[x]}", "invalid array index"),
    ("{.Book[?(Price)]}", "expected @.NAME"),
]


@pytest.mark.parametrize(("template", "value", "text"), CASES)
def test_a_template_is_filled_as_client_go_fills_it(template: str, value: Any, text: str) -> None:
    assert Template(template).filled(value) == text


@pytest.mark.parametrize(("template", "why"), WRONG)
def test_a_template_that_cannot_be_read_is_refused(template: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        Template(template)


@pytest.mark.parametrize("text", [".a.b", "a.b", "{.a.b}", "{ .a.b }", "$.a.b", "['a'].b"])
def test_a_path_is_written_with_and_without_braces(text: str) -> None:
    assert list(jsonpath.Path.of_text(text).of({"a": {"b": 1}})) == [1]


def test_the_real_kubectl_says_the_same(tmp_path: Path) -> None:
    program = which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed: NOT compared with it")
    clusters = [{"name": f"c{n}", "cluster": {"server": f"https://h{n}:{n}"}} for n in range(4)]
    config = {"apiVersion": "v1", "kind": "Config", "clusters": clusters, "contexts": [], "users": []}
    file = tmp_path / "config"
    file.write_text(json.dumps(config))
    for template in (
        "{.clusters[*].name}",
        "{.clusters[1:3].cluster.server}",
        '{range .clusters[*]}{.name}{"\\t"}{.cluster.server}{"\\n"}{end}',
        '{.clusters[?(@.name=="c2")].cluster.server}',
        '{.clusters[?(@.name!="c2")].name}',
        "{.clusters[-1].name} {..server}",
        "{.clusters[0,2].name}",
        "{.absent}x{.clusters[0].cluster}",
    ):
        command = [program, "config", "view", f"--kubeconfig={file}", f"-o=jsonpath={template}"]
        seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert Template(template).filled(config) == seen, template
