"""`code`: a program in Python that calls the other tools of its agent as functions.

A call starts a child run of the same agent whose model is the program: it asks for calls where a model would, and each
of them is judged, approved, recorded and resumed as any other. What runs the program is in engine/code; here is what a
model sees of it: the tool, and its agent's other tools as signatures of Python.
"""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from foliot.sandbox.base import Sandbox
from foliot.tools import search
from foliot.tools.backends.agent import Agents, Delegated, Program, failure_of, order_for
from foliot.tools.base import (
    FILE_KEYS,
    Invocation,
    OnOutput,
    ToolCancelled,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolUnsupported,
)
from foliot.tools.builtin.arguments import object_schema, required_text, text
from foliot.tools.builtin.overview import Definitions
from foliot.version import install_command

NAME: Final = "code"
PACKAGE: Final = "pydantic_monty"
# These read and write what belongs to the run that calls them: a program would find nothing, and leave nothing.
_OF_THE_RUN: Final = frozenset(
    {NAME, search.NAME, "read_result", "write_todos", "read_todos", "scratchpad", "read_scratchpad"}
)
# So many characters of signatures a model is shown, in the most detail that fits.
MOST_SHOWN: Final = 16_000
LONGEST_TEXT: Final = 300


class ProgramFailed(ToolError):
    """The program ended with an error of its own, or was ended. What its calls have done is done."""

    kind = "internal"
    retryable = False


