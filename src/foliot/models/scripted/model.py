"""The scripted model: plays answers from a script or a Python function. A gateway like any other.

Examples, tests and benchmarks use it, so that everything runs offline; a real provider differs only by name. It can
stream, be slow and fail on purpose. It keeps no memory of a run: the turn to play is worked out from the transcript
in the request, so a run that was killed and resumed, replayed or forked at a step, in whatever process, gets the turn
it would have got.

A script is a list of turns. Each answer of the model plays the next one:

    - call: {search: {query: "{input}"}}
    - say: "I found this: {last_result}"

What a turn may hold (a bare text is short for `say`):

    say       the text of the answer; a mapping or list is said as JSON
    think     what the model thought first (reasoning)
    call      tools to call: `name`, `{name: {arguments}}`, several names in one mapping or a list of these for parallel
              calls, or the long form `{tool: name, args: {…}, id: …}`. Arguments given as a text are sent as they are,
              valid JSON or not
    after     wait before answering: 200ms, 1.5s, 2m, or a number of seconds
    chunk     characters per streamed piece (16); `pace` is the wait between pieces
    fail      fail instead: rate_limit, overloaded, timeout, garbage, auth, request or context_overflow
    times     fail only that often, then play the rest of the turn; `retry_after` is what the provider would ask for,
              `fail_at` lets that many characters of `say` be streamed first
    usage     {input_tokens, output_tokens, cache_read_tokens, …}; estimated from the texts when left out
    stop      why the model stopped: end, tool_calls, length, refusal, other (worked out when left out)
    repeat    play the turn that many times in a row
    when      play the turn only if this holds, otherwise skip it

In `say`, `think` and arguments these names are filled in: {input} (the last thing the user said), {first_input},
{last_result} (the text of the last tool result), {last_tool}, {step} (the number of this answer, from 1), {model},
{agent}, {system}. Other words in braces stay as they are, and {{input}} gives a literal {input}.

`when` holds if all of its tests hold. A list of words means "any of these"; case does not matter.

    input: word      the last user text contains it        called: tool     the tool was called before
    result: word     the last tool result contains it      last_tool: tool  the last result came from it
    system: word     the system prompt contains it         tool: name       the tool is offered
    failed: true     the last tool result is an error      step: 3          this is the third answer
    agent: name      this agent asks                       model: name      this model is asked for
    not: {…}         the opposite                          any: [{…}, {…}]  at least one of these
    unanswered: tool its result is newer than any answer, whatever a person has said since

Turns that are not played are skipped for good: each answer takes the next turn, from the place reached, whose `when`
holds. With options, a script is a mapping:

    turns: [ … ]
    otherwise: I have nothing more to say.   # a turn, played whenever the turns have run out
    loop: false                              # true: begin again after the last turn
    count: conversation                      # input: begin again at each user message (for chats)
    after: 50ms                              # also chunk, pace: for every turn that does not say its own

When the turns have run out and there is neither `otherwise` nor `loop`, the call fails with a request error that says
so: a test should not pass because a script happened to be silent. Compaction takes answers out of a transcript, so a
long chat is best scripted with `count: input`.

One endpoint can serve several agents: a list of such mappings, each with `match` (tests as for `when`, except `step`);
the first that matches plays.

    - match: {agent: planner}
      turns: [{say: "1. look, 2. decide"}]
    - turns: [{say: "I am everybody else."}]

`times` is the one thing that has to be counted: in memory, per process, by transcript. Two runs that have said exactly
the same share the count; a new process starts counting anew. Once the turn has been played the count is forgotten.

Two scripts have names: `mock` (calls the tools it is offered, then answers; see `mock_turn`) and `echo` (says the last
user text back).

In Python a function may take the place of the script. It gets the request and returns a text, a turn as above (a
mapping; names in braces are not filled in, since Python can do that itself), tool calls (a `ToolCall`, or a list in the
forms of `call`), a `Message` or a whole `ModelResponse`; it may be async and may raise a `ModelError`.

    model = ScriptedModel(lambda request: f"You said: {request.messages[-1].text}")
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from inspect import isawaitable
from typing import Any, Final, TypeAlias, cast

import msgspec

from foliot.errors import FoliotError, InvalidInput
from foliot.kernel.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolSpec,
    Usage,
)
from foliot.kernel.tokens import estimate_parts, estimate_request
from foliot.models.base import (
    ModelAuthError,
    ModelContextOverflow,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimeout,
    OnDelta,
)
from foliot.models.config import GatewayConfig
from foliot.models.scripted.script import (
    Moment,
    ScriptedCall,
    ScriptTurn,
    read_script,
    read_turn,
    render,
    render_value,
    validate_script,
)

# --- mock ------------------------------------------------------------------------------------------------------------

# The built-in script `mock`: tries the tools it is offered, then answers. It makes whole pipelines run offline.
#
# It says `model=<model> step=<n>`. Given tools, it looks for the words vector, search, web, db and echo, in this
# order: when one is in the input and in the name of a tool that was not called yet, that tool is called; otherwise the
# first tool is called in the first step. The input of the call is the user's text; other required arguments get the
# smallest value their schema allows, so that the call is a valid one.

_WORDS: Final = ("vector", "search", "web", "db", "echo")
_DEPTH: Final = 4


def mock_turn(request: ModelRequest) -> ScriptTurn:
    """Returns the turn for this request."""
    step = _answers(request) + 1
    if (request.output_schema is None or request.tools) and (tool := _choose(request, step)) is not None:
        arguments = _arguments(tool, _input(request) or f"step={step}")
        call = ScriptedCall(tool.name, arguments, msgspec.json.encode(arguments).decode())
        return ScriptTurn(say=f"model={request.model} step={step}", calls=(call,))
    if request.output_schema is not None:
        return ScriptTurn(say=sample(request.output_schema, _input(request)))
    return ScriptTurn(say=f"model={request.model} step={step}")


def _input(request: ModelRequest) -> str:
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


def _choose(request: ModelRequest, step: int) -> ToolSpec | None:
    signal = f"{request.system}\n{_input(request)}".lower()
    called = {call.name for message in request.messages for call in message.calls}
    for word in _WORDS:
        if word in signal:
            for tool in request.tools:
                if word in tool.name.lower() and tool.name not in called:
                    return tool
    return request.tools[0] if step == 1 and request.tools else None


def _arguments(tool: ToolSpec, text: str) -> dict[str, Any]:
    if tool.schema is None:
        return {"input": text}
    made = sample(tool.schema, text)
    arguments = cast("dict[str, Any]", made) if isinstance(made, dict) else {}
    if "input" in cast("dict[str, Any]", tool.schema.get("properties") or {}):
        arguments.setdefault("input", text)
    return arguments


def sample(schema: dict[str, Any], text: str, depth: int = _DEPTH) -> Any:
    """A small value that fits the common shapes of JSON Schema; texts are `text`, optional fields are left out."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key) and depth:
            return sample(schema[key][0], text, depth - 1)
    kind: Any = schema.get("type", "object" if "properties" in schema else "string")
    match str(cast("list[Any]", kind)[0] if isinstance(kind, list) else kind):
        case "object":
            fields = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
            required = cast("list[str]", schema.get("required") or [])
            return {name: sample(fields.get(name, {}), text, depth - 1) for name in required} if depth else {}
        case "array":
            least = int(schema.get("minItems", 0))
            return [sample(schema.get("items") or {}, text, depth - 1) for _ in range(least)] if depth else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text


