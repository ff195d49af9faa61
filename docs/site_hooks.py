"""What mkdocs does beyond rendering pages: the README as home page, the reference, links that lead out of docs/.

Nothing on the site is loaded from elsewhere: pictures of the README are files of docs/.

Pages are written for readers of the repository, where ``../examples/`` is a folder. On the site such a link leads to
the repository on the web, and a link of the README to a page of docs/ leads to the page.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
WEB = "https://github.com/kopf-dra/kopf-dra/blob/main/"
RAW = "https://raw.githubusercontent.com/kopf-dra/kopf-dra/main/"
REFERENCE = {
    "dra_kubeletplugin": ("Plugin library", ["dra_kubeletplugin", "dra_kubeletplugin.testing"]),
    "dra_kube": ("API client", ["dra_kube"]),
    "dra_api": ("API objects", ["dra_api", "dra_api.references"]),
    "dra_cdi": ("CDI files", ["dra_cdi"]),
    "dra_cel": ("CEL", ["dra_cel"]),
    "dra_ledger": ("Ledger", ["dra_ledger.ledger", "dra_ledger.entries"]),
    "allocator": ("Allocator", ["dra_operator.allocator"]),
    "devcluster": (
        "Development cluster",
        ["dra_devcluster.apiserver", "dra_devcluster.agent", "dra_devcluster.cluster"],
    ),
}
"""The public packages by page: title, modules."""

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file has."""
    home = (ROOT / "README.md").read_text().replace(f"]({WEB}docs/", "](").replace(f"]({RAW}docs/", "](")
    files.append(File.generated(config, "index.md", content=home))
    for page, (title, modules) in REFERENCE.items():
        parts = [
            f"# {title}",
            *(f"## `{module}`\n\n::: {module}\n    options: {{heading_level: 3}}" for module in modules),
        ]
        files.append(File.generated(config, f"reference/{page}.md", content="\n\n".join(parts) + "\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to files outside of docs/ to the repository on the web."""
    folder = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent

    def led(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        path = normpath(str(folder / target))
        if ":" in target or path.startswith("docs/"):
            return link[0]
        return f"]({WEB}{path}{anchor})"

    return _LINK.sub(led, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Refuse a picture from elsewhere: the site shows its own, also where nothing else is reached."""
    if foreign := re.findall(r'<img[^>]* src="(https?:[^"]+)"', html):
        raise PluginError(f"{page.file.src_uri}: {foreign[0]} is not of this site; link a file in docs/")
    return html
