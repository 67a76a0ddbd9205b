"""From what a person named (`-f agents/ -f more.yaml -f -`) to the bytes of each manifest.

Nothing raises: what cannot be read becomes a finding beside what can. File names are shown as they were given.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from foliot.common.suggestions import did_you_mean, nearest
from foliot.resources.problems import NO_SUCH_FILE, Finding, Problem, Severity
from foliot.resources.skill_files import SKILL_FILE, SKIPPED, is_single_skill, read_skill
from foliot.resources.syntax.places import LIMITS

STDIN: Final = "<stdin>"
_STDIN_ID: Final = (-1, -1)
SUFFIXES: Final = (".yaml", ".yml", ".json")

# A shell passes `<(command)` as one of these; they are pipes, but somebody writes to them.
_OPEN_PIPES: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_TYPES: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One manifest. `named` is False when it was found in a directory rather than named by a person."""

    file: str
    data: bytes
    named: bool = True


def read_sources(
    sources: Sequence[str | os.PathLike[str]], *, stdin: BinaryIO | None, recursive: bool
) -> Iterator[SourceFile | Finding]:
    """Each file once, in the order given, those of a directory sorted by path."""
    seen: set[tuple[int, int]] = set()
    for source in sources:
        name = os.fspath(source)
        if name == "-":
            if _STDIN_ID not in seen:
                seen.add(_STDIN_ID)
                yield _read_stdin(stdin)
            continue
        try:
            facts = os.stat(name)
        except (OSError, ValueError) as error:
            yield _cannot_read(name, error)
            continue
        if stat.S_ISDIR(facts.st_mode):
            yield from _read_directory(name, recursive, seen)
        else:
            yield from _read_file(name, facts, seen, named=True)


def shown(name: str) -> str:
    """A file name that can always be printed, even when it is not valid UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _read_stdin(stdin: BinaryIO | None) -> SourceFile | Finding:
    if stdin is None:
        return _finding(STDIN, "there is no standard input to read")
    try:
        return SourceFile(STDIN, stdin.read(LIMITS.bytes + 1))
    except (OSError, ValueError) as error:
        return _finding(STDIN, f"cannot be read: {_reason(error)}")


def _read_file(
    name: str, facts: os.stat_result, seen: set[tuple[int, int]], *, named: bool
) -> Iterator[SourceFile | Finding]:
    identity = facts.st_dev, facts.st_ino
    if identity in seen:
        return
    seen.add(identity)
    if not stat.S_ISREG(facts.st_mode) and not name.startswith(_OPEN_PIPES):
        what = next((words for is_type, words in _TYPES if is_type(facts.st_mode)), "not a regular file")
        yield _finding(name, f"this is {what}, not a file with manifests", "to read from a pipe, use '-'")
        return
    # Asking for the limit makes room for the limit, 4 MiB for each small file; what has no size may still have content.
    room = min(facts.st_size, LIMITS.bytes) if facts.st_size else LIMITS.bytes
    try:
        with open(name, "rb") as file:
            yield SourceFile(shown(name), file.read(room + 1), named)
    except (OSError, ValueError) as error:
        yield _cannot_read(name, error)


def _read_directory(top: str, recursive: bool, seen: set[tuple[int, int]]) -> Iterator[SourceFile | Finding]:
    found = False
    for name in _walk(top, recursive):
        if isinstance(name, Finding):
            found = found or name.severity == "error"
            yield name
            continue
        found = True
        if os.path.basename(name) == SKILL_FILE:
            yield from _read_skill(os.path.dirname(name), name)
            continue
        if name.endswith(".md"):
            yield from _read_skill(name, name)
            continue
        try:
            facts = os.stat(name)
        except OSError as error:
            yield _cannot_read(name, error)
            continue
        yield from _read_file(name, facts, seen, named=False)
    if not found:
        hint = "name another directory, or a file" if recursive else "manifests in its sub-directories are not read"
        yield _finding(top, f"there are no manifests ({', '.join(SUFFIXES)}) in this directory", hint)


def _read_skill(place: str, file: str) -> Iterator[SourceFile | Finding]:
    """A folder with a SKILL.md, or a Markdown file with front matter, is the manifest of a Skill."""
    document, findings = read_skill(place)
    yield from findings
    if document is not None:
        yield SourceFile(shown(file), json.dumps(document).encode(), named=False)


def _walk(top: str, recursive: bool, depth: int = 0) -> Iterator[str | Finding]:
    """Paths of the manifests below `top`, sorted. Links to directories are not followed: they may lead round."""
    try:
        with os.scandir(top) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        yield _cannot_read(top, error)
        return
    if any(entry.name == SKILL_FILE for entry in ordered):
        yield os.path.join(top, SKILL_FILE)  # all that lies below is files of the skill, and no manifests
        return
    for entry in ordered:
        if _is_directory(entry):
            if not recursive or entry.name.startswith(".") or entry.name in SKIPPED:
                continue
            if entry.is_symlink():
                hint = "name it beside the others if it is meant"
                yield _finding(entry.path, "a link to a directory is not followed", hint, severity="warning")
            else:
                yield from _walk(entry.path, recursive, depth + 1)
        elif os.path.splitext(entry.name)[1].lower() in SUFFIXES or (depth == 0 and is_single_skill(entry)):
            yield entry.path


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself; reading it tells
        return False


def _cannot_read(name: str, error: OSError | ValueError) -> Finding:
    if isinstance(error, FileNotFoundError):
        if os.path.islink(name):
            return _finding(name, "this link points to nothing")
        return _finding(name, NO_SUCH_FILE, _near(name))
    if isinstance(error, ValueError):
        return _finding(name, "no file can have this name")  # it has a null character
    return _finding(name, f"cannot be read: {_reason(error)}")


def _near(name: str) -> str | None:
    """A name beside the missing one that differs by a typing error."""
    folder, wanted = os.path.split(name)
    try:
        near = nearest(wanted, os.listdir(folder or "."), alike=0.7)
    except (OSError, ValueError):
        return None
    return did_you_mean(shown(os.path.join(folder, near[0]))) if near else None


def _reason(error: OSError | ValueError) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return (said or str(error)).lower()


def _finding(name: str, message: str, hint: str | None = None, *, severity: Severity = "error") -> Finding:
    return Finding(Problem((), message, hint, severity=severity), shown(name))
