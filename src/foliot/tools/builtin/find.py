"""Finding files of a workspace by name (`glob`) and by what is in them (`grep`). Links are not followed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition, ToolError, ToolTimeout
from foliot.tools.builtin.arguments import given, object_schema, optional, optional_text, text, whole_number
from foliot.tools.builtin.files import encoded, looks_binary
from foliot.tools.builtin.workspace import FileSource, Workspace, below
from foliot.tools.pipeline.running import blocking

# --- patterns --------------------------------------------------------------------------------------------------------

# Patterns of paths: `*`, `?`, `[a-z]`, `{ts,tsx}`, and `**` for any number of folders.
#
# Models write patterns, so none may take long: every match costs at most pattern times path, whatever they say.

MOST_ALTERNATIVES: Final = 64
LONGEST: Final = 1024

# One name of a path: `**`, a name without any wildcard, or what it must look like.
Part: TypeAlias = str | re.Pattern[str]
# Where in which alternative one is, having gone into some folders.
States: TypeAlias = frozenset[tuple[int, int]]

ANY_FOLDERS: Final = "**"


class PathPattern:
    """A pattern that is followed folder by folder, so that nobody looks where nothing can fit.

    Raises `ToolArgumentsInvalid` for a pattern that is absolute, too long or has too many alternatives.
    """

    def __init__(self, text: str) -> None:
        if not text.strip() or len(text) > LONGEST:
            raise ToolArgumentsInvalid(f"pattern is required, with at most {LONGEST} characters", field="pattern")
        if text.startswith("/") or ".." in text.split("/"):
            raise ToolArgumentsInvalid(
                "pattern must stay inside the workspace: no leading / and no ..", field="pattern"
            )
        self._alternatives = [parts_of(each) for each in _expanded(text)]
        self.start: States = self._closed({(which, 0) for which in range(len(self._alternatives))})

    def enter(self, states: States, name: str) -> States:
        """Return the states in the folder of this name; none when nothing below it can fit."""
        reached: set[tuple[int, int]] = set()
        for which, at in states:
            parts = self._alternatives[which]
            if at == len(parts):
                continue
            if parts[at] == ANY_FOLDERS:
                reached.add((which, at))
            elif _fits(parts[at], name):
                reached.add((which, at + 1))
        return self._closed(reached)

    def accepts(self, states: States, name: str) -> bool:
        """Whether a file of this name fits here."""
        return any(at == len(self._alternatives[which]) for which, at in self.enter(states, name))

    def names(self, states: States) -> frozenset[str] | None:
        """The only names that can fit here; None when any might."""
        found: set[str] = set()
        for which, at in states:
            parts = self._alternatives[which]
            if at < len(parts):
                part = parts[at]
                if part == ANY_FOLDERS or not isinstance(part, str):
                    return None
                found.add(part)
        return frozenset(found)

    def matches(self, path: str) -> bool:
        *folders, name = path.split("/")
        states = self.start
        for folder in folders:
            states = self.enter(states, folder)
        return self.accepts(states, name)

    def _closed(self, states: set[tuple[int, int]]) -> States:
        """Adds the places behind each `**`, which may stand for no folder at all."""
        waiting = list(states)
        while waiting:
            which, at = waiting.pop()
            parts = self._alternatives[which]
            if at < len(parts) and parts[at] == ANY_FOLDERS and (which, at + 1) not in states:
                states.add((which, at + 1))
                waiting.append((which, at + 1))
        return frozenset(states)


def parts_of(text: str, *, escapes: bool = False) -> list[Part]:
    """A pattern without braces, name by name. With `escapes` a backslash takes a character as it is."""
    found: list[Part] = []
    for part in text.split("/"):
        if part not in ("", ".") and not (part == ANY_FOLDERS and found and found[-1] == ANY_FOLDERS):
            found.append(part if part == ANY_FOLDERS else _part(part, escapes=escapes))
    return found


def path_fits(parts: Sequence[Part], names: Sequence[str]) -> bool:
    """Whether a whole path fits: which beginnings of it the parts so far can match, part by part."""
    reached = {0}
    for part in parts:
        if part == ANY_FOLDERS:
            reached = set(range(min(reached), len(names) + 1)) if reached else reached
        else:
            reached = {at + 1 for at in reached if at < len(names) and _fits(part, names[at])}
    return len(names) in reached


def _fits(part: Part, name: str) -> bool:
    return part == name if isinstance(part, str) else part.fullmatch(name) is not None


def _expanded(text: str) -> list[str]:
    """The pattern for each choice of its braces, one pair after another."""
    done: list[str] = []
    waiting = [text]
    while waiting:
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise ToolArgumentsInvalid(f"pattern has more than {MOST_ALTERNATIVES} alternatives", field="pattern")
        each = waiting.pop()
        close = each.find("}")
        start = each.rfind("{", 0, close) if close >= 0 else -1
        if start < 0:
            done.append(each)
            continue
        choices = each[start + 1 : close].split(",")
        waiting.extend(each[:start] + choice + each[close + 1 :] for choice in choices[: MOST_ALTERNATIVES + 1])
    return done


def _part(text: str, *, escapes: bool) -> Part:
    """One name. Between two stars stands the first match that is found, for good: there is nothing to go back to."""
    pieces: list[str] = [""]  # as expressions, between the stars
    plain = ""
    at = 0
    while at < len(text):
        sign = text[at]
        end = text.find("]", at + (3 if text[at + 1 : at + 2] in ("!", "^") else 2)) if sign == "[" else -1
        if sign == "[" and end > 0:
            pieces[-1] += _set(text[at + 1 : end])
            at = end
        elif sign == "*":
            pieces.append("")
        elif sign == "?":
            pieces[-1] += "."
        else:
            if escapes and sign == "\\" and at + 1 < len(text):
                at += 1
                sign = text[at]
            pieces[-1] += re.escape(sign)
            plain += sign
            at += 1
            continue
        plain = "\0"  # in no name
        at += 1
    if "\0" not in plain:
        return plain
    first, *rest = pieces
    if not rest:
        return re.compile(first, re.DOTALL)
    *between, last = rest
    return re.compile(first + "".join(f"(?>.*?{each})" for each in between if each) + ".*" + last, re.DOTALL)


def _set(text: str) -> str:
    negated = text[0] in "!^" and len(text) > 1
    text = text[1:] if negated else text
    inside = ""
    at = 0
    while at < len(text):
        if at + 2 < len(text) and text[at + 1] == "-":
            if text[at] <= text[at + 2]:
                inside += f"{re.escape(text[at])}-{re.escape(text[at + 2])}"
            at += 3
        else:
            inside += re.escape(text[at])
            at += 1
    if not inside:
        return "." if negated else "(?!)"
    return f"[{'^' if negated else ''}{inside}]"


# --- gitignore -------------------------------------------------------------------------------------------------------

# The rules of `.gitignore` files, folder by folder: the last rule that fits decides, the deepest file first.
#
# Whoever wrote the files chose the rules, so each costs at most its length times that of a path (`path_fits`). Only
# files of this name inside the workspace count; those of a person's own settings do not.

NAME: Final = ".gitignore"
LARGEST: Final = 256 * 1024
MOST_RULES: Final = 5000
_LONGEST_RULE: Final = 1024


@dataclass(frozen=True, slots=True)
class _Rule:
    parts: list[Part]
    keeps: bool
    """Begins with `!`: what an earlier rule left out is there again."""
    folders_only: bool
    anywhere: bool
    """Names no folder on the way, so it is about a name wherever it stands below."""

    def fits(self, names: Sequence[str], is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return path_fits(self.parts, names[-1:] if self.anywhere else names)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules that hold in one folder: of its own file, and of those above it. `depth` is how deep it stands."""

    rules: tuple[_Rule, ...] = ()
    depth: int = 0
    above: Ignored | None = None

    def below(self, text: str, depth: int) -> Ignored:
        """Adds the ignore file of a folder that stands `depth` names below the workspace."""
        rules = tuple(rule for line in text.splitlines()[:MOST_RULES] if (rule := _rule(line)) is not None)
        return Ignored(rules[::-1], depth, self) if rules else self

    def leaves_out(self, path: Sequence[str], *, is_folder: bool) -> bool:
        """Whether a path is left out whose folders are not."""
        here: Ignored | None = self
        while here is not None:
            for rule in here.rules:
                if rule.fits(path[here.depth :], is_folder):
                    return not rule.keeps
            here = here.above
        return False