# --- scripted --------------------------------------------------------------------------------------------------------

__all__ = ["ScriptFunction", "ScriptedModel", "build", "validate_script"]

ScriptFunction: TypeAlias = Callable[[ModelRequest], Any]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

PROVIDER: Final = "scripted"
_COUNTS_KEPT: Final = 10_000
_FAILURES: Final[Mapping[str, tuple[type[ModelError], int | None]]] = {
    "rate_limit": (ModelRateLimited, 429),
    "overloaded": (ModelOverloaded, 529),
    "timeout": (ModelTimeout, None),
    "garbage": (ModelGarbage, 200),
    "auth": (ModelAuthError, 401),
    "request": (ModelRequestError, 400),
    "context_overflow": (ModelContextOverflow, 400),
}


def _echo(request: ModelRequest) -> str:
    return Moment(request, request.messages, 0).input


NAMED: Final[Mapping[str, ScriptFunction]] = {"mock": mock_turn, "echo": _echo}


def build(config: GatewayConfig) -> ScriptedModel:
    """The gateway of an endpoint with provider `scripted` or `mock`. Raises `InvalidInput` for a script that is wrong.

    The script is the option `script`, which the provider `mock` brings along.
    """
    script = config.options.get("script")
    if script is None:
        raise InvalidInput(
            "a scripted model needs a script",
            hint="add `script:` with a list of turns to the endpoint, or use `script: mock`",
        )
    return ScriptedModel(script, model=config.model or PROVIDER)


