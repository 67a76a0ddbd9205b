"""Anthropic Messages requests. The answers are read in anthropic_answer.py.

Caching is asked for on three places: the end of the stable prefix (tools come before the system text, so a mark on the
system text covers both), the last user turn, which is the prefix of the next question, and the one before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from foliot.models.config import GatewayConfig
from foliot.models.wire.anthropic_answer import (
    OUTPUT_TOOL,
    REDACTED,
    MessagesAssembler,
    counted_in_message,
    parse_messages,
)
from foliot.models.wire.base import Unsendable
from foliot.models.wire.calls import CallIds, arguments_object, sendable_id
from foliot.models.wire.media import address, decoded_text, is_image, is_text, placeholder, result_texts
from foliot.models.wire.opaque import unmark
from foliot.models.wire.schemas import closed
from foliot.models.wire.tool_names import ToolNames, description_of, ordered_tools, schema_of, tool_names

# Models from before adaptive thinking take a budget instead, those from before structured outputs a forced tool.
_BUDGETED = re.compile(r"claude-(3|(opus|sonnet|haiku)-4(-[015])?(-\d{8})?$|(opus|sonnet|haiku)-4-[015]\b)")
_TOOL_ONLY = re.compile(r"claude-(3|(opus|sonnet)-4(-0)?(-\d{8})?$)")
# Later models refuse a temperature, as does the API version of October 2026 for all models.
_SAMPLED = re.compile(r"claude-(3|instant|2|(opus|sonnet|haiku)-4(?!-[7-9](?!\d)|-\d\d(?!\d)))")
_NO_SAMPLING_SINCE: Final = "2026-10-21"
_BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_LEAST_BUDGET: Final = 1024


@dataclass(frozen=True, slots=True)
class MessagesOptions:
    """`cache` is "5m", "1h" or "off"; the rest is "auto", which goes by the model's name, or forced."""

    max_tokens: int = 8192
    cache: str = "5m"
    thinking: str = "auto"
    structured: str = "auto"
    sampling: str = "auto"

    @classmethod
    def from_config(cls, config: GatewayConfig) -> MessagesOptions:
        new = config.text("anthropic_version") >= _NO_SAMPLING_SINCE
        return cls(
            max_tokens=config.integer("max_tokens", 8192),
            cache=config.choice("cache", ("5m", "1h", "off"), "5m"),
            thinking=config.choice("thinking", ("auto", "adaptive", "budget", "off"), "auto"),
            structured=config.choice("structured_output", ("auto", "native", "tool"), "auto"),
            sampling=config.choice("sampling", ("auto", "on", "off"), "off" if new else "auto"),
        )