def _rule(line: str) -> _Rule | None:
    bare = line.rstrip(" ")
    line = f"{bare} " if bare.endswith("\\") and bare != line else bare  # a blank that is escaped counts
    if not line or line.startswith("#") or len(line) > _LONGEST_RULE:
        return None
    keeps = line.startswith("!")
    line = line[1:] if keeps else line
    folders_only = line.endswith("/")
    line = line.removesuffix("/")
    anywhere = "/" not in line
    parts = parts_of(line, escapes=True)
    if not parts:
        return None
    if parts[-1] == ANY_FOLDERS:  # what is in a folder, not the folder itself
        parts = [*parts, *parts_of("*")]
        anywhere = False
    return _Rule(parts, keeps, folders_only, anywhere)


# --- find ------------------------------------------------------------------------------------------------------------

DEEPEST: Final = 200
MOST_FOUND: Final = 1000
MOST_HELD: Final = 1_000_000
LARGEST_SEARCHED: Final = 16 * 1024 * 1024
SECONDS: Final = 15.0
# Thousands of small files that nobody means.
_LEFT_OUT: Final = frozenset({".git"})
_BELOW: Final = optional("string", "The folder to look in, relative to the workspace; all of it when not given.")
_IGNORING: Final = optional("boolean", "Leave out what the .gitignore files name; false when not given.")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK_AT_CLOCK: Final = 256


