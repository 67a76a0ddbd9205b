"""Finished answers written in each provider's wire format, whole or as the frames of a stream.

The other direction of `foliot.models.wire`, for the fake provider in wire.py. The official SDKs read what is written
here, which is how the two directions are kept from agreeing on the same mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import msgspec

from foliot.kernel.messages import Media, ModelResponse, Part, Reasoning, Text, ToolCall
from foliot.models.wire.opaque import unmark

Frames = list[bytes]


class WireFormat(NamedTuple):
    """`frames(response, pieces)` cuts text into `pieces`; `error` is an error event inside a stream."""

    name: str
    body: Callable[[ModelResponse], Any]
    frames: Callable[[ModelResponse, int], Frames]
    error: Callable[[str], bytes]
    stream_type: str = "text/event-stream"


def format_of(path: str) -> WireFormat | None:
    """The format that is spoken at this path of a provider; None for an unknown one."""
    bare = path.split("?")[0]
    for ending, found in _FORMATS.items():
        if ending in bare:
            return found
    return None


def cut(text: str, pieces: int) -> list[str]:
    """The text in at most `pieces` parts of nearly equal length; none is empty."""
    pieces = max(1, min(pieces, len(text)))
    marks = [len(text) * n // pieces for n in range(pieces + 1)]
    return [text[a:b] for a, b in pairwise(marks) if a < b]


def _wire_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", name)


def _sse(data: Any, event: str = "") -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _args(call: ToolCall) -> Any:
    return msgspec.json.decode(call.arguments)


def _calls(response: ModelResponse) -> tuple[ToolCall, ...]:
    return response.message.calls


def _of(response: ModelResponse, kind: type[Any]) -> list[Any]:
    return [part for part in response.message.parts if isinstance(part, kind)]


# ── OpenAI chat completions ─────────────────────────────────────────────────────────────────────────────────────────

_CHAT_STOPS = {
    "end": "stop", "tool_calls": "tool_calls", "length": "length", "refusal": "content_filter", "pause": "stop",
    "other": "error",
}  # fmt: skip


def _chat_usage(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _chat_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": _wire_name(call.name), "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _chat_images(response: ModelResponse) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": part.url or f"data:{part.media_type};base64,{part.data}"}}
        for part in _of(response, Media)
    ]


def _chat_body(response: ModelResponse) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": response.message.text or None}
    if thought := "".join(part.text for part in _of(response, Reasoning)):
        message["reasoning_content"] = thought
    if calls := [_chat_call(call) for call in _calls(response)]:
        message["tool_calls"] = calls
    if images := _chat_images(response):
        message["images"] = images
    return {
        "id": response.id,
        "object": "chat.completion",
        "created": 1,
        "model": response.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _CHAT_STOPS[response.stop], "logprobs": None}],
        "usage": _chat_usage(response),
    }


def _chat_frames(response: ModelResponse, pieces: int) -> Frames:
    def frame(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return _sse({**head, "choices": [choice], "usage": None})

    head = {"id": response.id, "object": "chat.completion.chunk", "created": 1, "model": response.model}
    frames = [b": keep-alive\n\n", frame({"role": "assistant", "content": ""})]
    for part in _of(response, Reasoning):
        frames += [frame({"reasoning_content": piece}) for piece in cut(part.text, pieces)]
    if response.message.text:
        frames += [frame({"content": piece}) for piece in cut(response.message.text, pieces)]
    if images := _chat_images(response):
        frames.append(frame({"images": images}))
    for index, call in enumerate(_calls(response)):
        opened = _chat_call(call)
        opened["function"]["arguments"] = ""
        frames.append(frame({"tool_calls": [{"index": index, **opened}]}))
    # Parallel calls are written at the same time, a piece of each in turn.
    for row in zip_longest(*(cut(call.arguments, 3) for call in _calls(response))):
        frames += [
            frame({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for index, piece in enumerate(row)
            if piece
        ]
    frames.append(frame({}, _CHAT_STOPS[response.stop]))
    frames.append(_sse({**head, "choices": [], "usage": _chat_usage(response)}))
    frames.append(b"data: [DONE]\n\n")
    return frames


def _chat_error(message: str) -> bytes:
    return _sse({"error": {"message": message, "type": "server_error", "code": None, "param": None}})


# ── OpenAI responses ────────────────────────────────────────────────────────────────────────────────────────────────


def _item(part: Part, number: int) -> dict[str, Any]:
    if isinstance(part, Text):
        said: dict[str, Any] = {"type": "output_text", "text": part.text, "annotations": []}
        head = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        return {**head, "content": [said]}
    if isinstance(part, ToolCall):
        return {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": part.id,
            "name": _wire_name(part.name),
            "arguments": part.arguments,
            "status": "completed",
        }
    if isinstance(part, Reasoning):
        kept = unmark("openai.responses", part.opaque)
        own = msgspec.json.decode(kept, type=dict[str, str]) if kept else {"id": f"rs_{number}"}
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        return {"type": "reasoning", "summary": summary, **own}
    assert isinstance(part, Media)
    return {"type": "image_generation_call", "id": f"ig_{number}", "status": "completed", "result": part.data}


def _responses_body(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    body: dict[str, Any] = {
        "id": response.id,
        "object": "response",
        "created_at": 1,
        "model": response.model,
        "status": "incomplete" if response.stop in ("length", "refusal") else "completed",
        "output": [_item(part, number) for number, part in enumerate(response.message.parts)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        },
    }
    if body["status"] == "incomplete":
        reason = "max_output_tokens" if response.stop == "length" else "content_filter"
        body["incomplete_details"] = {"reason": reason}
    return body


def _responses_frames(response: ModelResponse, pieces: int) -> Frames:
    frames: Frames = []

    def send(kind: str, **data: Any) -> None:
        frames.append(_sse({"type": kind, "sequence_number": len(frames), **data}, kind))

    body = _responses_body(response)
    send("response.created", response={**body, "status": "in_progress", "output": [], "usage": None})
    for place, item in enumerate(body["output"]):
        at = {"output_index": place, "item_id": item["id"]}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            send(
                "response.output_item.added", output_index=place, item={**item, "content": [], "status": "in_progress"}
            )
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
            send("response.content_part.added", **at, content_index=0, part=part)
            for piece in cut(text, pieces):
                send("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])
            send("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
        elif item["type"] == "function_call":
            opened = {**item, "arguments": "", "status": "in_progress"}
            send("response.output_item.added", output_index=place, item=opened)
            for piece in cut(item["arguments"], 3):
                send("response.function_call_arguments.delta", **at, delta=piece)
            send("response.function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"])
        elif item["type"] == "reasoning":
            send("response.output_item.added", output_index=place, item={**item, "summary": []})
            for summary in item["summary"]:
                empty = {"type": "summary_text", "text": ""}
                send("response.reasoning_summary_part.added", **at, summary_index=0, part=empty)
                for piece in cut(summary["text"], pieces):
                    send("response.reasoning_summary_text.delta", **at, summary_index=0, delta=piece)
        else:
            send("response.output_item.added", output_index=place, item={**item, "result": None})
        send("response.output_item.done", output_index=place, item=item)
    send(f"response.{body['status']}", response=body)
    return frames


def _responses_error(message: str) -> bytes:
    return _sse({"type": "error", "code": "server_error", "message": message, "sequence_number": 9}, "error")


# ── Anthropic Messages ──────────────────────────────────────────────────────────────────────────────────────────────

_MESSAGES_STOPS = {
    "end": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "refusal": "refusal", "pause": "pause_turn",
    "other": "unheard_of",
}  # fmt: skip

_ANTHROPIC_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _anthropic_block(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": part.id, "name": _wire_name(part.name), "input": _args(part)}
    assert isinstance(part, Reasoning)
    if (data := unmark("anthropic.redacted", part.opaque)) is not None:
        return {"type": "redacted_thinking", "data": data}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}


def _anthropic_usage(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    return {
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _anthropic_body(response: ModelResponse) -> dict[str, Any]:
    return {
        "id": response.id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": [_anthropic_block(part) for part in response.message.parts],
        "stop_reason": _MESSAGES_STOPS[response.stop],
        "stop_sequence": None,
        "usage": _anthropic_usage(response),
    }


def _anthropic_frames(response: ModelResponse, pieces: int) -> Frames:
    frames: Frames = []

    def send(kind: str, **data: Any) -> None:
        frames.append(_sse({"type": kind, **data}, kind))

    body = _anthropic_body(response)
    first = {**body["usage"], "output_tokens": 1}
    send("message_start", message={**body, "content": [], "stop_reason": None, "usage": first})
    send("ping")
    for index, block in enumerate(body["content"]):
        kind = block["type"]
        send("content_block_start", index=index, content_block={**block, **_ANTHROPIC_EMPTY.get(kind, {})})
        if kind == "text":
            for piece in cut(block["text"], pieces):
                send("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        elif kind == "thinking":
            for piece in cut(block["thinking"], pieces):
                send("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": piece})
            signed = {"type": "signature_delta", "signature": block["signature"]}
            send("content_block_delta", index=index, delta=signed)
        elif kind == "tool_use":
            call = response.message.parts[index]
            assert isinstance(call, ToolCall)
            send("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": ""})
            for piece in cut(call.arguments, 3):
                send("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
        send("content_block_stop", index=index)
    last = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    send("message_delta", delta=last, usage={"output_tokens": response.usage.output_tokens})
    send("message_stop")
    return frames


def _anthropic_error(message: str) -> bytes:
    return _sse({"type": "error", "error": {"type": "overloaded_error", "message": message}}, "error")


# ── Gemini ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_GEMINI_STOPS = {
    "end": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY", "pause": "STOP", "other": "OTHER",
}  # fmt: skip


def _gemini_parts(response: ModelResponse) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in response.message.parts:
        if isinstance(part, Text):
            parts.append({"text": part.text})
        elif isinstance(part, ToolCall):
            made: dict[str, Any] = {"functionCall": {"name": _wire_name(part.name), "args": _args(part)}}
            if (signature := unmark("gemini.call", part.opaque)) is not None:
                made["thoughtSignature"] = signature
            parts.append(made)
        elif isinstance(part, Media):
            parts.append({"inlineData": {"mimeType": part.media_type, "data": part.data}})
        elif isinstance(part, Reasoning):
            if (signature := unmark("gemini.text", part.opaque)) is not None:
                parts[-1]["thoughtSignature"] = signature
            else:
                parts.append({"text": part.text, "thought": True})
    return parts


def _gemini_answer(response: ModelResponse, parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
    usage = response.usage
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = _GEMINI_STOPS[response.stop]
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": usage.input_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "cachedContentTokenCount": usage.cache_read_tokens,
            "totalTokenCount": usage.total_tokens,
        },
        "modelVersion": response.model,
        "responseId": response.id,
    }


def _gemini_body(response: ModelResponse) -> dict[str, Any]:
    return _gemini_answer(response, _gemini_parts(response), last=True)


def _gemini_frames(response: ModelResponse, pieces: int) -> Frames:
    frames: Frames = []
    for part in _gemini_parts(response):
        if "text" in part and "thoughtSignature" not in part:
            small = [{**part, "text": piece} for piece in cut(part["text"], pieces)]
        else:
            small = [part]
        frames += [_sse(_gemini_answer(response, [one], last=False)) for one in small]
    frames.append(_sse(_gemini_answer(response, [], last=True)))
    return frames


def _gemini_error(message: str) -> bytes:
    return _sse({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})


# ── Ollama ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _ollama_line(response: ModelResponse, message: dict[str, Any], *, last: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "model": response.model,
        "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": "", **message},
        "done": last,
    }
    if last:
        line["done_reason"] = "length" if response.stop == "length" else "stop"
        line["prompt_eval_count"] = response.usage.input_tokens
        line["eval_count"] = response.usage.output_tokens
    return line


def _ollama_calls(response: ModelResponse) -> list[dict[str, Any]]:
    return [{"function": {"name": _wire_name(call.name), "arguments": _args(call)}} for call in _calls(response)]


def _ollama_body(response: ModelResponse) -> dict[str, Any]:
    message: dict[str, Any] = {"content": response.message.text}
    if thought := "".join(part.text for part in _of(response, Reasoning)):
        message["thinking"] = thought
    if calls := _ollama_calls(response):
        message["tool_calls"] = calls
    return _ollama_line(response, message, last=True)


def _ollama_frames(response: ModelResponse, pieces: int) -> Frames:
    messages: list[dict[str, Any]] = []
    for part in response.message.parts:
        if isinstance(part, Reasoning):
            messages += [{"thinking": piece} for piece in cut(part.text, pieces)]
        elif isinstance(part, Text):
            messages += [{"content": piece} for piece in cut(part.text, pieces)]
    messages += [{"tool_calls": [call]} for call in _ollama_calls(response)]
    lines = [_ollama_line(response, message, last=False) for message in messages]
    lines.append(_ollama_line(response, {}, last=True))
    return [msgspec.json.encode(line) + b"\n" for line in lines]


def _ollama_error(message: str) -> bytes:
    return msgspec.json.encode({"error": message}) + b"\n"


_FORMATS = {
    "/chat/completions": WireFormat("openai_chat", _chat_body, _chat_frames, _chat_error),
    "/responses": WireFormat("openai_responses", _responses_body, _responses_frames, _responses_error),
    "/messages": WireFormat("anthropic", _anthropic_body, _anthropic_frames, _anthropic_error),
    "enerateContent": WireFormat("gemini", _gemini_body, _gemini_frames, _gemini_error),
    "/api/chat": WireFormat("ollama", _ollama_body, _ollama_frames, _ollama_error, "application/x-ndjson"),
}
