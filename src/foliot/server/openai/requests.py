"""Requests of clients, read from the bodies of both APIs into one order.

A member that changes what is done is done or refused, never passed over: parameters.py says of each what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.definition.freeze import with_client_tools
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.messages import Effort, ModelSettings, ToolSpec
from foliot.kernel.run.spec import RunSpec
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.server.http.bodies import refuse_repeated
from foliot.server.openai.content import Conversation, chat_conversation, object_at, response_conversation
from foliot.server.openai.errors import BadRequest
from foliot.server.runs.targets import WorkTarget

# --- client tools ----------------------------------------------------------------------------------------------------

# Tools that a client brings along: functions, which it calls itself when the agent asks for them.
#
# Chat completions wrap each function in a member `function`, responses do not. Which of them are offered is what
# `tool_choice` says; it has no say in the tools of the agent.

MOST_TOOLS: Final = 128
LONGEST_DESCRIPTION: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A function that is given no parameters takes none.
_NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class ClientTools(NamedTuple):
    """The tools that the agent may ask the client to call, and whether it must: auto, required, or which one."""

    tools: tuple[ToolSpec, ...] = ()
    choice: str = "auto"


def client_tools(given: list[Any] | None, choice: object, *, nested: bool) -> ClientTools:
    """Read `tools` and `tool_choice` of a request; `nested` in chat completions. Raises `BadRequest`."""
    if given is not None and len(given) > MOST_TOOLS:
        raise BadRequest(f"at most {MOST_TOOLS} tools can be given", param="tools")
    tools: dict[str, ToolSpec] = {}
    for index, each in enumerate(given or ()):
        tool = _function(each, f"tools[{index}]", nested=nested)
        if tool.name in tools:
            raise BadRequest(f"two tools are named {tool.name!r}", param=f"tools[{index}]")
        tools[tool.name] = tool
    return _chosen(tools, choice, nested=nested)


def _function(given: object, place: str, *, nested: bool) -> ToolSpec:
    tool = object_at(given, place)
    if (kind := tool.get("type")) != "function":
        raise BadRequest(
            f"tools of type {kind!r} cannot be given",
            param=f"{place}.type",
            hint="functions can, which you call yourself; others are declared with the agent",
            code="unsupported_value",
        )
    if nested:
        place = f"{place}.function"
        tool = object_at(tool.get("function"), place)
    name, description = tool.get("name"), tool.get("description") or ""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest("a name is up to 64 letters, digits, dashes and underscores", param=f"{place}.name")
    if not isinstance(description, str) or len(description) > LONGEST_DESCRIPTION:
        raise BadRequest(f"a text of at most {LONGEST_DESCRIPTION} characters", param=f"{place}.description")
    parameters = tool.get("parameters")
    schema = _NOTHING if parameters is None else object_at(parameters, f"{place}.parameters")
    try:
        # Arguments are held against the schema before the client hears of a call, whether `strict` is asked for or not.
        validator_of(schema)
    except UnusableSchema as error:
        raise BadRequest(f"this schema cannot be used: {error.message}", param=f"{place}.parameters") from None
    return ToolSpec(name, description, schema)


def _chosen(tools: dict[str, ToolSpec], choice: object, *, nested: bool) -> ClientTools:
    every = tuple(tools.values())
    match choice:
        case None | "auto":
            return ClientTools(every)
        case "none":
            return ClientTools()
        case "required":
            if not tools:
                raise BadRequest("there is no tool that could be called", param="tool_choice")
            return ClientTools(every, "required")
        case {"type": "function"}:
            named = cast("dict[str, Any]", choice)
            return ClientTools(every, _named(tools, named, "tool_choice", nested=nested).name)
        case {"type": "allowed_tools"}:
            allowed = cast("dict[str, Any]", choice)
            if nested:
                allowed = object_at(allowed.get("allowed_tools"), "tool_choice.allowed_tools")
            listed = allowed.get("tools")
            if not isinstance(listed, list) or not listed:
                raise BadRequest("a list of tools is expected here", param="tool_choice.tools")
            some = [
                _named(tools, object_at(each, "tool_choice.tools"), "tool_choice.tools", nested=nested)
                for each in cast("list[Any]", listed)
            ]
            return ClientTools(tuple(some), "required" if allowed.get("mode") == "required" else "auto")
        case _:
            raise BadRequest(
                "tool_choice is auto, none, required, a function, or allowed_tools",
                param="tool_choice",
                code="unsupported_value",
            )


def _named(tools: dict[str, ToolSpec], given: dict[str, Any], place: str, *, nested: bool) -> ToolSpec:
    inner = object_at(given.get("function"), f"{place}.function") if nested else given
    tool = tools.get(str(inner.get("name")))
    if tool is None:
        raise BadRequest(f"there is no tool {str(inner.get('name'))[:100]!r} among tools", param=place)
    return tool


# --- parameters ------------------------------------------------------------------------------------------------------

# The treatment of each parameter of both APIs: one table, which the reader obeys and docs/openai.md shows.
#
# A parameter that changes what is done is done or refused, never passed over in silence. What has no effect here is
# named, with the reason. One that is in no table is refused: a mistyped name is not taken for a wish that was granted.

Fate: TypeAlias = Literal["done", "kept", "no effect", "only", "refused"]


class RequestParameter(NamedTuple):
    """`note` is for people. Of a parameter that is `only` some values, those are `values`, beside null."""

    fate: Fate
    note: str
    values: tuple[Any, ...] = ()


_LABEL: Final = "a label of the run; never who acts"
_SERVICE: Final = "concerns OpenAI's own service; prompts are cached as the agent's endpoint says"
_SINGLE: Final[dict[str, RequestParameter]] = {
    "metadata": RequestParameter("kept", "labels of the run"),
    "model": RequestParameter("done", "an agent or a system"),
    "moderation": RequestParameter("refused", "policies are declared with the agent"),
    "parallel_tool_calls": RequestParameter("done", "for this run, as far as its provider can"),
    "prompt_cache_key": RequestParameter("no effect", _SERVICE),
    "prompt_cache_options": RequestParameter("no effect", _SERVICE),
    "prompt_cache_retention": RequestParameter("no effect", _SERVICE),
    "safety_identifier": RequestParameter("kept", _LABEL),
    "service_tier": RequestParameter("only", "the tier is the endpoint's", ("auto", "default")),
    "store": RequestParameter("no effect", "runs are stored, always; DELETE and `foliot purge` forget them"),
    "stream": RequestParameter("done", "the answer in pieces"),
    "temperature": RequestParameter("done", "for this run"),
    "tool_choice": RequestParameter("done", "of the client's tools; the agent's own are its own"),
    "tools": RequestParameter("done", "functions, which the client calls; other types are refused"),
    "top_p": RequestParameter("done", "for this run"),
    "user": RequestParameter("kept", _LABEL),
}
CHAT: Final[Mapping[str, RequestParameter]] = {
    **_SINGLE,
    "audio": RequestParameter("refused", "answers are text"),
    "frequency_penalty": RequestParameter("only", "not every model has it", (0,)),
    "function_call": RequestParameter("refused", "use tool_choice"),
    "functions": RequestParameter("refused", "use tools"),
    "logit_bias": RequestParameter("only", "not every model has it", ({},)),
    "logprobs": RequestParameter("only", "an agent's answer has no probabilities", (False,)),
    "max_completion_tokens": RequestParameter("done", "never more than the agent's own limit"),
    "max_tokens": RequestParameter("done", "the older name of max_completion_tokens"),
    "messages": RequestParameter("done", "the conversation"),
    "modalities": RequestParameter("only", "answers are text", (["text"], [])),
    "n": RequestParameter("only", "there is one answer to a request", (1,)),
    "prediction": RequestParameter("refused", "an agent writes in steps"),
    "presence_penalty": RequestParameter("only", "not every model has it", (0,)),
    "reasoning_effort": RequestParameter("done", "for this run"),
    "response_format": RequestParameter("done", "for agents without an output_schema of their own"),
    "seed": RequestParameter("done", "for this run"),
    "stop": RequestParameter("done", "for this run"),
    "stream_options": RequestParameter("done", "include_usage; include_obfuscation has no effect: nothing is padded"),
    "top_logprobs": RequestParameter("only", "an agent's answer has no probabilities", (0,)),
    "verbosity": RequestParameter("only", "say it in a system message", ("medium",)),
    "web_search_options": RequestParameter("refused", "an agent has its own tools"),
}
RESPONSES: Final[Mapping[str, RequestParameter]] = {
    **_SINGLE,
    "access_programs": RequestParameter("refused", "concerns OpenAI's own service"),
    "background": RequestParameter("done", "returns at once"),
    "context_management": RequestParameter("refused", "declared with the agent"),
    "conversation": RequestParameter("done", "the name of a session"),
    "image": RequestParameter("refused", "answers are text"),
    "include": RequestParameter(
        "only", "nothing else can be added to an answer", ([], ["reasoning.encrypted_content"])
    ),
    "input": RequestParameter("done", "what is said"),
    "instructions": RequestParameter("done", "behind the agent's own prompt"),
    "max_output_tokens": RequestParameter("done", "never more than the agent's own limit"),
    "max_tool_calls": RequestParameter("refused", "limits are declared with the agent"),
    "previous_response_id": RequestParameter("done", "the conversation goes on from there"),
    "prompt": RequestParameter("refused", "prompts are declared with the agent"),
    "reasoning": RequestParameter(
        "done", "effort; summary has no effect, for what a model thinks is not sent; no others"
    ),
    "stream_options": RequestParameter("no effect", "nothing is padded"),
    "text": RequestParameter("done", "format, for agents without an output_schema of their own; verbosity only medium"),
    "top_logprobs": RequestParameter("only", "an agent's answer has no probabilities", (0,)),
    "truncation": RequestParameter("only", "nothing is left out in silence", ("disabled",)),
}


def check_parameters(given: Mapping[str, Any], known: Mapping[str, RequestParameter]) -> None:
    """Raises `BadRequest` for one that is not known, or asks for what is not done. Null is as if it were not there."""
    for name, value in given.items():
        if value is None:
            continue
        parameter = known.get(name)
        if parameter is None:
            raise BadRequest(f"there is no parameter {name[:100]!r}", param=name[:100], code="unknown_parameter")
        if parameter.fate == "refused" and value:
            raise BadRequest(
                f"{name} cannot be used here", param=name, hint=parameter.note, code="unsupported_parameter"
            )
        if parameter.fate == "only" and not _is_one_of(value, parameter.values):
            allowed = " or ".join(_written(each) for each in parameter.values)
            text = f"{name} can only be {allowed}"
            raise BadRequest(text, param=name, hint=parameter.note, code="unsupported_value")


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether it is one of these; true is not 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def parameter_table(known: Mapping[str, RequestParameter]) -> str:
    """The table as Markdown, for docs/openai.md."""
    lines = ["| parameter | what happens | |", "|---|---|---|"]
    for name, (fate, note, values) in sorted(known.items()):
        said = f"only {' or '.join(f'`{_written(each)}`' for each in values)}" if fate == "only" else fate
        lines.append(f"| `{name}` | {said} | {note} |")
    return "\n".join(lines) + "\n"


# --- requests --------------------------------------------------------------------------------------------------------

MOST_METADATA: Final = 16
LONGEST_KEY: Final = 64
LONGEST_VALUE: Final = 512
MOST_TOKENS: Final = 2**31
_VERBOSITY: Final = "verbosity can only be medium: how an agent writes is said in its prompt, or in a system message"

S = TypeVar("S", bound=Struct)


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Struct, kw_only=True):
    """The body of `POST /v1/chat/completions`, as far as it is looked at; parameters.py tells of the rest."""

    model: str
    messages: list[Any]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    reasoning_effort: Effort | None = None
    response_format: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


class Reasoning(Struct, forbid_unknown_fields=True):
    effort: Effort | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class TextOptions(Struct, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(Struct, kw_only=True):
    """The body of `POST /v1/responses`, as far as it is looked at; parameters.py tells of the rest."""

    model: str
    input: Any = None
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """One request. `previous` is the id of the answer that it continues; `session` names a session."""

    model: str
    conversation: Conversation
    stream: bool = False
    background: bool = False
    include_usage: bool = False
    previous: str = ""
    session: str = ""
    user: str = ""
    settings: ModelSettings = field(default_factory=ModelSettings)
    schema: dict[str, Any] | None = None
    instructions: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[ToolSpec, ...] = ()


def read_chat(body: bytes) -> OpenAIRequest:
    """Raises `BadRequest`."""
    request = _decoded(body, ChatRequest, CHAT)
    offered = client_tools(request.tools, request.tool_choice, nested=True)
    conversation = chat_conversation(request.messages)
    settings = _settings(
        request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens,
        "max_completion_tokens",
        request.temperature,
        request.top_p,
        request.stop,
        request.seed,
        request.reasoning_effort,
        offered.choice,
        request.parallel_tool_calls,
    )
    options = request.stream_options
    return OpenAIRequest(
        _word(request.model, "model"),
        conversation,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        user=_word(request.safety_identifier or request.user, "user"),
        settings=settings,
        schema=_chat_schema(request.response_format),
        instructions="\n\n".join(conversation.instructions),
        metadata=_metadata(request.metadata),
        tools=offered.tools,
    )


def read_response(body: bytes) -> OpenAIRequest:
    """Raises `BadRequest`."""
    request = _decoded(body, ResponsesRequest, RESPONSES)
    offered = client_tools(request.tools, request.tool_choice, nested=False)
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        raise BadRequest(_VERBOSITY, param="text.verbosity", code="unsupported_value")
    if request.reasoning is not None and (request.reasoning.context or request.reasoning.mode):
        raise BadRequest("of reasoning, only the effort can be chosen", param="reasoning", code="unsupported_value")
    session = request.conversation
    if isinstance(session, dict):
        session = str(session.get("id") or "")
    if session and request.previous_response_id:
        raise BadRequest("give conversation or previous_response_id, not both", param="conversation")
    conversation = response_conversation(request.input)
    instructions = [*([request.instructions] if request.instructions else []), *conversation.instructions]
    effort = request.reasoning.effort if request.reasoning else None
    return OpenAIRequest(
        _word(request.model, "model"),
        conversation,
        stream=bool(request.stream),
        background=bool(request.background),
        include_usage=True,
        previous=request.previous_response_id or "",
        session=_word(session, "conversation"),
        user=_word(request.safety_identifier or request.user, "user"),
        settings=_settings(
            request.max_output_tokens,
            "max_output_tokens",
            request.temperature,
            request.top_p,
            None,
            None,
            effort,
            offered.choice,
            request.parallel_tool_calls,
        ),
        schema=_schema_of(request.text.format if request.text else None, "text.format"),
        instructions="\n\n".join(instructions),
        metadata=_metadata(request.metadata),
        tools=offered.tools,
    )


def adjusted(order: OpenAIRequest, spec: RunSpec) -> RunSpec:
    """Returns the spec of the run: the agent, within what the request asks for. It never gets more room than it had."""
    given, wanted = spec.settings, order.settings
    bounds = [each for each in (given.max_output_tokens, wanted.max_output_tokens) if each is not None]
    settings = replace(
        given,
        max_output_tokens=min(bounds, default=None),
        temperature=given.temperature if wanted.temperature is None else wanted.temperature,
        top_p=given.top_p if wanted.top_p is None else wanted.top_p,
        stop=wanted.stop or given.stop,
        seed=given.seed if wanted.seed is None else wanted.seed,
        reasoning_effort=wanted.reasoning_effort or given.reasoning_effort,
        tool_choice=given.tool_choice if wanted.tool_choice == "auto" else wanted.tool_choice,
        parallel_tool_calls=(
            given.parallel_tool_calls if wanted.parallel_tool_calls is None else wanted.parallel_tool_calls
        ),
    )
    system = f"{spec.system}\n\n{order.instructions}".strip() if order.instructions else spec.system
    spec = replace(spec, settings=settings, system=system, output_schema=order.schema or spec.output_schema)
    try:
        return with_client_tools(spec, order.tools)
    except InvalidInput as error:
        raise BadRequest(error.message, param="tools", hint=error.hint) from None


def check_target(order: OpenAIRequest, target: WorkTarget) -> None:
    """Raises `BadRequest` when this target cannot do what the request asks for."""
    if target.kind == "system":
        if order.tools or order.conversation.results:
            raise BadRequest("a system's agents have their own tools", param="tools", hint="bring tools to an agent")
        if order.schema is not None or order.settings != ModelSettings():
            raise BadRequest(
                "a system's agents have their own settings and shapes of answers",
                param="response_format" if order.schema is not None else "max_tokens",
                hint="leave the settings of the model out",
            )
    elif order.schema is not None and target.output_schema is not None:
        raise BadRequest(
            f"the answers of agent {target.name!r} have a shape of their own",
            param="response_format",
            hint="leave response_format out",
        )


def _decoded(body: bytes, kind: type[S], known: Mapping[str, RequestParameter]) -> S:
    try:
        refuse_repeated(body)
        given = msgspec.json.decode(body)
        if isinstance(given, dict):
            check_parameters(cast("dict[str, Any]", given), known)
        return msgspec.convert(given, kind)
    except UsageError as error:
        raise BadRequest(error.message) from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        missing = text.partition("required field `")[2]
        param = ".".join(filter(None, (place.rstrip("`"), missing.rstrip("`"))))
        raise BadRequest(f"{param}: {_in_words(text)}" if param else _in_words(text), param=param) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON that can be read: {error}") from None


def _in_words(text: str) -> str:
    """Returns the complaint of the decoder with the names that JSON has for types."""
    for name, word in (("array", "a list"), ("str", "text"), ("int", "a whole number"), ("object", "an object")):
        text = text.replace(f"`{name}`", word)
    return text.replace("Expected ", "expected ", 1)


def _settings(
    most: int | None,
    most_param: str,
    temperature: float | None,
    top_p: float | None,
    stop: str | Sequence[str] | None,
    seed: int | None,
    effort: Effort | None,
    choice: str,
    parallel: bool | None,
) -> ModelSettings:
    if most is not None and not 1 <= most <= MOST_TOKENS:
        raise BadRequest(f"an answer takes at least one token, and at most {MOST_TOKENS}", param=most_param)
    if seed is not None and abs(seed) >= 2**63:
        raise BadRequest("a seed is a whole number of 64 bits", param="seed")
    if temperature is not None and not 0 <= temperature <= 2:
        raise BadRequest("temperature is between 0 and 2", param="temperature")
    if top_p is not None and not 0 <= top_p <= 1:
        raise BadRequest("top_p is between 0 and 1", param="top_p")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return ModelSettings(most, temperature, top_p, stops, seed, effort, choice, parallel_tool_calls=parallel)


def _chat_schema(given: dict[str, Any] | None) -> dict[str, Any] | None:
    if given is not None and given.get("type") == "json_schema":
        inner = given.get("json_schema")
        if not isinstance(inner, dict):
            raise BadRequest("an object with a schema is expected here", param="response_format.json_schema")
        given = {"type": "json_schema", **inner}
    return _schema_of(given, "response_format")


def _schema_of(given: dict[str, Any] | None, param: str) -> dict[str, Any] | None:
    match given.get("type") if given is not None else "text":
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            assert given is not None, "it has a type"
            schema = given.get("schema")
            if not isinstance(schema, dict):
                raise BadRequest("a JSON Schema is expected here", param=f"{param}.schema")
            return _checked(schema, f"{param}.schema")  # pyright: ignore[reportUnknownArgumentType] - it is JSON
        case kind:
            raise BadRequest(f"there is no format {kind!r}", param=f"{param}.type")


def _checked(schema: dict[str, Any], param: str) -> dict[str, Any]:
    try:
        validator_of(schema)
    except UnusableSchema as error:
        raise BadRequest(f"this is not a JSON Schema that can be used: {error.message}", param=param) from None
    return schema


def _metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    given = given or {}
    if len(given) > MOST_METADATA:
        raise BadRequest(f"at most {MOST_METADATA} pairs of metadata are kept", param="metadata")
    for key, value in given.items():
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise BadRequest("this pair of metadata is too long", param=f"metadata.{key[:LONGEST_KEY]}")
        _word(key, "metadata")
        _word(value, f"metadata.{key}")
    return dict(given)


def _word(text: str | None, param: str) -> str:
    """A text that is kept as a label. A database may refuse a zero in it."""
    text = text or ""
    if "\x00" in text or len(text) > LONGEST_VALUE:
        raise BadRequest(f"at most {LONGEST_VALUE} characters without a zero among them", param=param)
    return text