@dataclass(slots=True)
class Walk:
    """How a search goes. What it could not look at is counted, so that nobody takes a part for the whole."""

    seconds: float = SECONDS
    clock: Callable[[], float] = time.monotonic
    visited: int = 0
    unread: int = 0
    too_large: int = 0
    cut: str = ""
    """Why it ended before everything was visited."""
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def is_late(self) -> bool:
        """Whether nothing more is to be looked into."""
        return self.is_out_of_time() or bool(self.cut)

    def is_out_of_time(self) -> bool:
        late = self.clock() - self._began > self.seconds
        if late and not self.cut:
            self.cut = f"it took longer than {self.seconds:g} s"
        return late

    def note(self) -> str:
        """Say in words what was not looked at; empty when everything was."""
        notes: list[str] = []
        if self.cut:
            notes.append(f"not every folder was looked at, because {self.cut}: give a path or a narrower pattern")
        if self.unread:
            notes.append(f"{self.unread} files or folders cannot be read, or have names that are no text")
        if self.too_large:
            notes.append(f"{self.too_large} files over {LARGEST_SEARCHED // 2**20} MiB were not looked into")
        return "; ".join(notes)


def files_below(
    workspace: Workspace, start: str, walk: Walk, *, names: PathPattern | None = None, ignoring: bool = False
) -> Iterator[tuple[str, int, str]]:
    """Every regular file whose path below `start` fits: its path from the workspace, and the open folder and name to
    open it by. Breadth first, each folder sorted: what is near is found, however much lies deep in a neighbour.
    """
    base = tuple(part for part in below(start).split("/") if part not in ("", "."))
    with workspace.open_folder(start) as folder:
        rules = _rules_above(workspace, base) if ignoring else None
        waiting: deque[_Place] = deque([_Place((), names.start if names else None, rules)])
        with _Trail(folder) as trail:
            while waiting and not walk.is_late():
                place = waiting.popleft()
                descriptor = trail.go(place.names)
                if descriptor is None:
                    walk.unread += 1  # gone meanwhile, became a link, or may not be read
                    continue
                yield from _look_into(descriptor, base, place, names, waiting, walk)


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder that is still to be looked into: its names below the start, and what the pattern and rules say there."""

    names: tuple[str, ...]
    states: States | None
    ignored: Ignored | None


class _Trail:
    """The open folders from the start to where one is. The next one mostly has the same parent, so little is opened."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._open: list[tuple[str, int]] = []

    def go(self, names: tuple[str, ...]) -> int | None:
        """A descriptor of that folder, each name opened in the one before, never through a link. None when it fails."""
        common = 0
        while common < min(len(names), len(self._open)) and self._open[common][0] == names[common]:
            common += 1
        self._leave(common)
        for name in names[common:]:
            try:
                here = os.open(name, _FOLDER, dir_fd=self._open[-1][1] if self._open else self._start)
            except OSError:
                return None
            self._open.append((name, here))
        return self._open[-1][1] if self._open else self._start

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])

    def __enter__(self) -> _Trail:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)


