"""The page of ``kubectl dra ui``, by HTTP: who is let in, what is answered, and that it needs nothing from outside."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from dra_api.command_line import shell
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, PODS, RESOURCE_SLICES, Api, connection
from dra_operator.kubectl import serving as newest
from dra_operator.kubectl.cli import main, parser
from dra_operator.kubectl.ui.lines import JSON
from dra_operator.kubectl.ui.server import FILES, PAGE, running
from dra_operator.kubectl.ui.view import View
from waiting import until

CLUSTER = Path(__file__).parent / "cluster.yaml"
CAUSES = CLUSTER.with_name("causes.yaml")
BIG_NODE = CLUSTER.with_name("big-node.yaml")
SCRIPTS = sorted(PAGE.glob("*.js"))


def options(*words: str) -> Any:
    return parser(["ui"]).parse_args(["ui", *words])


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def asked(http: ClientSession, url: str, **headers: str) -> tuple[int, Any]:
    """Status, and the value or text of the answer."""
    async with http.get(url, headers=headers) as answer:
        is_json = answer.content_type == "application/json"
        return answer.status, await answer.json() if is_json else await answer.text()


async def test_only_our_own_page_is_answered_and_every_answer_is_locked_in(http: ClientSession) -> None:
    async with running(options("--from", str(CLUSTER))) as address:
        root = address.rsplit("/", 2)[0]
        port = root.rpartition(":")[2]
        refused: list[tuple[str, dict[str, str]]] = [
            (f"{root}/", {}),
            (f"{root}/api/overview", {}),
            (f"{root}/wrong-token/", {}),
            (f"{root}/wrong-token/api/overview", {}),
            (address, {"Host": f"dra.example.com:{port}"}),
            (address, {"Host": "127.0.0.1:1"}),
            (f"{address}api/overview", {"Origin": "http://evil.example.com"}),
            (f"{address}api/overview", {"Origin": "null"}),
            (f"{address}api/overview", {"Sec-Fetch-Site": "cross-site"}),
            (f"{address}api/overview", {"Sec-Fetch-Site": "same-site"}),
        ]
        for url, headers in refused:
            assert (await asked(http, url, **headers))[0] == 403, (url, headers)
        own = {"Origin": root, "Sec-Fetch-Site": "same-origin"}
        assert (await asked(http, f"{address}api/overview", **own))[0] == 200
        assert (await asked(http, address.replace("127.0.0.1", "localhost"), Host=f"localhost:{port}"))[0] == 200
        for url in (address, f"{address}absent", f"{root}/"):
            async with http.get(url) as answer:
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Cache-Control"] == "no-store"
        async with http.post(f"{address}api/overview") as answer:
            assert answer.status == 405
    assert not (await _is_open(int(port)))


async def test_a_request_without_a_path_is_refused_like_others(caplog: pytest.LogCaptureFixture) -> None:
    async with running(options("--from", str(CLUSTER))) as address:
        place = address.split("/")[2]
        reader, writer = await asyncio.open_connection(*place.split(":"))
        writer.write(f"OPTIONS * HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()
    assert not caplog.records, "it costs a stranger nothing to send them"


async def test_a_page_of_another_origin_may_ask_if_the_person_named_it(http: ClientSession) -> None:
    origin, cross = "http://localhost:4466", {"Sec-Fetch-Site": "cross-site"}
    async with running(options("--from", str(CLUSTER), "--allow-origin", origin)) as address:
        async with http.get(f"{address}api/overview", headers={"Origin": origin, **cross}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, origin)
        root = address.rsplit("/", 2)[0]
        for url, headers in (
            (f"{address}api/overview", {"Origin": "http://localhost:4467", **cross}),
            (f"{address}api/overview", {"Origin": "null", **cross}),
            (f"{address}api/overview", cross),
            (f"{root}/wrong/api/overview", {"Origin": origin, **cross}),
        ):
            async with http.get(url, headers=headers) as answer:
                assert answer.status == 403, headers
                assert answer.headers.get("Access-Control-Allow-Origin") in (None, origin)


async def test_a_page_that_is_a_file_may_ask_if_the_person_said_so(http: ClientSession) -> None:
    """As the desktop app of Headlamp: the token alone keeps other such pages out."""
    headers = {"Origin": "null", "Sec-Fetch-Site": "cross-site"}
    async with running(options("--from", str(CLUSTER), "--allow-origin", "null")) as address:
        async with http.get(f"{address}api/overview", headers=headers) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "null")
        async with http.get(f"{address.rsplit('/', 2)[0]}/wrong/api/overview", headers=headers) as answer:
            assert answer.status == 403


@pytest.mark.parametrize(
    "text", ["*", "NULL", "file://", "localhost:4466", "http://a/b", "http://A", "http://a:99999999", ""]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        options("--allow-origin", text)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("http://localhost:80", "http://localhost"),
        ("https://headlamp.example.com:443", "https://headlamp.example.com"),
        ("https://a:80", "https://a:80"),
        ("http://a:8080", "http://a:8080"),
        ("http://a:180", "http://a:180"),
    ],
)
def test_an_origin_is_what_browsers_send_which_is_no_usual_port(text: str, sent: str) -> None:
    assert options("--allow-origin", text).allow_origin == [sent]


async def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_the_page_shows_devices_holders_and_what_waits(http: ClientSession) -> None:
    async with running(options("--from", str(CAUSES))) as address:
        _, shown = await asked(http, f"{address}api/overview")
        assert shown["totals"] == {"all": 7, "taken": 2, "tainted": 1, "free": 2, "shared": 1, "unusable": 1}
        nodes = {node: [condition, *counts] for node, _, condition, *counts in shown["cells"]}
        assert nodes["gpu-3"] == ["cordoned", 0, 0, 1, 0, 0, 0]
        assert (shown["empty"], shown["waiting"]) == (1, 24)
        _, lines = await asked(http, f"{address}api/tiles?offset=0&limit=1")
        assert lines["lines"][0]["tiles"][0] == ["gpu.example.com/gpu-1/gpu-0", "taken", "ml/train-gpu"]
        _, again = await asked(http, f"{address}api/overview?known={shown['tag']}")
        assert again == {name: shown[name] for name in ("revision", "taken", "live", "error", "tag", "history")}
        assert shown["history"] == [[shown["taken"], 7, 3, 24, False]]
        _, device = await asked(http, f"{address}api/device?id=gpu.example.com/gpu-3/gpu-0")
        assert (device["holders"][0]["claim"], device["holders"][0]["age"]) == ("web/part", "60s")
        assert device["capacity"]["memory"] == {"total": "40Gi", "left": "30Gi"}
        _, waiting = await asked(http, f"{address}api/waiting?sort=name&offset=0&limit=200")
        assert (len(waiting["rows"]), waiting["total"], waiting["judged"]) == (24, 24, False)
        assert (await asked(http, f"{address}api/judge"))[0] == 200
        _, waiting = await asked(http, f"{address}api/waiting?sort=-name&offset=20&limit=200&find=ml/+typo-in-value")
        assert (waiting["total"], waiting["rows"], waiting["judged"]) == (1, [], True)
        _, waiting = await asked(http, f"{address}api/waiting?sort=name&offset=0&limit=1&find=ml/+typo-in-value")
        assert waiting["rows"][0]["command"] == shell(
            "kubectl", "dra", "why", f"--from={CAUSES}", "-n", "ml", "--", "pod", "typo-in-value"
        )
        assert "0/5 nodes" in waiting["rows"][0]["cause"]
        _, why = await asked(http, f"{address}api/why?kind=pod&key=ml/typo-in-value")
        assert why["lines"][0] == "pod ml/typo-in-value would fit 0 of 5 nodes"
        assert any('write "h100" instead of "h010"' in fix["text"] for fix in why["fixes"])
        _, again = await asked(http, f"{address}api/device?id=gpu.example.com/gpu-3/gpu-0")
        assert again == device, "the changes that were tried are taken back"


async def test_a_node_is_shown_as_a_tree_and_what_is_absent_or_unasked_is_said_to_be(http: ClientSession) -> None:
    async with running(options("--from", str(BIG_NODE))) as address:
        _, tree = await asked(http, f"{address}api/topology?node=big-1")
        assert [child["name"] for child in tree["children"]] == ["0", "1", "loop"]
        for question in (
            "device?id=a/b/c",
            "topology?node=absent",
            "class?name=absent",
            "why?kind=pod&key=a/b",
            "why?kind=claim&key=a/b",
        ):
            assert (await asked(http, f"{address}api/{question}"))[0] == 404, question
        refused = (
            *("device", "topology?node=", f"why?kind=pod&key={'x' * 2000}", "why?kind=node&key=a"),
            *("overview?group=colour", "overview?state=broken", "overview?order=size", "waiting?offset=0&limit=1"),
            *("waiting?sort=size&offset=0&limit=1", "waiting?sort=name&offset=-1&limit=1"),
            *("claims?sort=name&offset=0&limit=201", "classes?sort=name&offset=0&limit=1e1"),
            *("tiles?offset=0", f"tiles?offset={'9' * 500}&limit=1"),
        )
        for question in refused:
            assert (await asked(http, f"{address}api/{question}"))[0] == 400, question


async def test_news_of_the_cluster_are_shown_and_a_lost_cluster_is_told(
    http: ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_operator.kubectl.serving.READ_SECONDS", 0.0)
    kubeconfig = tmp_path / "kubeconfig"
    async with AsyncExitStack() as stack:
        apiserver = await stack.enter_async_context(DevApiServer())
        apiserver.write_kubeconfig(kubeconfig)
        async with running(options("--kubeconfig", str(kubeconfig))) as address:
            _, before = await asked(http, f"{address}api/overview")
            assert (before["totals"], before["live"]) == ({"all": 0}, True)
            await publish(str(kubeconfig))

            async def has_device() -> bool:
                news = (await asked(http, f"{address}api/overview?known={before['revision']}"))[1]
                return bool(news.get("totals") == {"all": 1, "free": 1})

            await until("the page shows the new device", has_device)
            await stack.aclose()

            async def has_error() -> bool:
                news = (await asked(http, f"{address}api/overview"))[1]
                return bool(news["error"]) and news["totals"]["all"] == 1

            await until("the page tells of the error", has_error)


async def publish(kubeconfig: str) -> None:
    """A device."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "gpu-0"}]}
    async with Api(connection(kubeconfig)) as api:
        await api.create(RESOURCE_SLICES, {"metadata": {"name": "one"}, "spec": spec})


