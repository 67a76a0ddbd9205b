"""The translation between Foliot's messages and Pydantic AI's, both ways. Imported only with the adapter.

What a provider wants back unchanged (signatures, ids of thoughts) travels as JSON in `opaque`.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from pydantic_ai import messages as theirs
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings as TheirSettings
from pydantic_ai.tools import ToolDefinition

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    Reasoning,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from foliot.kernel.tokens import estimate_parts, estimate_request
from foliot.models.base import ModelGarbage, ModelRequestError
from foliot.models.wire.media import result_texts
from foliot.models.wire.requests import CHOICES, tools_to_send
from foliot.models.wire.schemas import strict_schema
from foliot.models.wire.tool_names import ToolNames, description_of, schema_of
from foliot.models.wire.values import CallIds, arguments_text

_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "content_filter": "refusal",
    "tool_call": "tool_calls",
}


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request as Pydantic AI wants it."""

    request: ModelRequest
    names: ToolNames
    model: Model[Any]
    messages: list[theirs.ModelMessage]
    settings: TheirSettings
    parameters: ModelRequestParameters
    notes: tuple[str, ...] = ()

    async def answer(self) -> ModelResponse:
        response = await model_request(
            self.model, self.messages, model_settings=self.settings, model_request_parameters=self.parameters
        )
        return self.read(response)

    def read(self, response: theirs.ModelResponse) -> ModelResponse:
        """Translate the answer; it says what of the question was not sent as it was asked."""
        found = from_response(response, self.request, self.names)
        return replace(found, notes=(*self.notes, *found.notes)) if self.notes else found

    def open_stream(self) -> AbstractAsyncContextManager[StreamedResponse]:
        return model_request_stream(
            self.model, self.messages, model_settings=self.settings, model_request_parameters=self.parameters
        )


def to_question(request: ModelRequest, model: Model[Any], names: ToolNames) -> TranslatedRequest:
    schema = request.output_schema
    native = bool(model.profile.get("supports_json_schema_output", False))
    notes: list[str] = []
    tools = tools_to_send(request, "schema", strict_schema, notes)
    return TranslatedRequest(
        request,
        names,
        model,
        to_messages(request, names),
        to_settings(request, names, model.unsupported_settings, notes),
        ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=names.wire(tool.name),
                    parameters_json_schema=schema_of(tool),  # what strict mode needs, the library makes of it
                    description=description_of(tool),
                    strict=fields.get("strict", False if request.settings.strict_tools is False else None),
                )
                for tool, fields in tools
            ],
            output_mode="text" if schema is None else "native" if native else "prompted",
            output_object=None if schema is None else OutputObjectDefinition(json_schema=schema),
        ),
        tuple(notes),
    )


def to_settings(
    request: ModelRequest, names: ToolNames, ignored: Collection[str] = (), notes: list[str] | None = None
) -> TheirSettings:
    """The settings of a request; those that the model would ignore are left out, and added to `notes`."""
    mine = request.settings
    effort, choice = mine.reasoning_effort, mine.tool_choice
    named = choice not in CHOICES
    given: dict[str, tuple[str, Any]] = {
        "max_tokens": ("max_output_tokens", mine.max_output_tokens),
        "temperature": ("temperature", mine.temperature),
        "top_p": ("top_p", mine.top_p),
        "stop_sequences": ("stop", list(mine.stop) or None),
        "seed": ("seed", mine.seed),
        "thinking": ("reasoning_effort", False if effort == "none" else effort),
        "extra_body": ("extra", mine.extra or None),
    }
    if request.tools:
        given["parallel_tool_calls"] = ("parallel_tool_calls", mine.parallel_tool_calls)
        if choice != "auto":
            given["tool_choice"] = ("tool_choice", [names.wire(choice)] if named else choice)
    settings: dict[str, Any] = {"max_retries": 0}  # of their SDK: the run counts its tries itself
    for key, (name, value) in given.items():
        if value is None:
            continue
        if key not in ignored:
            settings[key] = value
        elif notes is not None:
            notes.append(f"{name} is not sent: the Pydantic AI model of {request.model or 'this endpoint'} ignores it")
    return cast("TheirSettings", settings)


def to_messages(request: ModelRequest, names: ToolNames) -> list[theirs.ModelMessage]:
    """Converts messages, merging all between two answers into one request: some providers take no two in a row."""
    result: list[theirs.ModelMessage] = []
    pending: list[theirs.ModelRequestPart] = []
    if request.system:
        pending.append(theirs.SystemPromptPart(request.system))
    for message in request.messages:
        if message.role == "assistant":
            if pending:
                result.append(theirs.ModelRequest(pending))
                pending = []
            result.append(theirs.ModelResponse([_to_answer_part(part, names) for part in message.parts]))
        else:
            pending.extend(_to_request_parts(message, names))
    if pending:
        result.append(theirs.ModelRequest(pending))
    return result


def _to_request_parts(message: Message, names: ToolNames) -> list[theirs.ModelRequestPart]:
    if message.role == "system":
        return [theirs.SystemPromptPart(message.text)]
    parts: list[theirs.ModelRequestPart] = []
    content: list[theirs.UserContent] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            parts.append(_to_return(part, names))
        elif isinstance(part, Text):
            content.append(part.text)
        elif isinstance(part, Media):
            content.append(_to_file(part))
    if content:
        only = content[0] if len(content) == 1 else None
        parts.append(theirs.UserPromptPart(only if isinstance(only, str) else content))
    return parts


