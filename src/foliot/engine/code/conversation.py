"""The course of a program, as the conversation of a run: calls that it asked for, results, and its last word.

Nothing of a program is stored but this. To go on with one, it is run again from its start and given the results that
stand in the conversation; what it asks for then has to be what it asked for before. So a program survives its process,
moves to other machines, and is forked and replayed as any run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from foliot.engine.definition.freeze import CLIENT, CODE, CONCURRENCY, DECLARED, DEFERRED, ENDPOINT, LOCK
from foliot.kernel.messages import Message, ModelRequest, ModelSettings, Text, ToolCall, ToolResult, ToolSpec
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.spec import Repairs, RunSpec
from foliot.models.base import ModelError
from foliot.tools.backends.agent import Program
from foliot.tools.builtin.code import arguments_of, plain, python_names, value_of

# The model of such runs, that every process has. No agent can name it.
REFERENCE: Final = "builtin:code"
# In the extra of a spec: it is that of a program, and what its agent had left of tokens, for agents that it calls.
PROGRAM: Final = "program"
_SETTINGS: Final = "program"
# What one program may print, and how much of an error is told.
MOST_PRINTED: Final = 100_000
# Bytes of JSON that the value of its last expression may have: it is one answer, in the journal and for a model.
MOST_VALUE: Final = 1024 * 1024
LONGEST_ERROR: Final = 4_000
# The engine takes no more calls in one answer; see `engine.driver.effects.MAX_CALLS`.
MOST_AT_ONCE: Final = 256
# Results that a program reads may be larger than what a model is shown.
RESULT_LIMIT: Final = 4 * 1024 * 1024
NOTHING: Final = "The program ended. It printed nothing, and its last expression has no value."


class ProgramError(ModelError):
    """The program ended with an error: running it again would end the same way."""

    kind = "program"
    retryable = False


def program_spec(spec: RunSpec, tools: Sequence[str], program: Program, left: Limits) -> RunSpec:
    """The spec of a run of the same agent in which a program stands in for its model. `left` is what it may spend."""
    kept = frozenset(tools)
    # All that governs the agent governs its programs: what is left out here is only what is for its model.
    extra = {name: value for name, value in spec.extra.items() if name not in (DEFERRED, CLIENT, CONCURRENCY, CODE)}
    extra[LOCK] = {name: pinned for name, pinned in spec.extra.get(LOCK, {}).items() if name in kept}
    if DECLARED in extra:
        extra[DECLARED] = [name for name in extra[DECLARED] if name in kept]
    calls = program.max_calls if left.max_tool_calls is None else min(program.max_calls, left.max_tool_calls)
    return replace(
        spec,
        system="",
        tools=tuple(rule for rule in spec.tools if rule.name in kept),
        settings=ModelSettings(extra={_SETTINGS: msgspec.to_builtins(program)}),
        fallbacks=(),
        # Its questions have no tokens, so a limit on these holds only for agents that it calls.
        limits=replace(left, max_steps=program.max_calls + 1, max_tokens=None, max_tool_calls=calls),
        repairs=Repairs(calls=program.max_calls + 1),
        contract=None,
        # A program that makes the same call twice means it; only a rule against it holds for programs too.
        duplicates="deny" if spec.duplicates == "deny" else "allow",
        output_schema=None,
        tool_use_behavior="run_llm_again",
        on_limit="fail",
        compaction=False,
        budget_notes=False,
        extra={**extra, ENDPOINT: REFERENCE, PROGRAM: {"max_tokens": left.max_tokens}},
    )


def limits_of(spec: RunSpec) -> Limits:
    """The limits of a run as those hold for agents that it calls."""
    given = spec.extra.get(PROGRAM)
    return spec.limits if given is None else replace(spec.limits, max_tokens=given["max_tokens"])


# --- calls and results -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a program asks for. `number` tells it from the others of the program.

    Its `id` is made up: two programs that do the same are not taken for each other.
    """

    number: int
    tool: str
    arguments: dict[str, Any]
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(8)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call for the program: the value that it returns, or the text of the error that it raises."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that stand in the conversation, each with its answer."""

    calls: tuple[ToolCall, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program: what it printed, and the value of its last expression as JSON; `shown` if that is none."""

    printed: str
    value: str = ""
    unawaited: tuple[str, ...] = ()
    shown: str = ""


Turn: TypeAlias = Sequence[Call] | Ended


@dataclass(frozen=True, slots=True)
class Course:
    """A program, and how far it has come. `key` names the conversation up to its last calls; empty before them."""

    source: str
    functions: Mapping[str, ToolSpec]
    program: Program
    batches: tuple[Batch, ...]
    key: str


class Runner(Protocol):
    """Runs programs up to where they wait for answers that they have not."""

    async def run(self, course: Course) -> Turn:
        """Raises `ProgramError`, and another `ModelError` when it cannot be run here and now."""
        ...

    async def close(self) -> None: ...


def course_of(request: ModelRequest) -> Course:
    """Read a question that a program is to answer. Raises `ProgramError` for a conversation that is none of one."""
    names = python_names(tool.name for tool in request.tools)
    functions = {names[tool.name]: tool for tool in request.tools}
    program = msgspec.convert(request.settings.extra.get(_SETTINGS, {}), Program)
    first, *others = request.messages or (Message("user"),)
    batches: list[Batch] = []
    asked: tuple[ToolCall, ...] = ()
    for message in others:
        if message.role == "assistant" and message.calls and not asked:
            asked = message.calls
        elif message.role == "tool" and asked:
            results = {part.call_id: part for part in message.parts if isinstance(part, ToolResult)}
            batches.append(Batch(asked, tuple(_answer(results[call.id]) for call in asked)))
            asked = ()
        else:
            raise ProgramError(
                "a program hears nothing but the results of its calls, and something else was said to it",
                hint="start the work again with what is to be changed",
            )
    key = batches[-1].calls[0].id if batches else ""
    return Course(first.text, functions, program, tuple(batches), key)


def _answer(result: ToolResult) -> Answer:
    if result.error is not None:
        return Answer(error=f"{result.error.code}: {result.error.message}")
    media = [part.media_type for part in result.content if not isinstance(part, Text)]
    if media and not result.text:
        return Answer(f"[{', '.join(media)}: a program cannot read it]")
    return Answer(value_of(result.text))


def asked_for(course: Course, number: int, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The call that a program makes by calling a function. Raises `NameError`, `TypeError` for the program."""
    tool = course.functions.get(function)
    if tool is None:
        raise NameError(f"name {function!r} is not defined")
    try:
        return Call(number, tool.name, arguments_of(tool.schema, args, kwargs))
    except TypeError as error:
        raise TypeError(f"{function}(): {error}") from None


def answers_to(calls: Sequence[Call], batch: Batch) -> dict[int, Answer]:
    """Returns the answers that the conversation has to these calls, by number. Raises `ProgramError` for others."""
    now = [(call.tool, call.arguments) for call in calls]
    before = [(call.name, msgspec.json.decode(call.arguments)) for call in batch.calls]
    if now != before:
        told, was = (", ".join(_shown(name, given) for name, given in each) for each in (now, before))
        raise ProgramError(
            f"run again, the program asked for {told[:500]} where it had asked for {was[:500]}; it was ended",
            hint="a program must not depend on the time, on chance, or on what changes outside of it",
        )
    return {call.number: answer for call, answer in zip(calls, batch.answers, strict=True)}


def _shown(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({msgspec.json.encode(arguments).decode()[:200]})"


def allowed(course: Course, calls: Sequence[Call]) -> Sequence[Call]:
    """The calls that a program asks for now. Raises `ProgramError` when they are more than it may make."""
    made, most = sum(len(batch.calls) for batch in course.batches), course.program.max_calls
    if made + len(calls) > most:
        raise ProgramError(f"the program asked for more than {most} calls, which is the most that it may make")
    return calls


def ended(printed: str, value: Any, unawaited: tuple[str, ...]) -> Ended:
    """The end of a program with this value. Raises `ProgramError` for one that is too large. Takes its time."""
    if value is None:
        return Ended(printed, "", unawaited)
    try:
        data = msgspec.json.encode(plain(value, "the value"))
    except (TypeError, ValueError, OverflowError) as error:  # deep, no JSON, no Unicode
        return Ended(printed, "", unawaited, f"{str(value)[:LONGEST_ERROR]} ({error})")
    if len(data) > MOST_VALUE:
        raise failure(
            f"the value of the last expression has {len(data):,} bytes as JSON; {MOST_VALUE:,} are the most: "
            "end with the part of it that is needed",
            printed,
        )
    return Ended(printed, data.decode(), unawaited)


def message_of(turn: Turn) -> Message:
    """The turn of a program as a model would have said it."""
    if isinstance(turn, Ended):
        return Message("assistant", (Text(_last_word(turn)),))
    calls = [ToolCall(call.id, call.tool, msgspec.json.encode(call.arguments).decode()) for call in turn]
    return Message("assistant", tuple(calls))


def _last_word(ended: Ended) -> str:
    parts = [ended.printed.rstrip("\n")] if ended.printed.strip() else []
    if ended.value:
        parts.append(f"=> {ended.value}")
    if ended.shown:
        parts.append(f"=> {ended.shown[:LONGEST_ERROR]}")
    parts += [f"The call of {name} was not awaited, and was not made." for name in dict.fromkeys(ended.unawaited)]
    return "\n".join(parts) or NOTHING


def failure(text: str, printed: str) -> ProgramError:
    """The end of a program by an error, with the end of what it had printed."""
    said = text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR // 2]}\n[…]\n{text[-LONGEST_ERROR // 2 :]}"
    if printed.strip():
        shown = printed if len(printed) <= LONGEST_ERROR else f"[…]{printed[-LONGEST_ERROR:]}"
        said = f"{said.rstrip()}\nIt had printed:\n{shown.rstrip()}"
    return ProgramError(said)


MakeRunner: TypeAlias = Callable[[], Runner]
