"""Gemini generateContent requests. The answers are read in gemini_answer.py.

Gemini signs its thoughts and refuses a history whose calls have lost their signature, so each signature goes back on
exactly the part it came with. Calls made by another provider have none; Google documents a word for that case.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

import msgspec

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from foliot.models.wire.calls import CallIds, arguments_object, is_own_id
from foliot.models.wire.gemini_answer import (
    ALONE,
    ON_CALL,
    ON_TEXT,
    ON_THOUGHT,
    GeminiAssembler,
    counted_in_gemini,
    parse_gemini,
)
from foliot.models.wire.gemini_schema import gemini_schema
from foliot.models.wire.media import address, placeholder, result_files, result_texts
from foliot.models.wire.opaque import unmark
from foliot.models.wire.tool_names import ToolNames, description_of, ordered_tools, schema_of, tool_names

_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_OLDER = re.compile(r"gemini-[12](\.|-|$)|gemini-pro|gemma")
_BUDGETS: Final = {"minimal": 512, "low": 2048, "medium": 8192, "high": 24576}
_UNSIGNED: Final = "skip_thought_signature_validator"


class GeminiWire:
    """See `Wire`."""

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools, letter_first=True)

    def path(self, model: str, *, stream: bool) -> str:
        name = model if "/" in model else f"models/{model}"
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/{quote(name, safe='/')}:{verb}"

    def build_body(self, request: ModelRequest, names: ToolNames, *, stream: bool) -> dict[str, Any]:
        settings = request.settings
        body: dict[str, Any] = {"contents": _contents(request, names)}
        system = [request.system, *(message.text for message in request.messages if message.role == "system")]
        generation = _generation(request)
        if request.output_schema is not None:
            if request.tools and _OLDER.search(request.model):
                # These refuse a schema for the answer beside functions: they are asked in words, and checked after.
                schema = msgspec.json.encode(request.output_schema).decode()
                system.append(f"Give your final answer as JSON only, following this JSON Schema: {schema}")
            else:
                generation["responseMimeType"] = "application/json"
                generation["responseSchema"] = gemini_schema(request.output_schema)
        if any(text.strip() for text in system):
            body["systemInstruction"] = {"parts": [{"text": text} for text in system if text.strip()]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": _declarations(request, names)}]
            body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[settings.tool_choice]}}
        if generation:
            body["generationConfig"] = generation
        if settings.extra:
            body.update(settings.extra)
        return body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_gemini(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_gemini(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> GeminiAssembler:
        return GeminiAssembler(names, ids)


def _generation(request: ModelRequest) -> dict[str, Any]:
    settings = request.settings
    given: dict[str, Any] = {
        "maxOutputTokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "stopSequences": settings.stop or None,
        "seed": settings.seed,
    }
    effort = settings.reasoning_effort
    if effort is not None:
        older = _OLDER.search(request.model)
        amount: dict[str, Any] = {"thinkingBudget": _BUDGETS[effort]} if older else {"thinkingLevel": effort.upper()}
        given["thinkingConfig"] = {"includeThoughts": True, **amount}
    return {name: value for name, value in given.items() if value is not None}


def _declarations(request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = []
    for tool in ordered_tools(request.tools):
        made: dict[str, Any] = {"name": names.wire(tool.name), "description": description_of(tool)}
        parameters = gemini_schema(schema_of(tool))
        if parameters.get("properties"):  # an object without properties is refused; no parameters are welcome
            made["parameters"] = parameters
        declared.append(made)
    return declared


def _contents(request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
    """User and model in turn; the answers to parallel calls must come together in one turn."""
    signed = not _OLDER.search(request.model)
    contents: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "system":
            continue
        if message.role == "assistant":
            role, parts = "model", _model_parts(message, names, signed)
        else:
            role, parts = "user", _user_parts(message, names)
        if not parts:
            continue
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"].extend(parts)
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _user_parts(message: Message, names: ToolNames) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            if part.text:
                parts.append({"text": part.text})
        elif isinstance(part, Media):
            parts.append(_media(part))
        elif isinstance(part, ToolResult):
            parts.append(_function_response(part, names))
            parts.extend(map(_media, result_files(part)))
    # Nothing may stand between the answers to parallel calls.
    parts.sort(key=_after_responses)
    return parts


def _after_responses(part: dict[str, Any]) -> bool:
    return "functionResponse" not in part


def _function_response(result: ToolResult, names: ToolNames) -> dict[str, Any]:
    texts = result_texts(result)
    # Several blocks are a list, so that they stay several.
    response = {"output" if result.error is None else "error": texts[0] if len(texts) == 1 else texts}
    made: dict[str, Any] = {"name": names.wire(result.name), "response": response}
    if not is_own_id(result.call_id):
        made["id"] = result.call_id
    return {"functionResponse": made}


def _model_parts(message: Message, names: ToolNames, signed: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    first = True
    for part in message.parts:
        if isinstance(part, Text):
            if part.text:
                parts.append({"text": part.text})
        elif isinstance(part, ToolCall):
            parts.append(_function_call(part, names, signed and first))
            first = False
        elif isinstance(part, Reasoning):
            _put_thought(parts, part)
        elif isinstance(part, Media):
            parts.append(_media(part) if part.data is not None else {"text": placeholder(part)})
    return parts


def _function_call(call: ToolCall, names: ToolNames, must_sign: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"name": names.wire(call.name), "args": arguments_object(call.arguments)}
    if not is_own_id(call.id):
        made["id"] = call.id
    part: dict[str, Any] = {"functionCall": made}
    signature = unmark(ON_CALL, call.opaque)
    if signature is None and must_sign:
        signature = _UNSIGNED
    if signature is not None:
        part["thoughtSignature"] = signature
    return part


def _put_thought(parts: list[dict[str, Any]], thought: Reasoning) -> None:
    """Only what is signed goes back; a summary without a signature is for people."""
    if (signature := unmark(ON_TEXT, thought.opaque)) is not None:
        if parts and "text" in parts[-1]:
            parts[-1]["thoughtSignature"] = signature
    elif (signature := unmark(ALONE, thought.opaque)) is not None:
        parts.append({"text": "", "thoughtSignature": signature})
    elif (signature := unmark(ON_THOUGHT, thought.opaque)) is not None:
        parts.append({"text": thought.text, "thought": True, "thoughtSignature": signature})


def _media(media: Media) -> dict[str, Any]:
    if media.data is not None:
        return {"inlineData": {"mimeType": media.media_type, "data": media.data}}
    return {"fileData": {"mimeType": media.media_type, "fileUri": address(media)}}
