"""The program of an MCP server in its fence: what of this machine it is shown, and the command line to start it by.

A fence shows `/usr` and `/bin`. Of a program that lies elsewhere the file itself is shown, read-only, and what it
plainly belongs to: the programs and libraries of a Python environment or of an installation of Python or Node, the
`node_modules` that it lies in, the interpreter that its first line names. The script that an interpreter is given is
part of the program. No other file of the machine is seen, whatever the arguments name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from foliot.sandbox.base import Mount
from foliot.sandbox.bubblewrap import SYSTEM
from foliot.tools.fences import lies_in

_MODULES: Final = "node_modules"
_MOST_LINKS: Final = 16
# How deep interpreters of interpreters are followed: a script, `env`, what `env` finds.
_MOST_INTERPRETERS: Final = 4
_FIRST_LINE: Final = 512
_INTERPRETERS: Final = ("python", "pypy", "node", "bun", "ruby", "perl", "bash", "dash", "sh")
# Options of interpreters that take the next word with them, and those that stand for a script.
_WITH_VALUE: Final = frozenset({"-X", "-W", "-r", "--require", "--import", "--loader", "--env-file"})
_INSTEAD: Final = frozenset({"-c", "-m", "-e", "--eval", "-p", "--print", "-E", "-"})
# Programs that start another one, which lies beside them.
_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {"uvx": ("uv",)}


class ShownProgram(Struct, frozen=True):
    """A program as it is seen in a fence. `unseen` are arguments that name something of the machine that is not.

    `path` are the folders of programs that are shown, for programs that find others by name.
    """

    command: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    path: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def shown_program(
    program: str,
    args: Sequence[str],
    *,
    mounts: Sequence[Mount] = (),
    search: str = os.defpath,
    may_show: Callable[[str], bool] = lambda path: True,
) -> ShownProgram:
    """The program of an absolute path with its arguments, beside the `mounts` that were declared.

    `search` is the PATH of this process. `may_show` says whether a script that is an argument may be shown. Looks at
    files, so it belongs on a thread.
    """
    showing = _Showing(mounts, search)
    showing.program(program)
    for name in _BESIDE.get(os.path.basename(program), ()):
        beside = os.path.join(os.path.dirname(os.path.realpath(program)), name)
        if os.path.isfile(beside):
            showing.program(beside)
    script = _script(program, args)
    if script is not None and os.path.isfile(script) and may_show(script):
        showing.add(_belonging(script))
    named = [word for word in args if os.path.isabs(word) and os.path.exists(word)]
    unseen = tuple(dict.fromkeys(word for word in named if not showing.holds(word)))
    return ShownProgram((program, *args), tuple(showing.mounts.values()), tuple(showing.path), unseen)


class _Showing:
    """The mounts so far, by their path inside, which is that outside."""

    def __init__(self, declared: Sequence[Mount], search: str) -> None:
        self.mounts: dict[str, Mount] = {}
        self.path: list[str] = []
        self._inside = [*SYSTEM, *(mount.target.rstrip("/") for mount in declared)]
        self._search = search

    def holds(self, path: str) -> bool:
        return lies_in(path, (*self._inside, *self.mounts))

    def add(self, paths: Iterable[str]) -> None:
        for path in paths:
            if os.path.exists(path) and not self.holds(path):
                self.mounts[path] = Mount(path, path)

    def program(self, path: str, depth: int = 0) -> None:
        """Show a program, every link on the way to it, and the interpreter that its first line names."""
        for hop in _hops(path):
            self.add(_belonging(hop))
        folder = os.path.dirname(path)
        if not lies_in(path, SYSTEM) and folder not in self.path:
            self.path.append(folder)
        if depth < _MOST_INTERPRETERS and (interpreter := self._interpreter(os.path.realpath(path))) is not None:
            self.program(interpreter, depth + 1)

    def _interpreter(self, path: str) -> str | None:
        try:
            with open(path, "rb") as file:
                line = file.read(_FIRST_LINE).partition(b"\n")[0]
        except OSError:
            return None
        words = line.removeprefix(b"#!").decode(errors="replace").split() if line.startswith(b"#!") else []
        if words and os.path.basename(words[0]) == "env":
            names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            return shutil.which(names[0], path=self._search) if names else None
        return words[0] if words and os.path.isabs(words[0]) else None


def _hops(path: str) -> Iterator[str]:
    """The path, and where each link on the way leads."""
    for _ in range(_MOST_LINKS):
        yield path
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    yield os.path.realpath(path)


def _belonging(path: str) -> list[str]:
    """Returns what a file of a program plainly belongs to; the file alone when its place does not tell."""
    before, found, _ = path.partition(f"/{_MODULES}/")
    if found:
        return [f"{before}/{_MODULES}"]
    folder, home = os.path.dirname(path), os.path.dirname(os.path.dirname(path))
    if os.path.basename(folder) != "bin":
        return [path]
    parts = [folder, os.path.join(home, "lib"), os.path.join(home, "lib64")]
    settings = os.path.join(home, "pyvenv.cfg")
    if os.path.isfile(settings):
        return [settings, *parts, *_base_of(settings)]
    if _holds_python(home) or _holds_node(home):
        return parts
    return [path]


def _base_of(settings: str) -> list[str]:
    """The installation that a Python environment was made from."""
    try:
        lines = Path(settings).read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition("=")
        folder = value.strip()
        if name.strip() == "home" and os.path.basename(folder) == "bin" and _holds_python(os.path.dirname(folder)):
            return [folder, os.path.join(os.path.dirname(folder), "lib")]
    return []


def _holds_python(home: str) -> bool:
    try:
        names = os.listdir(os.path.join(home, "lib"))
    except OSError:
        return False
    named = (name for name in names if name.startswith(("python3", "pypy3")))
    # The standard library, and not packages of a user alone.
    return any(os.path.isdir(os.path.join(home, "lib", name, "encodings")) for name in named)


def _holds_node(home: str) -> bool:
    return os.path.exists(os.path.join(home, "bin", "node")) and os.path.isdir(os.path.join(home, "lib", _MODULES))


def _script(program: str, args: Sequence[str]) -> str | None:
    """The script that an interpreter is given by its absolute path."""
    if not os.path.basename(program).startswith(_INTERPRETERS):
        return None
    words = iter(args)
    for word in words:
        if word in _INSTEAD:
            return None
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word if os.path.isabs(word) else None
    return None
