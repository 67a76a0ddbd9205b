"""Requests of clients, read from the bodies of both APIs into one order.

A member that changes what is done is done or refused, never passed over: parameters.py says of each what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.definition.freeze import with_client_tools
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.messages import Effort, ModelSettings, ToolSpec
from foliot.kernel.run.spec import RunSpec
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.server.http.bodies import refuse_repeated
from foliot.server.openai.client_tools import client_tools
from foliot.server.openai.content import Conversation, chat_conversation, response_conversation
from foliot.server.openai.errors import BadRequest
from foliot.server.openai.parameters import CHAT, RESPONSES, Parameter, check_parameters
from foliot.server.runs.targets import Target

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
class Order:
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


def read_chat(body: bytes) -> Order:
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
    return Order(
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


def read_response(body: bytes) -> Order:
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
    return Order(
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


def adjusted(order: Order, spec: RunSpec) -> RunSpec:
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


def check_target(order: Order, target: Target) -> None:
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


def _decoded(body: bytes, kind: type[S], known: Mapping[str, Parameter]) -> S:
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
        raise BadRequest(text, param=".".join(filter(None, (place.rstrip("`"), missing.rstrip("`"))))) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON that can be read: {error}") from None


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
