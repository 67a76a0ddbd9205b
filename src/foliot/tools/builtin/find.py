"""Finding files of a workspace by name (`glob`) and by what is in them (`grep`). Links are not followed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition, ToolError, ToolTimeout
from foliot.tools.builtin.arguments import given, object_schema, optional, optional_text, text, whole_number
from foliot.tools.builtin.files import encoded, looks_binary
from foliot.tools.builtin.wildcards import PathPattern
from foliot.tools.builtin.workspace import Workspace
from foliot.tools.running import blocking

MOST_VISITED: Final = 50_000
DEEPEST: Final = 64
MOST_FOUND: Final = 1000
LARGEST_SEARCHED: Final = 2 * 1024 * 1024
SECONDS: Final = 15.0
# Thousands of small files that nobody means.
_LEFT_OUT: Final = frozenset({".git"})
_BELOW: Final = optional("string", "The folder to look in, relative to the workspace; all of it when not given.")


@dataclass(slots=True)
class Walk:
    """How far a search has got. `cut` when there was more than it may visit."""

    visited: int = 0
    cut: bool = False


def files_below(workspace: Workspace, start: str, walk: Walk) -> Iterator[tuple[str, int, str]]:
    """Every regular file: its path from the workspace, and the open folder and name to open it by; sorted."""
    with workspace.open_folder(start) as folder:
        shown = "/".join(part for part in start.split("/") if part not in ("", "."))
        yield from _files_in(folder, f"{shown}/" if shown else "", 0, walk)


def _files_in(folder: int, prefix: str, depth: int, walk: Walk) -> Iterator[tuple[str, int, str]]:
    with os.scandir(folder) as found:
        entries: list[tuple[str, bool, bool]] = []
        for entry in found:
            walk.visited += 1
            if walk.visited > MOST_VISITED:
                walk.cut = True
                break
            entries.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)))
    for name, is_folder, is_file in sorted(entries):
        if is_file and _is_text(name):
            yield prefix + name, folder, name
        elif is_folder and name not in _LEFT_OUT and _is_text(name):
            if depth >= DEEPEST:
                walk.cut = True
                continue
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError:
                continue  # gone meanwhile, became a link, or may not be read
            try:
                yield from _files_in(inner, f"{prefix}{name}/", depth + 1, walk)
            finally:
                os.close(inner)


def _is_text(name: str) -> bool:
    """A name that is no UTF-8 cannot be told to a model, nor asked for by one."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