def _to_return(result: ToolResult, names: ToolNames) -> theirs.ToolReturnPart:
    content: list[Any] = [part.text if isinstance(part, Text) else _to_file(part) for part in result.content]
    texts = result_texts(result)
    return theirs.ToolReturnPart(
        tool_name=names.wire(result.name),
        content=texts[0] if len(texts) == 1 and all(isinstance(item, str) for item in content) else content or texts,
        tool_call_id=result.call_id,
        outcome="success" if result.error is None else "failed",
    )


def _to_file(media: Media) -> theirs.BinaryContent | theirs.ImageUrl | theirs.AudioUrl | theirs.VideoUrl | Any:
    if media.data is not None:
        return theirs.BinaryContent(base64.b64decode(media.data), media_type=media.media_type)
    if media.url is None:
        raise ModelRequestError(
            "a stored file reached the model without its content",
            provider="pydantic-ai",
            hint="this is a fault in the program: blobs are filled in before the call",
        )
    kinds: dict[str, Any] = {"image": theirs.ImageUrl, "audio": theirs.AudioUrl, "video": theirs.VideoUrl}
    kind = kinds.get(media.media_type.partition("/")[0], theirs.DocumentUrl)
    return kind(url=media.url, media_type=media.media_type)


def _to_answer_part(part: Part, names: ToolNames) -> theirs.ModelResponsePart:
    match part:
        case Text(text=text):
            return theirs.TextPart(text)
        case Reasoning(text=text, signature=signature, opaque=opaque):
            return theirs.ThinkingPart(text, signature=signature, **_unpack(opaque))
        case ToolCall(id=call_id, name=name, arguments=arguments, opaque=opaque):
            return theirs.ToolCallPart(names.wire(name), arguments_text(arguments), call_id, **_unpack(opaque))
        case Media():
            file = _to_file(part)
            if isinstance(file, theirs.BinaryContent):
                return theirs.FilePart(file)
            return theirs.TextPart(part.url or "")
        case ToolResult():
            return theirs.TextPart(part.text)


def from_response(response: theirs.ModelResponse, request: ModelRequest, names: ToolNames) -> ModelResponse:
    """Raises `ModelGarbage` for an answer with nothing in it, with its end cut off, or ended for an unknown reason."""
    ids = CallIds(request, lambda: msgspec.msgpack.encode((request.system, request.messages)))
    parts = tuple(mine for part in response.parts if (mine := _from_part(part, names, ids)) is not None)
    if response.state != "complete":
        raise ModelGarbage(f"the answer is {response.state}", provider="pydantic-ai")
    if not parts:
        raise ModelGarbage("the model answered nothing", provider="pydantic-ai")
    stop = _STOPS.get(response.finish_reason or "stop")
    if stop is None:
        raise ModelGarbage(f"the answer broke off ({response.finish_reason})", provider="pydantic-ai")
    if any(isinstance(part, ToolCall) for part in parts) and stop == "end":
        stop = "tool_calls"
    return ModelResponse(
        Message("assistant", parts),
        _usage(response, request, parts),
        stop,
        response.model_name or "",
        response.provider_name or "pydantic-ai",
        response.provider_response_id or "",
    )


def _usage(response: theirs.ModelResponse, request: ModelRequest, parts: tuple[Part, ...]) -> Usage:
    usage = response.usage
    if not usage.input_tokens and not usage.output_tokens:  # not counted is not nothing
        return Usage(estimate_request(request), estimate_parts(parts), source="estimated")
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
    )


def _from_part(part: theirs.ModelResponsePart, names: ToolNames, ids: CallIds) -> Part | None:
    if isinstance(part, theirs.TextPart):
        return Text(part.content) if part.content else None
    if isinstance(part, theirs.ThinkingPart):
        return Reasoning(part.content, part.signature, _pack(part))
    if isinstance(part, theirs.ToolCallPart):
        arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
        return ToolCall(ids.claim(part.tool_call_id), names.real(part.tool_name), arguments, _pack(part))
    if isinstance(part, theirs.FilePart):
        return Media(part.content.media_type, data=base64.b64encode(part.content.data).decode())
    return None  # what a provider's own tools did on its side: shown in its text, not replayed


def _pack(part: theirs.ThinkingPart | theirs.ToolCallPart) -> str | None:
    kept = {"id": part.id, "provider_name": part.provider_name, "provider_details": part.provider_details}
    kept = {key: value for key, value in kept.items() if value is not None}
    return msgspec.json.encode(kept).decode() if kept else None


def _unpack(opaque: str | None) -> dict[str, Any]:
    if opaque is None:
        return {}
    try:
        kept = msgspec.json.decode(opaque)
    except msgspec.DecodeError:
        return {}  # another gateway's: it means nothing to this one
    if not isinstance(kept, dict):
        return {}
    known = cast("dict[str, Any]", kept)
    return {key: known[key] for key in ("id", "provider_name", "provider_details") if key in known}
