"""What clients ask for, read from the bodies of both APIs into one order.

A member that changes what is done is done or refused, never passed over: tools of the client, several choices, log
probabilities. What only concerns OpenAI's own service (tiers, caches, storage) is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.errors import UsageError
from foliot.kernel.messages import Message, ModelSettings
from foliot.kernel.spec import RunSpec
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.server.bodies import refuse_repeated
from foliot.server.openai.content import Conversation, chat_conversation, response_conversation
from foliot.server.openai.errors import BadRequest
from foliot.server.targets import Target

MOST_METADATA: Final = 16
LONGEST_KEY: Final = 64
LONGEST_VALUE: Final = 512
MOST_TOKENS: Final = 2**31
_TOOLS_HINT: Final = "an agent has its own tools, which are called here; take yours away, or declare them as Tools"

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
S = TypeVar("S", bound=Struct)


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatRequest(Struct, kw_only=True):
    """The body of `POST /v1/chat/completions`, as far as it is looked at."""

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
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    modalities: list[str] | None = None


class Reasoning(Struct):
    effort: Effort | None = None


class TextOptions(Struct):
    format: dict[str, Any] | None = None


class ResponsesRequest(Struct, kw_only=True):
    """The body of `POST /v1/responses`, as far as it is looked at."""

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
    prompt: Any = None
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What one request asks for. `previous` is the id of the answer that it goes on from; `session` names one."""

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


def read_chat(body: bytes) -> Order:
    """Raises `BadRequest`."""
    request = _decoded(body, ChatRequest)
    _refuse(
        {
            "tools": request.tools,
            "functions": request.functions,
            "logprobs": request.logprobs,
            "audio": request.audio,
            "prediction": request.prediction,
            "web_search_options": request.web_search_options,
        }
    )
    if request.n not in (None, 1):
        raise BadRequest("there is one answer to a request", param="n", code="unsupported_value")
    if request.modalities not in (None, [], ["text"]):
        raise BadRequest("answers are text", param="modalities", code="unsupported_value")
    conversation = chat_conversation(request.messages)
    settings = _settings(
        request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens,
        "max_completion_tokens",
        request.temperature,
        request.top_p,
        request.stop,
        request.seed,
        request.reasoning_effort,
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
    )


def read_response(body: bytes) -> Order:
    """Raises `BadRequest`."""
    request = _decoded(body, ResponsesRequest)
    _refuse({"tools": request.tools, "prompt": request.prompt, "top_logprobs": request.top_logprobs})
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
            request.max_output_tokens, "max_output_tokens", request.temperature, request.top_p, None, None, effort
        ),
        schema=_schema_of(request.text.format if request.text else None, "text.format"),
        instructions="\n\n".join(instructions),
        metadata=_metadata(request.metadata),
    )


def adjusted(order: Order, spec: RunSpec) -> RunSpec:
    """What the run is pinned to: the agent, within what the request asks for. It never gets more room than it had."""
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
    )
    system = f"{spec.system}\n\n{order.instructions}".strip() if order.instructions else spec.system
    return replace(spec, settings=settings, system=system, output_schema=order.schema or spec.output_schema)


def check_target(order: Order, target: Target) -> None:
    """Raises `BadRequest` when this target cannot do what the request asks for."""
    if target.kind == "system":
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


def messages_of(order: Order, param: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What was said before, and now. Raises `BadRequest`."""
    return order.conversation.split(param)


def _decoded(body: bytes, kind: type[S]) -> S:
    try:
        refuse_repeated(body)
        return msgspec.json.decode(body, type=kind)
    except UsageError as error:
        raise BadRequest(error.message) from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        missing = text.partition("required field `")[2]
        raise BadRequest(text, param=".".join(filter(None, (place.rstrip("`"), missing.rstrip("`"))))) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON that can be read: {error}") from None


def _refuse(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            hint = _TOOLS_HINT if name in ("tools", "functions") else None
            raise BadRequest(f"{name} cannot be used here", param=name, hint=hint, code="unsupported_parameter")


def _settings(
    most: int | None,
    most_param: str,
    temperature: float | None,
    top_p: float | None,
    stop: str | Sequence[str] | None,
    seed: int | None,
    effort: Effort | None,
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
    reasoning: Literal["minimal", "low", "medium", "high"] | None
    match effort:
        case None | "none":
            reasoning = None
        case "xhigh" | "max":
            reasoning = "high"
        case _:
            reasoning = effort
    return ModelSettings(most, temperature, top_p, stops, seed, reasoning)


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
