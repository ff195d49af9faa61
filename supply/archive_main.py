"""The start of ``kubectl-dra``, the file that ``archive.py`` makes: unpacks what suits this Python once, and runs it.

Extension modules cannot be imported from within a zip file. They lie in ``only/TAG/`` for each Python and platform, and
what all share in ``common/``; both are unpacked into one folder of the user's cache, named by the content of the file.
It imports the standard library alone, and says in words what an older Python lacks.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import zipfile

BUILD = "BUILD"
"""In the archive: a name for its content."""


def main() -> None:
    """Run kubectl dra. Ends the process with a message where this Python has nothing in the archive."""
    with zipfile.ZipFile(sys.argv[0]) as archive:
        names = archive.namelist()
        tag = tag_here()
        if not any(name.startswith("only/" + tag + "/") for name in names):
            made_for = sorted({name.split("/")[1] for name in names if name.startswith("only/")})
            sys.exit(
                "kubectl dra: this file is made for {}, and not for {}: run it by one of these Pythons, "
                "or install it by: pipx install kopf-dra".format(", ".join(made_for), tag)
            )
        folder = unpacked(archive, tag)
    sys.path.insert(0, folder)
    from dra_operator.kubectl.start import main as run

    run()


def tag_here() -> str:
    """``cp311-linux-x86_64``: the Python and the platform that run this."""
    implementation = "cp" if platform.python_implementation() == "CPython" else platform.python_implementation()
    version = "{}{}".format(*sys.version_info[:2])
    return f"{implementation}{version}-{sys.platform}-{platform.machine()}"


def unpacked(archive: zipfile.ZipFile, tag: str) -> str:
    """The folder with what the tag needs. It is made whole or not at all, for this user alone."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.path.join(cache, "kubectl-dra")
    folder = os.path.join(home, archive.read(BUILD).decode("ascii") + "-" + tag)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        about = os.stat(home)
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            sys.exit(f"kubectl dra: others may write to {home}: run chmod 700 on it, or set XDG_CACHE_HOME")
        if os.path.isdir(folder):
            return folder
        made = tempfile.mkdtemp(dir=home)
    except OSError as error:
        sys.exit(f"kubectl dra: cannot unpack itself: {error}; set XDG_CACHE_HOME to a folder that you may write")
    try:
        for name in archive.namelist():
            for part in ("common/", "only/" + tag + "/"):
                if name.startswith(part):
                    _write(archive, name, os.path.join(made, *name[len(part) :].split("/")))
        os.rename(made, folder)
    except OSError as error:
        if not os.path.isdir(folder):  # or another process was faster
            sys.exit(f"kubectl dra: cannot unpack itself to {home}: {error}")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _write(archive: zipfile.ZipFile, name: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with archive.open(name) as source, open(path, "wb") as target:
        shutil.copyfileobj(source, target)


if __name__ == "__main__":
    main()
