"""Reading, writing and editing the files of a workspace."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import IO, Any, ClassVar, Final

from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition
from foliot.tools.builtin.arguments import given, object_schema, optional, text, whole_number
from foliot.tools.builtin.workspace import FileSource, UnfitFile, Workspace
from foliot.tools.pipeline.running import blocking
from foliot.tools.workspaces import DATA_NOTE

MOST_LINES: Final = 2000
MOST_BYTES: Final = 50 * 1024 - 2048  # with the footer below where every result is cut (pipeline/results.py)
LARGEST_WRITE: Final = 4 * 1024 * 1024
LARGEST_EDITED: Final = 16 * 1024 * 1024
MOST_PLACES: Final = 100
_SNIFFED: Final = 8192
# One file has many spellings (a/../b, links), so whoever changes one takes turns with everyone else in a step.
_ANY_FILE: Final = ("file:*",)
_PATH: Final = text("Relative to the workspace, such as src/main.py.", minLength=1)


class ReadFile:
    def __init__(self, files: FileSource) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="read",
            description=(
                f"Reads a text file of the workspace, up to {MOST_LINES} lines or {MOST_BYTES} bytes at a time. When "
                "there is more, the last line says which offset to go on with."
            ),
            schema=object_schema(
                {
                    "path": _PATH,
                    "offset": optional("integer", "The line to begin with; the first is 1."),
                    "limit": optional("integer", f"How many lines; {MOST_LINES} at most."),
                },
                ["path"],
            ),
            effect="read",
            category="inspect",
            breaker=False,
            workspace="read_only",
            resource_keys=("file:{path}",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        path = path_of(call, "read")
        offset = whole_number(call, "offset", 1, least=1, most=2**53)
        limit = whole_number(call, "limit", MOST_LINES, least=1, most=MOST_LINES)
        workspace = await self._files.reading(call)
        return await blocking(call, self, self._read, workspace, path, offset, limit)

    def _read(self, workspace: Workspace, path: str, offset: int, limit: int) -> str:
        with workspace.open_file(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            if looks_binary(file.read(_SNIFFED)):
                raise UnfitFile(f"read: {path} looks binary; it cannot be shown as text", path=path)
            file.seek(0)
            for _ in range(offset - 1):
                if not _pass_line(file):
                    return ""
            return _lines(file, offset, limit)


def _pass_line(file: IO[bytes]) -> bool:
    """Go behind the next line, however long it is. False at the end of the file."""
    piece = file.readline(65_536)
    found = bool(piece)
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(65_536)
    return found


def _lines(file: IO[bytes], first: int, limit: int) -> str:
    """Whole lines while they fit. A line that does not fit alone is shown cut, and said to be."""
    shown: list[bytes] = []
    size, number = 0, first
    notes: list[str] = []
    while number < first + limit:
        begin = file.tell()
        line = file.readline(MOST_BYTES + 1)
        if not line:
            return _joined(shown, notes)
        if size + len(line) > MOST_BYTES:
            if shown:
                file.seek(begin)
                break
            shown.append(line[:MOST_BYTES])
            file.seek(begin)
            _pass_line(file)
            notes.append(f"[Line {number} is {file.tell() - begin} bytes long; the first {MOST_BYTES} are shown]")
            number += 1
            break
        shown.append(line)
        size += len(line)
        number += 1
    if file.read(1):
        notes.append(f"[Use offset={number} to continue reading]")
    return _joined(shown, notes)


def _joined(shown: list[bytes], notes: list[str]) -> str:
    body = b"".join(shown).decode("utf-8", "replace")
    if not notes:
        return body
    return body + ("" if body.endswith("\n") else "\n") + "\n".join(notes)


def looks_binary(start: bytes) -> bool:
    """A NUL, or more than a tenth that is no UTF-8. A character that the end of `start` cuts is no fault."""
    if b"\0" in start:
        return True
    wrong = start.decode("utf-8", "replace").count("\N{REPLACEMENT CHARACTER}")
    return wrong - 1 > len(start) * 0.1


class WriteFile:
    data_note: ClassVar = DATA_NOTE

    def __init__(self, files: FileSource) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="write",
            description=(
                "Writes a text file of the workspace: a new one, with the folders on the way, or in place of the one "
                "that is there. For small changes use edit."
            ),
            schema=object_schema({"path": _PATH, "content": text("The whole text of the file.")}, ["path", "content"]),
            effect="idempotent",
            repeats=True,
            category="inspect",
            breaker=False,
            workspace="read_write",
            risk="medium",
            resource_keys=_ANY_FILE,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        path = path_of(call, "write")
        content = call.arguments.get("content")
        if not isinstance(content, str):
            raise ToolArgumentsInvalid("write: content is required", field="content")
        data = encoded(content, "write")
        if len(data) > LARGEST_WRITE:
            raise ToolArgumentsInvalid(f"write: content is {len(data)} bytes, more than {LARGEST_WRITE}")
        async with self._files.writing(call) as workspace:
            await blocking(call, self, workspace.replace_file, path, data)
        return f"Wrote {path} ({len(data)} bytes)"


class EditFile:
    """`once`: whether an edit that a crash cut off has happened cannot be seen from the file alone."""

    def __init__(self, files: FileSource) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="edit",
            description=(
                "Replaces old_string by new_string in a file of the workspace. old_string must match exactly, blanks "
                "included, and in one place only, unless replace_all is true."
            ),
            schema=object_schema(
                {
                    "path": _PATH,
                    "old_string": text("The text to replace, with enough around it to be unique.", minLength=1),
                    "new_string": text("What to put there."),
                    "replace_all": optional("boolean", "Replace every match; false when not given."),
                },
                ["path", "old_string", "new_string"],
            ),
            effect="once",
            repeats=True,
            category="inspect",
            breaker=False,
            workspace="read_write",
            risk="medium",
            resource_keys=_ANY_FILE,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        path = path_of(call, "edit")
        old, new = call.arguments.get("old_string"), call.arguments.get("new_string")
        if not isinstance(old, str) or not old:
            raise ToolArgumentsInvalid("edit: old_string is required", field="old_string")
        if not isinstance(new, str):
            raise ToolArgumentsInvalid("edit: new_string is required", field="new_string")
        if old == new:
            raise ToolArgumentsInvalid("edit: old_string and new_string are the same", field="new_string")
        every = given(call, "replace_all", False) is True
        before, after = encoded(old, "edit"), encoded(new, "edit")
        async with self._files.writing(call) as workspace:
            return await blocking(call, self, self._edit, workspace, path, before, after, every)

    def _edit(self, workspace: Workspace, path: str, old: bytes, new: bytes, every: bool) -> str:
        with workspace.open_file(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > LARGEST_EDITED:
                raise UnfitFile(f"edit: {path} is {size} bytes, more than {LARGEST_EDITED}")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                before = file.read(LARGEST_EDITED + 1)
        places = _places(before, old)
        if not places:
            raise UnfitFile(f"edit: old_string not found in {path}", field="old_string")
        if len(places) > 1 and not every:
            count = f"{MOST_PLACES} times or more" if len(places) == MOST_PLACES else f"{len(places)} times"
            raise UnfitFile(f"edit: old_string matches {count} in {path} (must be unique)", field="old_string")
        found = before.count(old)
        if len(before) + found * (len(new) - len(old)) > LARGEST_EDITED:
            raise UnfitFile(f"edit: {path} would be more than {LARGEST_EDITED} bytes", field="new_string")
        workspace.replace_file(path, before.replace(old, new))
        overlapping = any(after - at < len(old) for at, after in pairwise(places))
        more = "; matches overlap, and were taken from the beginning" if overlapping else ""
        return f"Edited {path}" + (f" ({found} places{more})" if len(places) > 1 else "")


def _places(data: bytes, part: bytes) -> list[int]:
    """Find the places of `part`, also where two of them overlap: either could be meant. The first ones are enough."""
    found: list[int] = []
    at = data.find(part)
    while at >= 0 and len(found) < MOST_PLACES:
        found.append(at)
        at = data.find(part, at + 1)
    return found


def path_of(call: Invocation, tool: str) -> str:
    path = call.arguments.get("path")
    if not isinstance(path, str) or not path.strip():
        raise ToolArgumentsInvalid(f"{tool}: path is required", field="path")
    return path


def encoded(content: str, tool: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ToolArgumentsInvalid(f"{tool}: the text holds half of a character (a lone surrogate)") from None