class Code:
    """`definitions` are all tools of the run, this one among them."""

    def __init__(self, agents: Agents, definitions: Definitions, sandbox: Callable[[], Sandbox] | None = None) -> None:
        self._agents = agents
        self._definitions = definitions
        self._sandbox = sandbox
        self._program = Program()
        self._looking = False
        self._shown: list[ToolDefinition] | None = None
        self._definition = ToolDefinition(
            name=NAME,
            schema=object_schema({"program": text("The program.", minLength=1)}, ["program"]),
            effect="idempotent",  # a call that is made again goes on with the same child
            timeout=None,  # the limits of the program and of the caller bound it
            category="orchestration",
            breaker=False,
            executes=True,
            repeats=True,
        )

    @property
    def isolation(self) -> str:
        return "sandboxed" if self._program.runs_in == "sandbox" and self._sandbox is not None else "none"

    @property
    def program(self) -> Program:
        """How programs are run, and how far they may go; as the agent declares it."""
        return self._program

    @program.setter
    def program(self, program: Program) -> None:
        self._program, self._shown = program, None
        fenced = "sandboxed" if program.runs_in == "sandbox" else "none"
        self._definition = replace(self._definition, isolation=fenced)

    @property
    def definition(self) -> ToolDefinition:
        """The declaration, whose description shows the tools that there are by now: all, once all have been made."""
        if self._looking:  # asked for itself, among all tools of the run
            return self._definition
        usable = self._usable()
        if usable != self._shown:
            self._shown = usable
            # A program takes the files of its agent along and brings them back: nobody else works on them meanwhile.
            keys = (f"{FILE_KEYS}*",) if any(each.touches_files for each in usable) else ()
            said = described(usable, self._program)
            self._definition = replace(self._definition, description=said, resource_keys=keys)
        return self._definition

    def _usable(self) -> list[ToolDefinition]:
        self._looking = True
        try:
            return [each for each in self._definitions() if not each.ends_run and each.name not in _OF_THE_RUN]
        finally:
            self._looking = False

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ProgramFailed`, `ToolDenied`, `ToolCancelled`, and what says that it cannot be run here."""
        if not call.run_id:
            raise ToolUnsupported(f"{call.tool!r} starts a run for a run, and this call is made outside of any")
        self._check_here()
        shown = call.caller.advertised
        tools = tuple(each.name for each in self._usable() if shown is None or each.name in shown)
        order = order_for(call, call.agent, required_text(call, "program"), tools=tools)
        return _answer(await self._agents(structs.replace(order, program=self._program)))

    @property
    def lacks(self) -> str:
        """Names what programs of this agent need and is not here; empty when all is."""
        if self._program.runs_in == "sandbox":
            return "" if self._sandbox is not None else "sandbox of processes"
        return "" if importlib.util.find_spec(PACKAGE) is not None else "package pydantic-monty"

    def _check_here(self) -> None:
        if not self.lacks:
            return
        if self._program.runs_in == "sandbox":
            missing: ToolError = ToolIsolationMissing(
                "programs of this agent run in a sandbox, and there is none here", wanted="sandboxed"
            )
            missing.before_effect = True
            raise missing
        raise ToolUnsupported(
            "programs need the package pydantic-monty, which is not installed here",
            hint=install_command("code"),
        )


def _answer(done: Delegated) -> str:
    if done.phase == "succeeded":
        return done.output
    if done.code == "denied":  # its run ends at a denial, and so does that of its agent
        raise ToolDenied(done.error, layer="program", rule=done.reason, run_id=done.run_id)
    if done.phase == "cancelled":
        raise ToolCancelled(f"the program {failure_of(done)}", run_id=done.run_id)
    raise ProgramFailed(done.error or failure_of(done), run_id=done.run_id, cause=done.reason)


# --- signatures ------------------------------------------------------------------------------------------------------

# Tools as functions of Python. The same text for the same tools, so that prompt caches hit.

_WORDS: Final = re.compile(r"\W+", re.ASCII)
_TAKEN: Final = frozenset({"ToolError", "asyncio", "json", *dir(builtins), *keyword.kwlist})
_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict[str, Any]",
    "null": "None",
}
_HEAD: Final = (
    "Runs a program in Python that calls your other tools as functions, and gives you what it prints and the value of "
    "its last expression. Use it for several calls that follow from each other, for loops, and for large results of "
    "which you need a part: what a call returns goes to the program, not to you.\n"
    "Await each call. `await asyncio.gather(...)` makes calls at the same time. A result that is JSON is returned as a "
    "value, any other as text. A call that fails raises ToolError; its text begins with the code of the error. Every "
    "call is judged and recorded as if you had made it, and may wait for an approval."
)
_INSIDE: Final = {
    "interpreter": (
        "It runs in an interpreter of a part of Python: asyncio (gather), json, math, re, datetime, itertools, "
        "collections, functools, copy, base64, hashlib, csv; no inheritance, no generators, no `async with`. There are "
        "no files and no network, and the clock stands still."
    ),
    "sandbox": "It runs in Python with its standard library, in a sandbox without network.",
}


def python_names(names: Iterable[str]) -> dict[str, str]:
    """A name that Python takes for each tool, by its own: `memory_read` for `memory.read`. No two are the same.

    They depend on the set of names only, not on their order.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    ordered = sorted(set(names))
    for fits in (True, False):  # a name that is fine as it stands keeps itself
        for name in ordered:
            base = _identifier(name)
            if (base == name) is not fits:
                continue
            given, number = base, 1
            while given in taken:
                number += 1
                given = f"{base}_{number}"
            taken.add(given)
            found[name] = given
    return found


def _identifier(name: str) -> str:
    word = _WORDS.sub("_", name).strip("_") or "tool"
    if word[0].isdigit():
        word = f"_{word}"
    return f"{word}_" if word in _TAKEN else word


def parameters(schema: Mapping[str, Any] | None) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Name, schema and whether it is required, of each parameter, in the order in which values are taken."""
    if schema is None:
        return [("input", {"type": "string"}, True)]
    required = cast("Sequence[str]", schema.get("required") or ())
    every = cast("Mapping[str, Any]", schema.get("properties") or {})
    nothing: Mapping[str, Any] = {}
    known = [
        (name, cast("Mapping[str, Any]", each) if isinstance(each, Mapping) else nothing, name in required)
        for name, each in every.items()
    ]
    return sorted(known, key=lambda each: not each[2])


def described(tools: Sequence[ToolDefinition], program: Program) -> str:
    """The description of `code` for an agent with these tools."""
    names = python_names(each.name for each in tools)
    ordered = sorted(tools, key=lambda each: names[each.name])
    head = f"{_HEAD}\n{_INSIDE[program.runs_in]} At most {program.max_calls} calls."
    for detail in (2, 1, 0):
        shown = "\n".join(_signature(each, names[each.name], detail) for each in ordered)
        if len(shown) <= MOST_SHOWN:
            break
    else:
        kept = shown[:MOST_SHOWN].rpartition("\n")[0].splitlines()
        shown = "\n".join((*kept, f"# and {len(ordered) - len(kept)} more"))
    return f"{head}\n\n{shown}" if shown else f"{head}\n\n# There are no other tools."


def _signature(tool: ToolDefinition, name: str, detail: int) -> str:
    """The tool as a function. With `detail` 2 with all it says, with 1 its first sentence, with 0 the line alone."""
    taken = parameters(tool.schema)
    fitting = [each for each in taken if each[0].isidentifier() and not keyword.iskeyword(each[0])]
    listed = ", ".join(f"{key}: {_type(each)}{'' if needed else ' = ...'}" for key, each, needed in fitting)
    others = ", **others" if len(fitting) < len(taken) else ""
    line = f"async def {name}({(listed + others).removeprefix(', ')}) -> Any: ..."
    if not detail:
        return line
    said = " ".join(tool.description.split())
    if detail == 1 or len(said) > LONGEST_TEXT:
        said = said.partition(". ")[0][:LONGEST_TEXT]
    notes = [said] if said else []
    if detail == 2:
        for key, each, _ in taken:
            about = " ".join(str(each.get("description", "")).split())[:LONGEST_TEXT]
            if key not in {one for one, _, _ in fitting}:
                about = f"{about} (give it as **{{{key!r}: ...}})".lstrip()
            notes += [f"    {key}: {about}"] if about else []
    return "\n".join((line, *(f"    # {note}" for note in notes)))


def _type(schema: Mapping[str, Any], depth: int = 0) -> str:
    if depth > 3 or not isinstance(schema, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - as declared
        return "Any"
    if "enum" in schema or "const" in schema:
        values = cast("list[Any]", schema["enum"]) if isinstance(schema.get("enum"), list) else [schema.get("const")]
        if len(values) <= 8 and all(each is None or isinstance(each, str | int | bool) for each in values):
            return f"Literal[{', '.join(map(repr, values))}]"
    for key in ("anyOf", "oneOf"):
        if isinstance(every := schema.get(key), list):
            return _union(_type(each, depth + 1) for each in cast("list[Mapping[str, Any]]", every))
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_type({**schema, "type": each}, depth + 1) for each in cast("list[Any]", kind))
    if kind == "array" and isinstance(items := schema.get("items"), Mapping):
        return f"list[{_type(cast('Mapping[str, Any]', items), depth + 1)}]"
    return _TYPES.get(str(kind), "Any")


def _union(types: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(types)) or "Any"


# --- values ----------------------------------------------------------------------------------------------------------

DEEPEST: Final = 100


def arguments_of(schema: Mapping[str, Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as JSON takes them. Raises `TypeError` as Python does for a call that does not fit."""
    taken = [name for name, _, _ in parameters(schema)]
    if len(args) > len(taken):
        raise TypeError(f"it takes {len(taken)} positional arguments, and {len(args)} were given")
    found = dict(zip(taken, args, strict=False))
    for name, value in kwargs.items():
        if name in found:
            raise TypeError(f"it got several values for the argument {name!r}")
        found[name] = value
    return {name: plain(value, f"the argument {name!r}") for name, value in found.items()}


def plain(value: Any, what: str, depth: int = 0) -> Any:
    """A value of a program as JSON has it. Raises `TypeError` for one that JSON does not know."""
    if depth > DEEPEST:
        raise TypeError(f"{what} is nested more than {DEEPEST} deep")
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float() if value - value == 0:
            return float(value)
        case list() | tuple():
            every = cast("Sequence[Any]", value)
            return [plain(each, what, depth + 1) for each in every]
        case dict():
            known = cast("dict[Any, Any]", value)
            for key in known:
                if not isinstance(key, str):
                    raise TypeError(f"{what} has the key {key!r}; JSON has texts as keys")
            return {key: plain(each, what, depth + 1) for key, each in known.items()}
        case _:
            raise TypeError(f"{what} is {type(value).__name__}, which is not JSON")


def value_of(result: str) -> Any:
    """Returns what a call gives to a program: a value when the text is JSON and not in quotes, else the text itself."""
    if result.startswith('"'):
        return result
    try:
        return msgspec.json.decode(result)
    except (msgspec.DecodeError, RecursionError):
        return result