def test_what_cannot_be_served_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--from", str(tmp_path / "absent.json")]) == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port), "--from", str(CLUSTER)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_the_page_is_complete_and_needs_nothing_from_outside() -> None:
    assert {name or "index.html" for name in FILES} == {file.name for file in PAGE.iterdir()}
    for file in PAGE.iterdir():
        text = file.read_text()
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), file.name
    used = {name for file in SCRIPTS for name in re.findall(r'from "\./([\w.]+)"', file.read_text())}
    assert used < set(FILES)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_script_makes_no_markup_and_no_code_of_texts(file: Path) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|setAttribute\(\"(on|style)"
    )
    assert re.search(forbidden, file.read_text()) is None


class Elements(HTMLParser):
    """Each element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_has_no_code_in_its_markup_and_names_what_scripts_look_for() -> None:
    elements = Elements((PAGE / "index.html").read_text()).found
    assert not [attributes for _, attributes in elements if any(name.startswith("on") for name in attributes)]
    assert not [attributes for _, attributes in elements if "style" in attributes]
    assert dict(elements)["html"]["lang"] == "en"
    ids = {attributes["id"] for _, attributes in elements if "id" in attributes}
    wanted = {name for file in SCRIPTS for name in re.findall(r'byId\("([\w-]+)"\)', file.read_text())}
    assert wanted <= ids
    related = {
        attributes[name]
        for _, attributes in elements
        for name in ("aria-labelledby", "aria-controls", "aria-describedby")
        if name in attributes
    }
    assert related <= ids


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_apart_in_both_themes(theme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", (PAGE / "app.css").read_text(), flags=re.DOTALL)
    colour = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[theme]))
    for ground in ("ground", "raised"):
        for ink in ("ink", "quiet", "accent", "alarm-ink"):
            assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
        for state in ("free-line", "taken", "shared", "tainted", "unusable"):
            assert contrast(colour[state], colour[ground]) >= 3, (state, ground)
    assert contrast(colour["alarm-ink"], colour["alarm"]) >= 4.5


async def test_a_question_that_takes_long_holds_up_neither_facts_nor_reads(
    http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, why = threading.Event(), threading.Event(), View.why

    def why_when_told(view: View, kind: str, key: str) -> JSON | None:
        begun.set()
        assert may_end.wait(60)
        return why(view, kind, key)

    monkeypatch.setattr(View, "why", why_when_told)
    monkeypatch.setattr(newest, "READ_SECONDS", 0.0)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevApiServer())
        kubeconfig = server.write_kubeconfig(server.ca_file.with_name("kubeconfig"))
        api = await stack.enter_async_context(Api(connection(str(kubeconfig))))
        pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
        await api.create(PODS, pod, "default")
        address = await stack.enter_async_context(running(options("--kubeconfig", str(kubeconfig))))
        asking = asyncio.create_task(asked(http, f"{address}api/why?kind=pod&key=default/web"))
        await asyncio.to_thread(begun.wait)
        assert (await asked(http, f"{address}api/device?id=absent"))[0] == 404
        await api.create(NODES, {"metadata": {"name": "one"}})

        async def is_read() -> bool:
            return bool((await asked(http, f"{address}api/overview"))[1]["empty"])

        await until("the view has the new node", is_read)
        may_end.set()
        assert (await asking)[0] == 200


async def test_who_asks_nothing_but_why_is_answered_from_a_new_read_or_told_that_there_is_none(
    http: ClientSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the plugin of Headlamp does, beside which no page is open."""
    monkeypatch.setattr(newest, "READ_SECONDS", 0.0)
    monkeypatch.setattr(newest, "OLDEST_SECONDS", 0.0)
    async with AsyncExitStack() as stack, AsyncExitStack() as cluster:
        server = await cluster.enter_async_context(DevApiServer())
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        api = await cluster.enter_async_context(Api(connection(str(kubeconfig))))
        address = await stack.enter_async_context(running(options("--kubeconfig", str(kubeconfig))))
        why = f"{address}api/why?kind=pod&key=default/web"
        assert (await asked(http, why))[0] == 404
        await api.create(
            PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}, "default"
        )

        async def is_known() -> bool:
            status, answer = await asked(http, why)
            return status == 200 and not answer["error"]

        await until("the pod is known", is_known)
        await cluster.aclose()

        async def is_old() -> bool:
            status, answer = await asked(http, why)
            return status == 200 and bool(answer["error"]) and "default/web" in answer["lines"][0]

        await until("the answer says that it is old", is_old)


