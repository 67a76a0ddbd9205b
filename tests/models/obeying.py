"""A provider on loopback that keeps its rules: the official SDK's types judge requests; answers follow from them."""

from __future__ import annotations

import json
from base64 import b64encode
from email.parser import BytesParser
from email.policy import default
from functools import cache
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from foliot.kernel.messages import Message, ModelResponse, Reasoning, Text, ToolCall, Usage
from foliot.models.cells import RED, SILENCE
from foliot.models.profiles import provider_facts
from simulators.provider import Play, encoded
from simulators.provider_formats import format_of

SOUND = b64encode(SILENCE).decode()[:400]
SIGNED = "c2lnbmF0dXJl"
THOUGHT = "Norway is cold, so I look it up."
COUNT = Usage(120, 20)
DETAIL = {"type": "reasoning.text", "text": THOUGHT, "signature": SIGNED, "format": "anthropic-claude-v1", "index": 0}
# These want their reasoning back in the turn of a call, and refuse the turn without it.
WANT_BACK = {
    "anthropic",
    "bedrock-anthropic",
    "gemini",
    "vertex",
    "openai-responses",
    "deepseek",
    "moonshot",
    "fireworks",
    "openrouter",
}
KEEP_THEIRS = {"openai", "azure-openai", "x-ai", "bedrock"}
NO_CHOICE = {"cerebras"}
NO_CHOICE_THINKING = {"deepseek", "moonshot"}
ONLY_OBJECTS = {"deepseek", "moonshot"}
NO_STRICT = {"moonshot"}
REFUSE_BOTH = {"groq", "cerebras"}  # a schema beside tools
# A grammar holds the answer to its schema from the first token on: no call can be written.
CONSTRAIN = {"ollama", "vllm", "lmstudio", "openai-compatible"}
UNCOUNTED = {"ollama"}  # caches are not in its counts


class Refused(Exception):
    pass


@cache
def _kind(wire: str, stream: bool) -> TypeAdapter[Any] | None:
    if wire in ("openai-chat", "azure-openai"):
        from openai.types.chat import completion_create_params as chat

        return TypeAdapter(chat.CompletionCreateParamsStreaming if stream else chat.CompletionCreateParamsNonStreaming)
    if wire == "openai-responses":
        from openai.types.responses import response_create_params as responses

        return TypeAdapter(
            responses.ResponseCreateParamsStreaming if stream else responses.ResponseCreateParamsNonStreaming
        )
    if wire == "anthropic":
        from anthropic.types import message_create_params as messages

        return TypeAdapter(
            messages.MessageCreateParamsStreaming if stream else messages.MessageCreateParamsNonStreaming
        )
    return None