def _look_into(
    folder: int,
    base: tuple[str, ...],
    place: _Place,
    pattern: PathPattern | None,
    waiting: deque[_Place],
    walk: Walk,
) -> Iterator[tuple[str, int, str]]:
    """The files of one folder that fit; its folders are put behind those that wait already."""
    try:
        entries = _entries(folder, pattern.names(place.states) if pattern and place.states is not None else None, walk)
    except OSError:
        walk.unread += 1
        return
    prefix = "".join(f"{name}/" for name in (*base, *place.names))
    ignored = place.ignored
    if ignored is not None and (text := _text_of(folder, NAME, LARGEST)):
        ignored = ignored.below(text.decode("utf-8", "replace"), len(base) + len(place.names))
    for name, is_folder in entries:
        if walk.is_out_of_time():  # a folder may hold thousands of large files, or meet thousands of rules
            return
        if not _is_text(name):
            walk.unread += 1
            continue
        if ignored is not None and ignored.leaves_out((*base, *place.names, name), is_folder=is_folder):
            continue
        if not is_folder:
            if pattern is None or place.states is None or pattern.accepts(place.states, name):
                yield prefix + name, folder, name
        elif name not in _LEFT_OUT:
            states = pattern.enter(place.states, name) if pattern and place.states is not None else None
            if states is None or states:
                if len(place.names) >= DEEPEST or len(waiting) >= MOST_HELD:
                    walk.cut = walk.cut or f"there are folders more than {DEEPEST} deep, or more than {MOST_HELD:,}"
                    continue
                waiting.append(_Place((*place.names, name), states, ignored))


def _entries(folder: int, only: frozenset[str] | None, walk: Walk) -> list[tuple[str, bool]]:
    """Names of regular files and folders, and which of both they are; sorted. `only` these, if given: then the others
    are not even listed. Raises `OSError`.
    """
    found: list[tuple[str, bool]] = []
    if only is not None:
        for name in only:
            with suppress(OSError, ValueError):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                    found.append((name, stat.S_ISDIR(mode)))
        walk.visited += len(only)
        return sorted(found)
    with os.scandir(folder) as entries:
        for entry in entries:
            walk.visited += 1
            if walk.visited % _LOOK_AT_CLOCK == 0 and walk.is_late():
                break
            if len(found) >= MOST_HELD:
                walk.cut = walk.cut or f"a folder holds more than {MOST_HELD:,} entries"
                break
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder or entry.is_file(follow_symlinks=False):
                found.append((entry.name, is_folder))
    return sorted(found)


def _rules_above(workspace: Workspace, base: tuple[str, ...]) -> Ignored:
    """Read the files of the folders above the start; its own is read when it is looked into."""
    rules = Ignored()
    for depth in range(len(base)):
        with suppress(ToolError), workspace.open_folder("/".join(base[:depth])) as folder:
            if text := _text_of(folder, NAME, LARGEST):
                rules = rules.below(text.decode("utf-8", "replace"), depth)
    return rules


