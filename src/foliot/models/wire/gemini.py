"""Gemini generateContent: requests, and answers, which also a stream is a series of.

Gemini signs its thoughts and refuses a history whose calls have lost their signature, so each signature goes back on
exactly the part it came with. Calls made by another provider have none; Google documents a word for that case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Struct

from foliot.kernel.messages import (
    Delta,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.base import DONE, NO_DELTAS, ProviderFault, WireError
from foliot.models.wire.findings import Findings, filtered, list_of, mapping_of
from foliot.models.wire.finishes import GEMINI, stop_of
from foliot.models.wire.media import address, placeholder, result_files, result_texts
from foliot.models.wire.opaque import mark, unmark
from foliot.models.wire.requests import Notes, Profiles, fitted, merged
from foliot.models.wire.schemas import (
    gemini_json_schema,
    gemini_parameters,
    in_words,
    open_api_parameters,
    open_api_schema,
)
from foliot.models.wire.tool_names import ToolNames, description_of, ordered_tools, schema_of, tool_names
from foliot.models.wire.values import CallIds, Count, arguments_object, count, is_own_id, raw_piece, tier_of

# --- gemini answer ---------------------------------------------------------------------------------------------------

# Gemini answers: a stream is a series of small answers, so both ways are one fold.

# Where a signature stood: each goes back to the same place.
ON_CALL = "gemini.call"
ON_TEXT = "gemini.text"
ON_THOUGHT = "gemini.thought"
ALONE = "gemini.alone"
PART = "gemini.part"
"""Marks a part that goes back as it came."""
READ: Final = frozenset({"text", "thought", "thoughtSignature", "functionCall", "inlineData", "fileData"})
CARRIED: Final = {
    "executableCode": "executable_code",
    "codeExecutionResult": "code_execution_result",
    "toolCall": "tool_call",
    "toolResponse": "tool_response",
}
"""Parts of tools that ran at the provider, and the fields that hold them."""
NOTED: Final = {
    "functionResponse": "function_response",
    "audioTranscription": "audio_transcription",
    "mediaProcessing": "media_processing",
    "speechMetadata": "speech_metadata",
}
"""Parts that are not kept. What else there is says something of the part beside it, and is none of its own."""


class _PartialArg(Struct, rename="camel"):
    """A piece of an argument; a text is continued by the next piece of the same path."""

    json_path: str | None = None
    string_value: str | None = None
    number_value: int | float | None = None
    bool_value: bool | None = None


class _FunctionCall(Struct, rename="camel"):
    id: str | None = None
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw()
    partial_args: list[_PartialArg] | None = None
    will_continue: bool | None = None


class _Inline(Struct, rename="camel"):
    mime_type: str = "application/octet-stream"
    data: str = ""


class _File(Struct, rename="camel"):
    mime_type: str = "application/octet-stream"
    file_uri: str = ""


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None
    inline_data: _Inline | None = None
    file_data: _File | None = None
    executable_code: Any = None
    code_execution_result: Any = None
    tool_call: Any = None
    tool_response: Any = None
    function_response: Any = None
    audio_transcription: Any = None
    media_processing: Any = None
    speech_metadata: Any = None


class _Content(Struct, rename="camel"):
    parts: list[_Part] | None = None


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: Any = None
    index: int | None = None
    # What stands beside the words is looked at with care later.
    grounding_metadata: Any = None
    citation_metadata: Any = None
    url_context_metadata: Any = None
    logprobs_result: Any = None
    safety_ratings: Any = None


class _Usage(Struct, rename="camel"):
    prompt_token_count: Count = None
    candidates_token_count: Count = None
    thoughts_token_count: Count = None
    cached_content_token_count: Count = None
    tool_use_prompt_token_count: Count = None
    service_tier: str | None = None
    traffic_type: str | None = None  # Vertex


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: Any = None
    safety_ratings: Any = None


class _Body(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    prompt_feedback: _Feedback | None = None
    error: Any = None


class _Counted(Struct, rename="camel"):
    usage_metadata: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Body)
_COUNTED = msgspec.json.Decoder(_Counted)


def _usage(usage: _Usage | None, searches: int = 0) -> Usage:
    if usage is None:
        return Usage()
    thoughts = count(usage.thoughts_token_count)
    return Usage(
        input_tokens=count(usage.prompt_token_count) + count(usage.tool_use_prompt_token_count),
        # Gemini counts thoughts beside the answer, not inside it.
        output_tokens=count(usage.candidates_token_count) + thoughts,
        cache_read_tokens=count(usage.cached_content_token_count),
        reasoning_tokens=thoughts,
        web_searches=searches,
        tier=tier_of(usage.service_tier or usage.traffic_type),
    )


def counted_in_gemini(body: bytes) -> Usage:
    """Read the provider's counts, whatever else the body holds."""
    return _usage(_COUNTED.decode(body).usage_metadata)