class Obeying:
    """Answers for one provider; `wire` is the format that it speaks."""

    def __init__(self, provider: str, wire: str) -> None:
        self.provider = provider
        self.wire = wire
        self.seen: set[str] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path.endswith("/audio/transcriptions"):
            return await self.transcribed(request)
        raw = await request.text()
        body: dict[str, Any] = json.loads(raw)
        if path.endswith("/rerank"):
            return self.ranked(body, path)
        if path.endswith(("/embeddings", ":batchEmbedContents", "/api/embed")):
            return web.json_response(self.embedded(body, path))
        stream = bool(body.get("stream")) or "streamGenerate" in path
        if "no-such-model" in path or body.get("model") == "no-such-model":
            error = {"message": "no such model", "type": "not_found_error", "code": "model_not_found"}
            return web.json_response({"error": error}, status=404)
        try:
            self.judge(body, stream)
            answer = self.answer(body, raw)
        except Refused as refused:
            return web.json_response({"error": {"message": str(refused), "type": "invalid_request_error"}}, status=400)
        wire = format_of(path)
        assert wire is not None
        frames = b"".join(encoded(Play(answer), wire, stream))
        if self.provider == "openrouter" and not stream and any(isinstance(p, Reasoning) for p in answer.message.parts):
            frames = _detailed(frames)
        return web.Response(body=frames, content_type=wire.stream_type if stream else "application/json")

    def judge(self, body: dict[str, Any], stream: bool) -> None:
        kind = _kind(self.wire, stream)
        if kind is not None:
            try:
                kind.validate_python(body)
            except ValidationError as error:
                first = error.errors()[0]
                raise Refused(f"{'.'.join(str(each) for each in first['loc'][:4])}: {first['msg']}") from None
        elif self.wire == "gemini":
            types = pytest.importorskip("google.genai.types")
            try:
                for content in body["contents"]:
                    types.Content.model_validate(content)
                for tool in body.get("tools", ()):
                    types.Tool.model_validate(tool)
            except ValidationError as error:
                raise Refused(str(error.errors()[0]["msg"])) from None
        choice = body.get("tool_choice")
        if self.wire == "openai-chat" and isinstance(choice, str) and choice not in ("auto", "none", "required"):
            raise Refused("tool_choice: no such choice")
        if self.provider in NO_CHOICE and choice not in (None, "auto", "none"):
            raise Refused("tool_choice: only auto and none")
        form = body.get("response_format") or {}
        if self.provider in ONLY_OBJECTS and form.get("type") == "json_schema":
            raise Refused("response_format: json_schema is not available")
        if self.provider in REFUSE_BOTH and form and body.get("tools"):
            raise Refused("json mode cannot be combined with tool/function calling")
        forced: Any = cast("Any", choice).get("type") if isinstance(choice, dict) else choice
        forces = forced in ("required", "any", "tool", "function")
        thinking = body.get("thinking") or {"type": "adaptive" if "sonnet-5" in str(body.get("model")) else "disabled"}
        if self.wire == "anthropic" and forces and thinking["type"] in ("enabled", "adaptive"):
            raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
        if self.provider in NO_CHOICE_THINKING and forces:
            raise Refused("Thinking mode does not support this tool_choice")
        if self.provider in NO_STRICT and '"strict"' in json.dumps(body.get("tools", ())):
            raise Refused("tools: strict is no field")
        if self.provider == "mistral":
            for message in body["messages"]:
                ids = [message.get("tool_call_id"), *(call["id"] for call in message.get("tool_calls") or ())]
                if any(each is not None and not (len(each) == 9 and each.isalnum()) for each in ids):
                    raise Refused("tool_call_id: must be a-z, A-Z, 0-9, with a length of 9")

    def answer(self, body: dict[str, Any], raw: str) -> ModelResponse:
        tools = body.get("tools")
        limits = [body, body.get("generationConfig") or {}, body.get("options") or {}]
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "num_predict")
        limit = next((place[name] for place in limits for name in names if name in place), 4096)
        if "one hundred" in raw and limit <= 16:
            return _said("one two three", stop="length")
        if "17 degrees" in raw:
            if "Think first" in raw and self.provider in WANT_BACK and not self._carried(raw):
                raise Refused("the reasoning of this turn must come back as it was")
            if "Report it" not in raw:
                return _said("It is 17 degrees.")
            return _said(self._report(raw, 17))
        if tools and body.get("tool_choice") != "none":
            free = body.get("tool_choice") in (None, "auto")
            if self.provider in CONSTRAIN and free and (body.get("format") or body.get("response_format")):
                return _said(self._report(raw, 0))
            return self._called(body, raw)
        if "as JSON" in raw:
            if "numbers" not in raw.replace("two numbers", ""):
                raise Refused("no schema was sent")
            return _said('{"city": "Oslo", "numbers": [1, 2]}')
        if RED in raw:
            return _said("Red")
        if "word for word" in raw:
            if SOUND not in raw:
                raise Refused("there is no recording")
            return _said("tick tock")
        if "one to ten" in raw:
            return _said("one two three four five six seven eight nine ten")
        cached = 0
        if "Rules of the house" in raw:
            cached = 1024 if raw in self.seen and self.provider not in UNCOUNTED else 0
            self.seen.add(raw)
        return _said("ready", usage=Usage(1200, 1, cache_read_tokens=cached) if cached else COUNT)

    def _called(self, body: dict[str, Any], raw: str) -> ModelResponse:
        choice = json.dumps([body.get("tool_choice"), body.get("toolConfig")])
        name = "local_time" if "local_time" in choice else "weather"
        cities = ["Oslo", "Rome"] if "Rome" in raw else ["Oslo"]
        opaque = f"gemini.call:{SIGNED}" if self.wire == "gemini" else None
        ids = ("aB3dE6gH9", "bC4eF7hI0")
        calls = [ToolCall(ids[n], name, json.dumps({"city": city}), opaque) for n, city in enumerate(cities)]
        if "strictly" in raw and '"strict": true' not in json.dumps(body["tools"]) and "VALIDATED" not in choice:
            # A model that nothing holds to a schema may write anything.
            return _said("", ToolCall(ids[0], name, '{"town": "Oslo"}', opaque), stop="tool_calls")
        if "Think first" not in raw:
            return _said("", *calls, stop="tool_calls")
        if self.provider in KEEP_THEIRS:
            return _said("", *calls, stop="tool_calls", usage=Usage(120, 40, reasoning_tokens=20))
        kept = {"openai-responses": 'openai.responses:{"id":"rs_1","encrypted_content":"' + SIGNED + '"}'}.get(
            self.wire
        )
        signature = SIGNED if self.wire == "anthropic" else None
        return _said("", Reasoning(THOUGHT, signature, kept), *calls, stop="tool_calls")

    def _report(self, raw: str, degrees: int) -> str:
        """The weather as its schema wants it, from who was told of the schema."""
        if "integer" not in raw.lower():
            raise Refused("no schema was sent")
        return json.dumps({"city": "Oslo", "degrees": degrees})

    def _carried(self, raw: str) -> bool:
        if self.provider == "openrouter":
            return json.dumps(DETAIL) in json.dumps(json.loads(raw)["messages"])
        return (THOUGHT if self.wire == "openai-chat" else SIGNED) in raw

    def ranked(self, body: dict[str, Any], path: str) -> web.Response:
        """Rank as Cohere does, and as Voyage has it; both refuse the other's field."""
        facts = provider_facts(self.provider)
        below = urlsplit(facts.get("address", "")).path or "/v1"
        at, top = facts.get("rerank_path", f"{below}/rerank"), facts.get("rerank_top", "top_n")
        strange = set(body) - {"model", "query", "documents", top}
        if path != at or strange:
            return web.json_response({"message": f"unknown: {path} {sorted(strange)}"}, status=404)
        words = set(body["query"].lower().strip("?").split())
        scores = [len(words & set(text.lower().strip(".").split())) / len(words) for text in body["documents"]]
        rows = [{"index": n, "relevance_score": score} for n, score in enumerate(scores)]
        rows = sorted(rows, key=lambda row: -row["relevance_score"])[: body.get(top)]
        if self.provider == "cohere":
            return web.json_response({"id": "r1", "results": rows, "meta": {"billed_units": {"search_units": 1}}})
        if self.provider == "voyage":
            found = {"object": "list", "data": rows, "model": body["model"], "usage": {"total_tokens": 26}}
            return web.json_response(found)
        return web.json_response({"model": body["model"], "results": rows, "usage": {"total_tokens": 26}})

    async def transcribed(self, request: web.Request) -> web.Response:
        """Hear a form, as OpenAI's SDK sends it; answers count as each provider does."""
        form = form_of(request.headers["Content-Type"], await request.read())
        if form.get("file") != ("audio.wav", "audio/wav", SILENCE) or not form.get("model"):
            return web.json_response({"error": {"message": "file and model are required"}}, status=400)
        form_kind = form.get("response_format", "json")
        text = {"text": "tick tock"}
        if self.provider == "groq":
            more = {"duration": 1.0, "language": "en"} if form_kind == "verbose_json" else {}
            return web.json_response({**text, **more})
        if self.provider == "mistral":
            if form_kind != "json":
                return web.json_response({"message": "no such format"}, status=422)
            usage: dict[str, Any] = {"prompt_audio_seconds": 1, "prompt_tokens": 4, "completion_tokens": 3}
            return web.json_response({**text, "model": form["model"], "usage": usage})
        counted = {"type": "tokens", "input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
        return web.json_response({**text, "usage": {**counted, "input_token_details": {"audio_tokens": 10}}})

    def embedded(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        texts = body.get("input") or [each["content"]["parts"][0]["text"] for each in body["requests"]]
        vectors = [[float(ord(text[0])), float(len(text))] for text in texts]
        if path.endswith("/embeddings"):
            rows = [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(vectors)]
            return {"object": "list", "data": rows, "model": body["model"], "usage": {"prompt_tokens": 4}}
        if path.endswith("/api/embed"):
            return {"model": body["model"], "embeddings": vectors, "prompt_eval_count": 4}
        return {"embeddings": [{"values": each} for each in vectors]}


def _detailed(frames: bytes) -> bytes:
    """The answer with reasoning as OpenRouter has it: whatever its provider signed, in a list of its own."""
    body: dict[str, Any] = json.loads(frames)
    message = body["choices"][0]["message"]
    for name in ("reasoning_content", "reasoning"):
        message.pop(name, None)
    message |= {"reasoning": THOUGHT, "reasoning_details": [DETAIL]}
    return json.dumps(body).encode()


def form_of(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a form, read by Python's own mail parser; a file is its name, its kind and its bytes."""
    whole = BytesParser(policy=default).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    fields: dict[str, Any] = {}
    for part in cast("Any", whole).iter_parts():
        name = part.get_param("name", header="content-disposition")
        raw = part.get_payload(decode=True)
        fields[name] = (part.get_filename(), part.get_content_type(), raw) if part.get_filename() else raw.decode()
    return fields


def _said(text: str, *parts: Any, stop: Any = "end", usage: Usage = COUNT) -> ModelResponse:
    said = (*((Text(text),) if text else ()), *parts)
    # Reasoning comes before the calls, which is how every provider has it.
    return ModelResponse(Message("assistant", said), usage=usage, stop=stop, model="m-1", id="id_1")
