"""A small system as an image, made of programs of this machine: no registry is asked, nothing is installed."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

NAME = "localhost/foliot-test-system"
PROGRAMS = (
    "sh", "cat", "echo", "env", "head", "id", "kill", "ln", "ls", "mkfifo", "mount", "printf", "pwd", "rm", "setsid",
    "sleep", "stty", "tail", "touch", "true", "false", "yes",
)  # fmt: skip


@cache
def system_image(cli: str) -> str:
    """The image on the engine `cli`, pinned; made when it is not there."""
    tag = f"{NAME}:{sys.version_info[0]}{sys.version_info[1]}"
    if _asked(cli, "image", "inspect", tag).returncode:
        done = _asked(cli, "import", "-", tag, given=_archive())
        assert done.returncode == 0, done.stderr.decode()
    # docker gives a digest only to what came from a registry; its id says as much.
    digests = _asked(cli, "image", "inspect", "--format", "{{range .RepoDigests}}{{.}} {{end}}", tag).stdout.decode()
    if digests.split():
        return digests.split()[0]
    return "sha256:" + _asked(cli, "image", "inspect", "--format", "{{.Id}}", tag).stdout.decode().strip()[-64:]


def _asked(cli: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([cli, *words], input=given, capture_output=True, timeout=120)


def _archive() -> bytes:
    """A tar file of the programs, their libraries, and a Python; as `/usr`, with the usual links to it."""
    python = os.path.realpath("/usr/bin/python3")
    paths = {f"/usr/bin/{name}": os.path.realpath(found) for name in PROGRAMS if (found := shutil.which(name))}
    if os.path.exists(python):
        paths["/usr/bin/python3"] = python
    libraries = {library for path in paths.values() for library in _libraries(path)}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run", "workspace", "usr/bin", "usr/lib", "usr/lib64"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for link in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            archive.addfile(entry)
        for target, source in {**paths, **{_in_usr(each): os.path.realpath(each) for each in libraries}}.items():
            archive.add(source, target.lstrip("/"), filter=_plain)
        if os.path.exists(python):
            found = _said(python, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))")
            archive.add(found, _in_usr(found).lstrip("/"), filter=_standard)
            for each in Path(found, "lib-dynload").glob("*.so"):
                for library in set(_libraries(str(each))) - libraries:
                    libraries.add(library)
                    archive.add(os.path.realpath(library), _in_usr(library).lstrip("/"), filter=_plain)
    return made.getvalue()


def _libraries(path: str) -> list[str]:
    return re.findall(r"(/\S+) \(0x", _said("ldd", path))


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def _in_usr(path: str) -> str:
    return path if path.startswith("/usr/") else f"/usr{path}"


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mode |= 0o555
    return entry


def _standard(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = {"__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "pydoc_data", "lib2to3"}
    if left_out & set(entry.name.split("/")) or "/dist-packages" in entry.name or "/site-packages" in entry.name:
        return None
    entry.uid = entry.gid = 0
    entry.mode |= 0o444
    return entry