class ScriptedModel:
    """A `Gateway` that plays `script`: turns (see above), the name of a built-in script, or a function.

    Raises `InvalidInput` at once when the script has a mistake.
    """

    provider: Final = PROVIDER

    def __init__(self, script: Any, *, model: str = PROVIDER, sleep: Sleep = asyncio.sleep) -> None:
        self._model = model
        self._sleep = sleep
        self._failed: OrderedDict[bytes, int] = OrderedDict()
        if isinstance(script, str):
            if script not in NAMED:
                raise InvalidInput(f"no script is called {script!r}", hint=f"known: {', '.join(NAMED)}")
            script = NAMED[script]
        self._function: ScriptFunction | None = script if callable(script) else None
        self._script = None if callable(script) else read_script(script)

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        if self._function is not None:
            return await self._ask_function(self._function, request, on_delta)
        turn, step = self._pick(request)
        return await self._play(turn, request, step, on_delta)

    async def close(self) -> None:
        self._failed.clear()

    def _pick(self, request: ModelRequest) -> tuple[ScriptTurn, int]:
        assert self._script is not None
        scene = self._script.scene_for(request)
        if scene is None:
            raise ModelRequestError(
                "the script has no part for this request: no `match` holds",
                provider=PROVIDER,
                hint="add a last part without `match`",
            )
        turn, step = scene.pick(request)
        if turn is None:
            raise ModelRequestError(
                f"the script has no turn {step}",
                provider=PROVIDER,
                hint="add the turn, or say what comes then with `otherwise` or `loop: true`",
            )
        return turn, step

    async def _ask_function(
        self, function: ScriptFunction, request: ModelRequest, on_delta: OnDelta | None
    ) -> ModelResponse:
        try:
            answer = function(request)
            if not isinstance(answer, str | ModelResponse) and isawaitable(answer):
                answer = await answer
            if isinstance(answer, dict | ScriptTurn):
                turn = answer if isinstance(answer, ScriptTurn) else read_turn(cast("dict[str, Any]", answer))
                return await self._play(turn, request, _answers(request) + 1, on_delta)
            response = self._response(answer, request)
        except ModelError:
            raise
        except FoliotError as error:
            raise ModelRequestError(str(error), provider=PROVIDER, hint=error.hint) from error
        except Exception as error:  # a gateway promises to raise nothing but a ModelError
            name = getattr(function, "__name__", "function")
            raise ModelRequestError(
                f"the script function {name} raised {type(error).__name__}: {error}", provider=PROVIDER
            ) from error
        if on_delta is not None:
            await self._stream(response.message, on_delta)
        return response

    def _response(self, answer: Any, request: ModelRequest) -> ModelResponse:
        """Converts the value that a script function returned into a response."""
        if isinstance(answer, str):
            return self._finish((Text(answer),), request)
        if isinstance(answer, ModelResponse):
            return answer
        if isinstance(answer, Message):
            return self._finish(answer.parts, request)
        if isinstance(answer, ToolCall):
            return self._finish((answer,), request)
        if isinstance(answer, list | tuple):
            items = list(cast("list[Any]", answer))
            if items and all(isinstance(item, ToolCall) for item in items):
                return self._finish(tuple(items), request)
            turn = read_turn({"call": items})
            return self._finish(self._calls(turn, Moment(request, request.messages, 0)), request)
        raise InvalidInput(
            f"a script function returned {type(answer).__name__}",
            hint="return a text, a turn (mapping), tool calls, a Message or a ModelResponse",
        )

    async def _play(
        self, turn: ScriptTurn, request: ModelRequest, step: int, on_delta: OnDelta | None
    ) -> ModelResponse:
        if turn.after:
            await self._sleep(turn.after)
        moment = Moment(request, request.messages, step)
        parts = self._parts(turn, moment)
        if turn.fail is not None and self._fails_now(turn, request, step):
            await self._fail(turn, parts, on_delta)
        response = self._finish(parts, request, usage=turn.usage, turn=turn)
        if on_delta is not None:
            await self._stream(response.message, on_delta, chunk=turn.chunk, pace=turn.pace)
        elif turn.pace:  # the answer takes as long, whoever listens
            await self._sleep(turn.pace * (len(response.message.text) // turn.chunk))
        return response

    def _parts(self, turn: ScriptTurn, moment: Moment) -> tuple[Part, ...]:
        parts: list[Part] = []
        if turn.think:
            parts.append(Reasoning(turn.think if turn.fixed else render(turn.think, moment)))
        if turn.say is not None:
            said = turn.say if turn.fixed else render_value(turn.say, moment)
            parts.append(Text(said if isinstance(said, str) else msgspec.json.encode(said).decode()))
        if turn.calls:
            parts.extend(self._calls(turn, moment))
        return tuple(parts)

    def _calls(self, turn: ScriptTurn, moment: Moment) -> tuple[ToolCall, ...]:
        number = _call_number(moment.messages, _answers(moment.request))
        made: list[ToolCall] = []
        for position, call in enumerate(turn.calls, 1):
            text = call.text
            if text is None:
                args = render_value(call.args, moment)
                text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
            made.append(ToolCall(call.id or f"call_{number}_{position}", call.name, text))
        return tuple(made)

    def _finish(
        self,
        parts: tuple[Part, ...],
        request: ModelRequest,
        *,
        usage: Usage | None = None,
        turn: ScriptTurn | None = None,
    ) -> ModelResponse:
        if usage is None:
            usage = Usage(estimate_request(request), estimate_parts(parts), source="estimated")
        stop = turn.stop if turn is not None else None
        if stop is None:
            stop = "tool_calls" if any(type(part) is ToolCall for part in parts) else "end"
        return ModelResponse(Message("assistant", parts), usage, stop, request.model or self._model, PROVIDER)

    def _fails_now(self, turn: ScriptTurn, request: ModelRequest, step: int) -> bool:
        if turn.times is None:
            return True
        key = _digest(request, step)
        failed = self._failed.pop(key, 0)
        if failed >= turn.times:
            return False
        self._failed[key] = failed + 1
        if len(self._failed) > _COUNTS_KEPT:
            self._failed.popitem(last=False)
        return True

    async def _fail(self, turn: ScriptTurn, parts: tuple[Part, ...], on_delta: OnDelta | None) -> None:
        assert turn.fail is not None
        if turn.fail_at and on_delta is not None:
            text = Message("assistant", parts).text[: turn.fail_at]
            await self._stream(Message("assistant", (Text(text),)), on_delta, chunk=turn.chunk, pace=turn.pace)
        kind, status = _FAILURES[turn.fail]
        raise kind(
            f"the script fails here on purpose ({turn.fail})",
            provider=PROVIDER,
            status=status,
            retry_after=turn.retry_after,
        )

    async def _stream(self, message: Message, on_delta: OnDelta, *, chunk: int = 16, pace: float = 0.0) -> None:
        index = 0
        first = True
        for part in message.parts:
            whole = part.arguments if isinstance(part, ToolCall) else getattr(part, "text", "")
            for start in range(0, len(whole), chunk):
                if pace and not first:
                    await self._sleep(pace)
                first = False
                piece = whole[start : start + chunk]
                if isinstance(part, ToolCall):
                    on_delta(ToolCallDelta(index, part.id, part.name, piece))
                elif isinstance(part, Reasoning):
                    on_delta(ReasoningDelta(piece))
                else:
                    on_delta(TextDelta(piece))
            index += isinstance(part, ToolCall)


def _answers(request: ModelRequest) -> int:
    count = 0
    for message in request.messages:
        if message.role == "assistant":
            count += 1
    return count


def _call_number(messages: tuple[Message, ...], answers: int) -> int:
    """A number for the ids of new calls that no call still in the transcript can have.

    The count of answers alone would repeat itself after compaction took some out.
    """
    for message in reversed(messages):
        last = message.parts[-1] if message.parts else None
        if type(last) is ToolCall and last.id.startswith("call_"):
            digits = last.id[5:].partition("_")[0]
            return max(answers, int(digits) if digits.isdecimal() else 0) + 1
    return answers + 1


def _digest(request: ModelRequest, step: int) -> bytes:
    said = msgspec.msgpack.encode((step, request.agent, request.model, request.system, request.messages))
    return blake2b(said, digest_size=16).digest()
