"""Gemini generateContent requests. The answers are read in gemini_answer.py.

Gemini signs its thoughts and refuses a history whose calls have lost their signature, so each signature goes back on
exactly the part it came with. Calls made by another provider have none; Google documents a word for that case.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.gemini_answer import (
    ALONE,
    ON_CALL,
    ON_TEXT,
    ON_THOUGHT,
    PART,
    GeminiAssembler,
    counted_in_gemini,
    parse_gemini,
)
from foliot.models.wire.media import address, placeholder, result_files, result_texts
from foliot.models.wire.opaque import unmark
from foliot.models.wire.requests import Notes, Profiles, fitted, merged
from foliot.models.wire.schemas import (
    gemini_json_schema,
    gemini_parameters,
    in_words,
    open_api_parameters,
    open_api_schema,
)
from foliot.models.wire.tool_names import ToolNames, description_of, ordered_tools, schema_of, tool_names
from foliot.models.wire.values import CallIds, arguments_object, is_own_id

_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_UNSIGNED_MODELS = re.compile(r"gemini-[12](\.|-|$)|gemini-pro|gemma")
_UNSIGNED: Final = "skip_thought_signature_validator"


class GeminiWire:
    """Writes requests and reads answers in Gemini's format; implements `Wire`."""

    def __init__(self, profiles: Profiles | None = None) -> None:
        self._profile = profiles or partial(profile_of, "gemini")

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools, letter_first=True)

    def path(self, model: str, *, stream: bool) -> str:
        name = model if "/" in model else f"models/{model}"
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/{quote(name, safe='/')}:{verb}"

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        profile = self._profile(request.model)
        request = fitted(request, profile, [] if notes is None else notes)
        settings = request.settings
        body: dict[str, Any] = {"contents": _contents(request, names)}
        system = [request.system, *(message.text for message in request.messages if message.role == "system")]
        generation = _generation(request, profile)
        if (schema := request.output_schema) is not None:
            if request.tools and not profile.answers_beside_tools:
                # These refuse a schema for the answer beside functions: they are asked in words, and checked after.
                system.append(in_words(schema))
            else:
                generation["responseMimeType"] = "application/json"
                if (answer := _answer_schema(schema)) is None or profile.answers in ("words", "object"):
                    system.append(in_words(schema))
                else:
                    generation |= answer
        if any(text.strip() for text in system):
            body["systemInstruction"] = {"parts": [{"text": text} for text in system if text.strip()]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": _declarations(request, names)}]
            body["toolConfig"] = {"functionCallingConfig": _calling(settings, names)}
        if generation:
            body["generationConfig"] = generation
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_gemini(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_gemini(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> GeminiAssembler:
        return GeminiAssembler(names, ids)


def _calling(settings: ModelSettings, names: ToolNames) -> dict[str, Any]:
    choice = settings.tool_choice
    if choice not in _MODES:
        return {"mode": "ANY", "allowedFunctionNames": [names.wire(choice)]}
    return {"mode": "VALIDATED" if settings.strict_tools and choice == "auto" else _MODES[choice]}


def _answer_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of an answer in the first of two dialects that can say all of it."""
    if (found := open_api_schema(schema)) is not None:
        return {"responseSchema": found}
    found = gemini_json_schema(schema)
    return None if found is None else {"responseJsonSchema": found}


_ADDS: Final = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if")
"""The keywords that allow more than the properties which stand there."""


def _parameters(tool: ToolSpec) -> dict[str, Any]:
    schema = schema_of(tool)
    if not schema["properties"] and not any(schema.get(key) for key in _ADDS):
        return {}  # an object without properties is refused; no parameters are welcome
    if (found := open_api_parameters(schema)) is not None:
        return {"parameters": found}
    return {"parametersJsonSchema": gemini_parameters(schema) or schema}


def _generation(request: ModelRequest, profile: ModelProfile) -> dict[str, Any]:
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
        if profile.thinking == "budget":
            amount: dict[str, Any] = {"thinkingBudget": (profile.budgets or {}).get(effort, -1)}
        else:
            amount = {"thinkingLevel": effort.upper()}
        given["thinkingConfig"] = {"includeThoughts": effort != "none", **amount}
    return {name: value for name, value in given.items() if value is not None}


def _declarations(request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = []
    for tool in ordered_tools(request.tools):
        made: dict[str, Any] = {"name": names.wire(tool.name), "description": description_of(tool)}
        declared.append({**made, **_parameters(tool)})
    return declared


def _contents(request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
    """User and model in turn; the answers to parallel calls must come together in one turn."""
    signed = not _UNSIGNED_MODELS.search(request.model)
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
    elif (kept := unmark(PART, thought.opaque)) is not None:
        parts.append(msgspec.json.decode(kept, type=dict[str, Any]))
    elif (signature := unmark(ALONE, thought.opaque)) is not None:
        parts.append({"text": "", "thoughtSignature": signature})
    elif (signature := unmark(ON_THOUGHT, thought.opaque)) is not None:
        parts.append({"text": thought.text, "thought": True, "thoughtSignature": signature})


def _media(media: Media) -> dict[str, Any]:
    if media.data is not None:
        return {"inlineData": {"mimeType": media.media_type, "data": media.data}}
    return {"fileData": {"mimeType": media.media_type, "fileUri": address(media)}}