async def test_the_answer_has_all_that_the_plugin_of_headlamp_reads(http: ClientSession) -> None:
    source = (Path(__file__).parents[2] / "headlamp/src/why.ts").read_text()
    declared = re.search(r"export interface Answer \{(.*?)^\}", source, re.DOTALL | re.MULTILINE)
    assert declared is not None
    fields = dict(re.findall(r"^  (\w+): (.+);$", declared[1], re.MULTILINE))
    asks = re.search(r"\$\{address\}(api/why)\?", source)
    assert asks is not None
    async with running(options("--from", str(CAUSES))) as address:
        _, answer = await asked(http, f"{address}{asks[1]}?kind=pod&key=ml/typo-in-value")
        pattern = re.search(r"/(\^http.*?\$)/\.test", source)
        assert pattern is not None
        assert re.fullmatch(pattern[1].replace("\\/", "/"), address), "the plugin takes the address that is printed"
    of_types = {
        "boolean": bool,
        "number": int,
        "string": str,
        "string[]": list,
        "{ node: string; text: string }[]": list,
    }
    assert {name: type(answer[name]) for name in fields} == {name: of_types[kind] for name, kind in fields.items()}
    assert answer["fixes"]
    assert all(isinstance(fix[name], str) for fix in answer["fixes"] for name in ("node", "text"))