def parse_gemini(body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
    """One whole answer. Raises `WireError`, `ProviderFault`, or msgspec's decoding error."""
    assembler = GeminiAssembler(names, ids)
    assembler.feed(body)
    return assembler.finish()


_PATH_STEP: Final = re.compile(r"""\.([^.\[]+)|\[(\d{1,4})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_MOST_STEPS: Final = 64


_Tree: TypeAlias = "dict[str | int, _Tree | str | float | bool | None]"
"""Arguments by the steps to them: a list is a tree of numbers until all of it has come."""


class _BegunCall:
    """A call whose arguments come in pieces, each with the place in the object that it belongs to."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.signature: str | None = None
        self.written = ""  # as much as was paid for, whatever becomes of it
        self._whole = ""
        self._pieces: _Tree = {}

    def add(self, call: _FunctionCall, signature: str | None) -> None:
        """Takes one piece. Raises `WireError` for a place that there cannot be."""
        self.id = self.id or call.id
        self.name = self.name or call.name or ""
        self.signature = self.signature or signature
        self._whole = raw_piece(call.args) or self._whole
        for piece in call.partial_args or ():
            steps = _steps(piece.json_path or "")
            value = piece.bool_value if piece.number_value is None else piece.number_value
            value = value if piece.string_value is None else piece.string_value
            _put(self._pieces, steps, value)
            self.written += str(value)

    def arguments(self) -> str:
        return msgspec.json.encode(_plain(self._pieces)).decode() if self._pieces else self._whole or "{}"


def _steps(path: str) -> list[str | int]:
    """The steps of a JSON path such as `$.parcels[0].city`. Raises `WireError` for one that names no single place."""
    found: list[str | int] = []
    at = 1
    while path.startswith("$") and at < len(path) and len(found) < _MOST_STEPS:
        if (step := _PATH_STEP.match(path, at)) is None:
            break
        name, index, single, double = step.groups()
        quoted = single if single is not None else double
        found.append(int(index) if index else name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        at = step.end()
    if not found or at < len(path) or isinstance(found[0], int):
        raise WireError(f"a piece of a call has no place in its arguments: {path[:80]!r}")
    return found


def _put(tree: _Tree, steps: Sequence[str | int], value: str | float | bool | None) -> None:
    """Puts a value in its place, and joins a text to what came before. Raises `WireError` where something else is."""
    for step in steps[:-1]:
        below = tree.setdefault(step, {})
        if not isinstance(below, dict):
            raise WireError("a piece of a call is put below a value")
        tree = below
    before = tree.get(steps[-1])
    if isinstance(before, dict):
        raise WireError("a piece of a call is put in the place of an object")
    tree[steps[-1]] = before + value if isinstance(before, str) and isinstance(value, str) else value


def _plain(tree: _Tree) -> Any:
    """The object or list that a tree stands for. Raises `WireError` for a list with a hole in it."""
    made = {step: _plain(each) if isinstance(each, dict) else each for step, each in tree.items()}
    places = sorted(step for step in made if isinstance(step, int))
    if not places:
        return made
    if places != list(range(len(made))):
        raise WireError("the pieces of a call leave a hole in a list")
    return [made[place] for place in places]


class GeminiAssembler:
    """Assembles a streamed Gemini answer.

    Neighbouring texts are joined, except across a signature: it belongs to one part.
    """

    def __init__(self, names: ToolNames, ids: CallIds) -> None:
        self.done = self.ending = False  # Gemini does not say that it has said all; the end of the stream does
        self._names = names
        self._ids = ids
        self._parts: list[Part] = []
        self._open: list[str] = []
        self._open_thought = False
        self._begun: _BegunCall | None = None
        self._calls = 0
        self._usage: _Usage | None = None
        self._reason: str | None = None
        self._blocked = False
        self._detail = ""
        self._searches = 0
        self._found = Findings()
        self._grounds: list[Any] = []
        self._model = self._id = ""

    def feed(self, event: bytes) -> Sequence[Delta]:
        if event.startswith(DONE):
            return NO_DELTAS
        body = _DECODER.decode(event)
        if body.error:
            raise ProviderFault({"error": body.error})
        self._usage = body.usage_metadata or self._usage
        self._model = body.model_version or self._model
        self._id = body.response_id or self._id
        if body.prompt_feedback is not None and body.prompt_feedback.block_reason:
            self._blocked = True
            feedback = body.prompt_feedback
            self._detail = _stopped(feedback.block_reason, feedback.block_reason_message, feedback.safety_ratings)
        deltas: list[Delta] = []
        for candidate in body.candidates or ():
            if candidate.index:  # a second alternative: only the first one is the answer
                self._found.note("only the first of several answers is kept")
                continue
            self._reason = candidate.finish_reason or self._reason
            self.ending = self._reason is not None
            self._take_beside(candidate)
            for part in (candidate.content.parts if candidate.content else None) or ():
                self._take(part, deltas)
        return deltas

    def _take_beside(self, candidate: _Candidate) -> None:
        """Take down what stands beside the words of a candidate."""
        if (grounds := mapping_of(candidate.grounding_metadata)) != {}:
            self._searches = max(self._searches, len(list_of(grounds.get("webSearchQueries"))))
            self._grounds.append(grounds)
        if candidate.citation_metadata is not None:
            self._found.recited(candidate.citation_metadata)
        if candidate.url_context_metadata is not None:
            self._found.fetched(candidate.url_context_metadata)
        if candidate.logprobs_result is not None:
            self._found.drop("logprobs")
        reason = candidate.finish_reason
        if reason is not None and GEMINI.get(reason) == "refusal":
            self._detail = _stopped(reason, candidate.finish_message, candidate.safety_ratings)

    def _carry(self, part: _Part) -> bool:
        """Keep a part of a tool that ran at the provider; whether it was one."""
        for key, field in CARRIED.items():
            if (given := getattr(part, field)) is None:
                continue
            self._close()
            kept = {key: given}
            if part.thought_signature:
                kept["thoughtSignature"] = part.thought_signature
            self._parts.append(Reasoning(opaque=mark(PART, msgspec.json.encode(kept).decode())))
            if field in ("executable_code", "tool_call"):
                self._found.ran(str(mapping_of(given).get("toolType") or key))
            return True
        for key, field in NOTED.items():
            if getattr(part, field) is not None:
                self._found.drop(f"a part {key}")
        return False

    def _take(self, part: _Part, deltas: list[Delta]) -> None:
        signature = part.thought_signature
        if part.function_call is not None:
            self._close()
            self._take_call(part.function_call, signature, deltas)
        elif part.inline_data is not None:
            self._close()
            self._parts.append(Media(part.inline_data.mime_type, data=part.inline_data.data))
        elif part.file_data is not None:
            self._close()
            self._parts.append(Media(part.file_data.mime_type, url=part.file_data.file_uri))
        elif part.text is not None:
            self._write(part.text, bool(part.thought), signature, deltas)
        elif self._carry(part):
            return
        elif signature:
            self._write("", False, signature, deltas)

    def _take_call(self, call: _FunctionCall, signature: str | None, deltas: list[Delta]) -> None:
        """Takes a whole call, or a piece of one whose arguments are streamed: only its first piece has the name."""
        if self._begun is None and not (call.name or call.args or call.id):
            return  # the end of a call that has ended
        if self._begun is not None and call.name:
            self._end_call(deltas)  # it was not said that the one before had ended
        begun = self._begun or _BegunCall()
        begun.add(call, signature)
        self._begun = begun
        if not call.will_continue:
            self._end_call(deltas)

    def _end_call(self, deltas: list[Delta]) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None, "there is a call to end"
        opaque = mark(ON_CALL, begun.signature) if begun.signature else None
        made = ToolCall(self._ids.claim(begun.id), self._names.real(begun.name), begun.arguments(), opaque)
        self._parts.append(made)
        deltas.append(ToolCallDelta(self._calls, made.id, made.name, made.arguments))
        self._calls += 1

    def _write(self, text: str, thought: bool, signature: str | None, deltas: list[Delta]) -> None:
        if text:
            deltas.append(ReasoningDelta(text) if thought else TextDelta(text))
        if signature or thought != self._open_thought:
            self._close()
        self._open_thought = thought
        if not signature:
            self._open.append(text)
        elif thought:
            self._parts.append(Reasoning(text, opaque=mark(ON_THOUGHT, signature)))
        elif text:
            self._parts.extend((Text(text), Reasoning(opaque=mark(ON_TEXT, signature))))
        else:
            self._parts.append(Reasoning(opaque=mark(ALONE, signature)))

    def _close(self) -> None:
        if text := "".join(self._open):
            self._parts.append(Reasoning(text) if self._open_thought else Text(text))
        self._open.clear()

    def heard(self) -> tuple[Usage, str]:
        written = "".join(self._open)
        for part in self._parts:
            if isinstance(part, (Text, Reasoning)):
                written += part.text
            elif isinstance(part, ToolCall):
                written += part.name + part.arguments
        if self._begun is not None:
            written += self._begun.written
        return _usage(self._usage, self._searches), written

    def finish(self) -> ModelResponse:
        self._close()
        if self._reason is None and not self._blocked:
            raise WireError("its answer was cut before it was finished, or holds no candidate")
        if self._begun is not None:
            raise WireError("its answer ends within the arguments of a call")
        stop = "refusal" if self._reason is None else stop_of(GEMINI, self._reason, calls=bool(self._calls))
        message = Message("assistant", tuple(self._parts))
        for grounds in self._grounds:
            self._found.grounding(grounds, message.text)
        return self._found.into(
            ModelResponse(
                message=message,
                usage=_usage(self._usage, self._searches),
                stop=stop,
                model=self._model,
                id=self._id,
                detail=self._detail if stop == "refusal" else "",
            )
        )


def _stopped(reason: str | None, message: Any, ratings: Any) -> str:
    """The sentence for an answer that was stopped: the reason, the categories that were blocked, and Google's words."""
    blocked = [mapping_of(each) for each in list_of(ratings) if mapping_of(each).get("blocked")]
    told = filtered(reason, *(each.get("category") for each in blocked))
    return f"{told}: {message[:1000]}" if isinstance(message, str) and message else told


# --- gemini ----------------------------------------------------------------------------------------------------------

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
