"""Notes of a run for itself: a list of to-dos and a scratchpad.

Nothing is stored beside the journal. A list of to-dos is the result of the last `write_todos` that succeeded; a note is
a `scratchpad` call that did. So they survive whatever the journal survives, and a fork has those of its past.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from uuid import NAMESPACE_URL, uuid5

import msgspec

from foliot.kernel.messages import ToolCall
from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition, ToolError
from foliot.tools.builtin.arguments import object_schema, text
from foliot.tools.builtin.journal import History, past_of

STATUSES: Final = ("pending", "in_progress", "completed")
MOST_TODOS: Final = 200
LONGEST_NOTE: Final = 20_000

_NO_ARGUMENTS: Final = object_schema({})


class WriteTodos:
    definition = ToolDefinition(
        name="write_todos",
        description=(
            "Replaces your list of to-dos with the one given; an empty list clears it. Use it to plan work of several "
            "steps, and again whenever something is begun or done."
        ),
        schema=object_schema(
            {
                "todos": {
                    "type": "array",
                    "maxItems": MOST_TODOS,
                    "items": object_schema(
                        {
                            "id": text("Short and unique in the list.", minLength=1),
                            "content": text("What is to be done.", minLength=1),
                            "status": {"type": "string", "enum": list(STATUSES)},
                        },
                        ["id", "content", "status"],
                    ),
                    "description": "The whole list, in order.",
                }
            },
            ["todos"],
        ),
        effect="idempotent",
        repeats=True,
        category="core",
        timeout=5.0,
        resource_keys=("todos",),
    )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        return _listed(_checked(call.arguments))


class ReadTodos:
    def __init__(self, history: History) -> None:
        self._history = history
        self.definition = ToolDefinition(
            name="read_todos",
            description="Your list of to-dos as you last wrote it with write_todos.",
            schema=_NO_ARGUMENTS,
            effect="read",
            category="core",
            resource_keys=("todos",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        written = (await past_of(self._history, call.run_id)).succeeded("write_todos")
        return _listed(_checked(_arguments(written[-1])) if written else [])


def _listed(todos: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    listed = [{**todo, "position": position} for position, todo in enumerate(todos)]
    return {"count": len(listed), "todos": listed}


def _checked(arguments: Mapping[str, Any]) -> list[dict[str, str]]:
    """Raises `ToolArgumentsInvalid` naming the first place that is wrong."""
    if "todos" not in arguments:
        raise ToolArgumentsInvalid('missing required argument "todos"', field="todos")
    given = arguments["todos"]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in cast("list[Any]", given)):
        raise ToolArgumentsInvalid("decode todos: must be an array of {id, content, status}", field="todos")
    seen: set[str] = set()
    todos: list[dict[str, str]] = []
    for at, item in enumerate(cast("list[dict[str, Any]]", given)):
        todo = {name: item.get(name) for name in ("id", "content", "status")}
        for name in ("id", "content"):
            value = todo[name]
            if not isinstance(value, str) or not value.strip():
                raise ToolArgumentsInvalid(f"todos[{at}].{name} must be a non-empty string", field=f"todos/{at}/{name}")
        if todo["status"] not in STATUSES:
            raise ToolArgumentsInvalid(
                f'todos[{at}].status "{todo["status"]}" is invalid; must be one of {"|".join(STATUSES)}',
                field=f"todos/{at}/status",
            )
        checked = cast("dict[str, str]", todo)
        if checked["id"] in seen:
            raise ToolArgumentsInvalid(
                f'todos[{at}].id "{checked["id"]}" is a duplicate; ids must be unique within a call',
                field=f"todos/{at}/id",
            )
        seen.add(checked["id"])
        todos.append(checked)
    return todos


class Scratchpad:
    definition = ToolDefinition(
        name="scratchpad",
        description=(
            "Writes a note for yourself. Other agents do not see it; read_scratchpad shows all notes of your run."
        ),
        schema=object_schema({"text": text("The note.", minLength=1, maxLength=LONGEST_NOTE)}, ["text"]),
        effect="idempotent",
        repeats=True,
        category="core",
        timeout=5.0,
    )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        note = _note(call.arguments)
        return {"status": "ok", "scratch_id": _note_id(call.run_id, call.call_id), "chars": len(note)}


class ReadScratchpad:
    def __init__(self, history: History) -> None:
        self._history = history
        self.definition = ToolDefinition(
            name="read_scratchpad",
            description="All notes that you wrote with scratchpad in this run, oldest first.",
            schema=_NO_ARGUMENTS,
            effect="read",
            category="core",
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        written = (await past_of(self._history, call.run_id)).succeeded("scratchpad")
        notes = [{"scratch_id": _note_id(call.run_id, each.id), "text": _note(_arguments(each))} for each in written]
        return {"count": len(notes), "notes": notes}


def _note(arguments: Mapping[str, Any]) -> str:
    if arguments.get("text") is None:
        raise ToolArgumentsInvalid('missing required argument "text"', field="text")
    note = arguments["text"]
    if not isinstance(note, str):
        raise ToolArgumentsInvalid('argument "text" must be a string', field="text")
    if not note.strip():
        raise ToolArgumentsInvalid('argument "text" must be a non-empty string', field="text")
    return note


def _note_id(run_id: str, call_id: str) -> str:
    """The same whenever it is asked for, so that a note that is read is the note that was written."""
    return str(uuid5(NAMESPACE_URL, f"foliot:scratchpad:{run_id}:{call_id}"))


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ToolError(f"call {call.id!r} of {call.name!r} cannot be read: {error}", retryable=False) from None