class AnthropicWire:
    """See `Wire`."""

    def __init__(self, options: MessagesOptions | None = None) -> None:
        self.options = options or MessagesOptions()

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools, limit=128)

    def path(self, model: str, *, stream: bool) -> str:
        return "/messages"

    def build_body(self, request: ModelRequest, names: ToolNames, *, stream: bool) -> dict[str, Any]:
        settings = request.settings
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": settings.max_output_tokens or self.options.max_tokens,
            "messages": _turns(request.messages, names),
        }
        if system := _system(request):
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {"name": names.wire(tool.name), "description": description_of(tool), "input_schema": schema_of(tool)}
                for tool in ordered_tools(request.tools)
            ]
            body["tool_choice"] = {"type": "any" if settings.tool_choice == "required" else settings.tool_choice}
        if settings.stop:
            body["stop_sequences"] = settings.stop
        self._put_sampling(body, request)
        self._put_schema(body, request)
        self._put_thinking(body, request)
        if self.options.cache != "off":
            self._put_cache_marks(body)
        if stream:
            body["stream"] = True
        if settings.extra:
            body.update(settings.extra)
        return body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_messages(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_message(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> MessagesAssembler:
        return MessagesAssembler(names, ids)

    def _put_sampling(self, body: dict[str, Any], request: ModelRequest) -> None:
        settings, how = request.settings, self.options.sampling
        if how == "off" or (how == "auto" and "claude" in request.model and not _SAMPLED.search(request.model)):
            return
        # Since 4.5 the two exclude each other; the temperature is what people set on purpose.
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        elif settings.top_p is not None:
            body["top_p"] = settings.top_p

    def _put_schema(self, body: dict[str, Any], request: ModelRequest) -> None:
        if request.output_schema is None:
            return
        how = self.options.structured
        if how == "tool" or (how == "auto" and _TOOL_ONLY.search(request.model)):
            tool = {
                "name": OUTPUT_TOOL,
                "description": "Give the final answer. Call this once, when everything else is done.",
                "input_schema": {**request.output_schema, "type": "object"},
            }
            body["tools"] = [*body.get("tools", ()), tool]
            # With other tools the model must be free to call them first; it ends by calling this one.
            body["tool_choice"] = {"type": "any"} if request.tools else {"type": "tool", "name": OUTPUT_TOOL}
            return
        body["output_config"] = {"format": {"type": "json_schema", "schema": closed(request.output_schema)}}

    def _put_thinking(self, body: dict[str, Any], request: ModelRequest) -> None:
        effort, how = request.settings.reasoning_effort, self.options.thinking
        # A forced call and thinking exclude each other, and the force was asked for in so many words.
        forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
        if effort is None or how == "off" or forced:
            return
        if how == "adaptive" or (how == "auto" and not _BUDGETED.search(request.model)):
            body["thinking"] = {"type": "adaptive"}
            body["output_config"] = {**body.get("output_config", {}), "effort": _EFFORTS[effort]}
            return
        if _in_unsigned_loop(body["messages"]):
            return
        budget = _BUDGETS[effort]
        if request.settings.max_output_tokens is None:
            body["max_tokens"] = max(body["max_tokens"], budget + self.options.max_tokens)
        budget = min(budget, body["max_tokens"] // 2)
        if budget >= _LEAST_BUDGET:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            body.pop("temperature", None)  # refused together with a budget
            body.pop("top_p", None)

    def _put_cache_marks(self, body: dict[str, Any]) -> None:
        mark: dict[str, str] = {"type": "ephemeral"}
        if self.options.cache == "1h":
            mark["ttl"] = "1h"
        if body.get("system"):
            body["system"][0]["cache_control"] = mark
        elif body.get("tools"):
            body["tools"][-1] = {**body["tools"][-1], "cache_control": mark}
        # The last user turn, and the one before, where the last question had its mark: a cache is looked for only
        # twenty blocks before a mark, and a step of many calls is longer. With the first that makes three of four.
        turns = [turn for turn in body["messages"] if turn["role"] == "user"]
        for turn in turns[-2:]:
            turn["content"][-1]["cache_control"] = mark


def _system(request: ModelRequest) -> list[dict[str, Any]]:
    texts = [request.system, *(message.text for message in request.messages if message.role == "system")]
    return [{"type": "text", "text": text} for text in texts if text.strip()]


def _turns(messages: tuple[Message, ...], names: ToolNames) -> list[dict[str, Any]]:
    """User and assistant in turn. Tool results belong to the user's turn, before what the user says there."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts if (block := _block(part, role, names)) is not None]
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"].sort(key=_after_results)
    return turns


def _in_unsigned_loop(turns: list[dict[str, Any]]) -> bool:
    """Does the question answer calls that were made without thinking, by another provider for example?

    Models with a budget refuse to begin thinking in the middle of such a turn.
    """
    if len(turns) < 2 or turns[-1]["content"][0]["type"] != "tool_result":
        return False
    return turns[-2]["content"][0]["type"] not in ("thinking", "redacted_thinking")


def _after_results(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_result"


def _block(part: Part, role: str, names: ToolNames) -> dict[str, Any] | None:
    if isinstance(part, Text):
        # Blank text blocks are refused.
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, ToolCall):
        return {
            "type": "tool_use",
            "id": sendable_id(part.id),
            "name": names.wire(part.name),
            "input": arguments_object(part.arguments),
        }
    if isinstance(part, ToolResult):
        return _result(part)
    if isinstance(part, Reasoning):
        # A signature that came with more than itself is another gateway's: Anthropic's own has no `opaque`.
        if part.signature is not None and part.opaque is None:
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        redacted = unmark(REDACTED, part.opaque)
        return None if redacted is None else {"type": "redacted_thinking", "data": redacted}
    if role == "assistant":
        return {"type": "text", "text": placeholder(part)}
    return _media(part)


def _result(result: ToolResult) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _media(part)
        for part in result.content
        if not isinstance(part, Text) or part.text.strip()
    ]
    content = content or [{"type": "text", "text": result_texts(result)[0]}]
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sendable_id(result.call_id), "content": content}
    if result.error is not None:
        block["is_error"] = True
    return block


def _media(media: Media) -> dict[str, Any]:
    if is_image(media):
        return {"type": "image", "source": _source(media)}
    block: dict[str, Any] = {"type": "document"}
    if media.data is not None and is_text(media):
        block["source"] = {"type": "text", "media_type": "text/plain", "data": decoded_text(media)}
    elif media.media_type == "application/pdf":
        block["source"] = _source(media)
    else:
        raise Unsendable(f"Anthropic Messages take images, PDF and text, not {media.media_type}")
    if media.name:
        block["title"] = media.name
    return block


def _source(media: Media) -> dict[str, Any]:
    if media.data is not None:
        return {"type": "base64", "media_type": media.media_type, "data": media.data}
    return {"type": "url", "url": address(media)}
