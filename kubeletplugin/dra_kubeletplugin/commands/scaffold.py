"""``dra-kubelet-plugin new``: the files of a driver to begin with, made from ``template/``."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

from dra_api.version import VERSION

from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.settings import PluginSettings

_TEMPLATES = Path(__file__).parent / "template"
_LONGEST_LABEL_CHARACTERS = 40  # of the first label of a name; names of objects are made from it


def create(name: str, folder: Path | None = None, *, network_attached: bool = False) -> list[Path]:
    """Write a driver ``name``, its tests, image and manifests; returns the files.

    With ``network_attached`` a controller publishes and attaches the devices, which belong to no node. The folder is
    called like the first label of the name unless given. Raises SettingsError for a name that no driver can have, and
    for files that exist.
    """
    PluginSettings(driver_name=name)
    short = name.partition(".")[0][:_LONGEST_LABEL_CHARACTERS].rstrip("-")
    words = short.split("-")
    module = "_".join([*words, "driver"])
    values = {
        "name": name,
        "short": short,
        "module": module,
        "program": f"{short}-driver",
        "class_name": "".join(word.capitalize() for word in [*words, "driver"]),
        "variable": "_".join([*words, "device"]).upper(),
        "version": VERSION,
    }
    files = {
        f"{module}.py": "driver.py",
        f"test_{module}.py": "test_driver.py",
        "Dockerfile": "Dockerfile",
        f"{module}.yaml": "driver.yaml",
        "pod.yaml": "pod.yaml",
    }
    if network_attached:
        files = {
            f"{module}.py": "node.py",
            f"test_{module}.py": "test_controller.py",
            f"{module}_controller.py": "controller.py",
            **dict(list(files.items())[2:]),
        }
    folder = folder or Path(short)
    paths = [folder / file for file in files]
    if existing := [str(path) for path in paths if path.exists()]:
        raise SettingsError(f"{', '.join(existing)} exists: choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, template in zip(paths, files.values(), strict=True):
            text = _template(template)
            if network_attached and template in _OF_THE_NODE:
                text = _OF_THE_NODE[template](text)
            path.write_text(Template(text).substitute(values))
            if text.startswith("#!"):
                path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise SettingsError(f"cannot write the driver into {folder}: {error}") from error
    return paths


def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.txt").read_text()


def _with_controller_image(dockerfile: str) -> str:
    *lines, entry = dockerfile.splitlines()
    return "\n".join([*lines, "COPY ${module}_controller.py /usr/local/bin/$program-controller", entry, ""])


def _with_controller(manifest: str) -> str:
    """The node part without the rights and the policy for slices, which the controller writes; and the controller."""
    kept = [part for part in manifest.split("---\n") if "$program-resourceslices" not in part]
    before, _, rest = "---\n".join(kept).partition(
        "  - apiGroups: [resource.k8s.io]\n    resources: [resourceslices]\n"
    )
    return before + rest[rest.index("---\n") :] + _template("controller.yaml")


_OF_THE_NODE: Final = {"Dockerfile": _with_controller_image, "driver.yaml": _with_controller}