def _is_text(name: str) -> bool:
    """A name that is no UTF-8 cannot be told to a model, nor asked for by one."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


class Glob:
    def __init__(self, files: FileSource) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="glob",
            description=(
                "Lists files of the workspace whose path fits a pattern such as **/*.py or src/**/*.{ts,tsx}: those of "
                "a folder before those of the folders in it, sorted by name. Symbolic links and what is in .git are "
                "left out."
            ),
            schema=object_schema(
                {
                    "pattern": text("* stands for a part of a name, ** for any folders.", minLength=1),
                    "path": _BELOW,
                    "gitignore": _IGNORING,
                    "limit": optional("integer", f"How many at most; 200 when not given, {MOST_FOUND} at most."),
                },
                ["pattern"],
            ),
            effect="read",
            category="inspect",
            breaker=False,
            workspace="read_only",
            resource_keys=("file:*",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        pattern = PathPattern(str(call.arguments.get("pattern") or ""))
        limit = whole_number(call, "limit", 200, least=1, most=MOST_FOUND)
        ignoring = given(call, "gitignore", False) is True
        start = optional_text(call, "path") or ""
        workspace = await self._files.reading(call)
        return await blocking(call, self, self._find, workspace, pattern, start, ignoring, limit)

    def _find(
        self, workspace: Workspace, pattern: PathPattern, start: str, ignoring: bool, limit: int
    ) -> dict[str, Any]:
        walk, found, more = Walk(), list[str](), False
        # The pattern is about what is below `path`, as in a shell that stands there.
        for path, _, _ in files_below(workspace, start, walk, names=pattern, ignoring=ignoring):
            more = len(found) >= limit
            if more:
                break
            found.append(path)
        note = {"note": walk.note()} if walk.note() else {}
        return {"files": found, "count": len(found), "has_more": more or bool(walk.cut), **note}


class Grep:
    """The expression is matched in a process of its own, which is killed when it takes too long."""

    def __init__(self, files: FileSource) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="grep",
            description=(
                "Finds lines in text files of the workspace that match a regular expression (Python syntax), shown as "
                "path:line: text, near files first. Binary files, symbolic links and what is in .git are left out."
            ),
            schema=object_schema(
                {
                    "pattern": text("The regular expression.", minLength=1, maxLength=1000),
                    "path": _BELOW,
                    "glob": optional("string", "Only files whose path below that folder fits this, such as **/*.py."),
                    "gitignore": _IGNORING,
                    "ignore_case": optional("boolean", "Whether A and a are the same; false when not given."),
                    "limit": optional("integer", f"How many lines at most; 100 when not given, {MOST_FOUND} at most."),
                },
                ["pattern"],
            ),
            effect="read",
            category="inspect",
            breaker=False,
            workspace="read_only",
            timeout=2 * SECONDS + 10,  # for looking around, and for matching
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
        ignoring = given(call, "gitignore", False) is True
        start = optional_text(call, "path") or ""
        workspace = await self._files.reading(call)
        return await blocking(call, self, self._find, workspace, settings, names, start, ignoring, limit)

    def _find(
        self,
        workspace: Workspace,
        settings: dict[str, Any],
        names: PathPattern | None,
        start: str,
        ignoring: bool,
        limit: int,
    ) -> str:
        walk, lines, more = Walk(), list[str](), False
        with matcher(settings) as (ask, needed):
            for path, folder, name in files_below(workspace, start, walk, names=names, ignoring=ignoring):
                data = _text_of(folder, name, LARGEST_SEARCHED, walk)
                if not data or needed not in data:
                    continue
                lines += [f"{path}:{number}: {line}" for number, line in ask(data)]
                if len(lines) >= limit:
                    more = True
                    break
                if walk.is_late():
                    break
        note = f"[{walk.note()}]" if walk.note() else ""
        if not lines:
            return " ".join(("No matches.", note)).strip()
        if more:
            note = "[there may be more matches: narrow the pattern or the path]" + note
        return "\n".join([*lines[:limit], *([note] if note else [])])


def _text_of(folder: int, name: str, most: int, walk: Walk | None = None) -> bytes | None:
    """The content of a text file that is not too large; None for others, and for what is gone meanwhile."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or looks_binary(start := file.read(8192)):
                return None
            if found.st_size > most:
                if walk is not None:
                    walk.too_large += 1
                return None
            return start + file.read(most - len(start))
    except FileNotFoundError:
        return None
    except OSError:
        if walk is not None:
            walk.unread += 1
        return None


@contextmanager
def matcher(settings: dict[str, Any]) -> Generator[tuple[Callable[[bytes], Any], bytes]]:
    """Asks the matching process about one text after another; and bytes without which a text need not be asked about.
    The process is gone when the block is left.

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
        late, ended = threading.Event(), threading.Event()
        asked: list[float] = []  # since when an answer is waited for
        spent = 0.0

        def watch() -> None:
            while not ended.wait(0.1):
                if asked and spent + time.monotonic() - asked[0] > SECONDS:
                    late.set()
                    process.kill()
                    return

        threading.Thread(target=watch, name="grep-watch", daemon=True).start()

        def ask(data: bytes) -> Any:
            nonlocal spent
            assert process.stdin is not None
            assert process.stdout is not None
            began = time.monotonic()
            asked[:] = [began]
            try:
                process.stdin.write(len(data).to_bytes(4, "big") + data)
                process.stdin.flush()
                answer = process.stdout.readline()
            except OSError:
                answer = b""
            finally:
                asked.clear()
                spent += time.monotonic() - began
            if not answer:
                if late.is_set():
                    raise ToolTimeout("grep: the pattern takes too long on these files", retryable=False)
                raise ToolError("grep: matching ended early; the pattern may need too much memory", retryable=False)
            return msgspec.json.decode(answer)

        try:
            about = ask(msgspec.json.encode(settings))
            if about["problem"]:
                raise ToolArgumentsInvalid(f"grep: the pattern cannot be used: {about['problem']}", field="pattern")
            yield ask, about["needed"].encode()
        finally:
            ended.set()
            process.kill()
            with suppress(OSError):
                process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess] - a pipe, see above