class Glob:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.definition = ToolDefinition(
            name="glob",
            description=(
                "Lists files of the workspace whose path fits a pattern such as **/*.py or src/**/*.{ts,tsx}, sorted "
                "by path. Symbolic links and what is in .git are left out."
            ),
            schema=object_schema(
                {
                    "pattern": text("* stands for a part of a name, ** for any folders.", minLength=1),
                    "path": _BELOW,
                    "limit": optional("integer", f"How many at most; 200 when not given, {MOST_FOUND} at most."),
                },
                ["pattern"],
            ),
            effect="read",
            category="inspect",
            breaker=False,
            resource_keys=("file:*",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        pattern = PathPattern(str(call.arguments.get("pattern") or ""))
        limit = whole_number(call, "limit", 200, least=1, most=MOST_FOUND)
        return await blocking(call, self, self._find, pattern, optional_text(call, "path") or "", limit)

    def _find(self, pattern: PathPattern, start: str, limit: int) -> dict[str, Any]:
        walk, found, more = Walk(), list[str](), False
        # The pattern is about what is below `path`, as in a shell that stands there.
        below = len("/".join(part for part in start.split("/") if part not in ("", ".")))
        for path, _, _ in files_below(self._workspace, start, walk):
            if pattern.matches(path[below:].lstrip("/") if below else path):
                more = len(found) >= limit
                if more:
                    break
                found.append(path)
        return {"files": found, "count": len(found), "has_more": more or walk.cut}


class Grep:
    """The expression is matched in a process of its own, which is killed when it takes too long."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.definition = ToolDefinition(
            name="grep",
            description=(
                "Finds lines in text files of the workspace that match a regular expression (Python syntax), shown as "
                "path:line: text. Binary files, files over 2 MiB, symbolic links and what is in .git are left out."
            ),
            schema=object_schema(
                {
                    "pattern": text("The regular expression.", minLength=1, maxLength=1000),
                    "path": _BELOW,
                    "glob": optional("string", "Only files whose path below that folder fits this, such as **/*.py."),
                    "ignore_case": optional("boolean", "Whether A and a are the same; false when not given."),
                    "limit": optional("integer", f"How many lines at most; 100 when not given, {MOST_FOUND} at most."),
                },
                ["pattern"],
            ),
            effect="read",
            category="inspect",
            breaker=False,
            timeout=SECONDS + 15,
            resource_keys=("file:*",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        pattern = optional_text(call, "pattern")
        if not pattern:
            raise ToolArgumentsInvalid("grep: pattern is required", field="pattern")
        encoded(pattern, "grep")
        wanted = optional_text(call, "glob")
        limit = whole_number(call, "limit", 100, least=1, most=MOST_FOUND)
        settings = {"pattern": pattern, "ignore_case": given(call, "ignore_case", False) is True, "most": limit}
        names = PathPattern(wanted) if wanted else None
        return await blocking(call, self, self._find, settings, names, optional_text(call, "path") or "", limit)

    def _find(self, settings: dict[str, Any], names: PathPattern | None, start: str, limit: int) -> str:
        walk, lines, more = Walk(), list[str](), False
        below = len("/".join(part for part in start.split("/") if part not in ("", ".")))
        with matcher(settings) as ask:
            for path, folder, name in files_below(self._workspace, start, walk):
                if names is not None and not names.matches(path[below:].lstrip("/") if below else path):
                    continue
                data = _text_of(folder, name)
                found = ask(data) if data else ()
                lines += [f"{path}:{number}: {line}" for number, line in found]
                if len(lines) >= limit:
                    more = True
                    break
        if not lines:
            return "No matches." + (" Not every file was looked at." if walk.cut else "")
        note = "\n[there may be more matches: narrow the pattern or the path]" if more or walk.cut else ""
        return "\n".join(lines[:limit]) + note


def _text_of(folder: int, name: str) -> bytes | None:
    """The content of a text file that is not too large; None for others, and for what is gone meanwhile."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(LARGEST_SEARCHED + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
            if len(data) <= LARGEST_SEARCHED and not looks_binary(data[:8192]):
                return data
    return None


@contextmanager
def matcher(settings: dict[str, Any]) -> Generator[Any]:
    """Asks the matching process about one text after another. It is gone when the block is left.

    Raises `ToolArgumentsInvalid` for an expression that is none, `ToolTimeout` when it takes too long.
    """
    script = Path(__file__).with_name("line_matcher.py")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
    ) as process:
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        alarm = threading.Timer(SECONDS, stop)
        alarm.daemon = True
        alarm.start()

        def ask(data: bytes) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(len(data).to_bytes(4, "big") + data)
                process.stdin.flush()
                answer = process.stdout.readline()
            except OSError:
                answer = b""
            if not answer:
                if late.is_set():
                    raise ToolTimeout("grep: the pattern takes too long on these files", retryable=False)
                raise ToolError("grep: matching ended early; the pattern may need too much memory", retryable=False)
            return msgspec.json.decode(answer)

        try:
            if (problem := ask(msgspec.json.encode(settings))) is not None:
                raise ToolArgumentsInvalid(f"grep: the pattern cannot be used: {problem}", field="pattern")
            yield ask
        finally:
            alarm.cancel()
            process.kill()
            with suppress(OSError):
                process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess] - a pipe, see above
