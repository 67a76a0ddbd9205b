"""How many tokens a request will take, before it is sent.

A budget has to be checked before the call, when nobody has counted yet. The estimate starts from characters, which
costs about a microsecond and needs no vocabulary file, and is then corrected: every answer brings the provider's own
count, and `TokenCounter` keeps the ratio between the two for each model, newer answers weighing more. After a few
answers the estimate follows the model at hand, its language mix and its hidden overhead for tools.

Read by:  the budget check before a call, the rate limiter (tokens per minute), the scripted model (its usage).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from foliot.kernel.messages import Media, Message, ModelRequest, Part, Text, ToolCall, ToolResult, ToolSpec

# Measured by the byte, text outside ASCII is dearer: about one token per Chinese sign, two thirds per Cyrillic letter.
_TOKENS_PER_EXTRA_BYTE: Final = 0.4
_PER_MESSAGE: Final = 4
_PER_CALL: Final = 8
_PER_TOOL: Final = 12

# What a file costs when only its kind is known, and how many bytes of it make a token when its bytes are here.
_IMAGE: Final = 1200  # providers bill a picture of usual size at 700 to 1,600 tokens, whatever its bytes
_UNSEEN_FILE: Final = 2000
_BYTES_PER_TOKEN: Final = {"text": 4.0, "audio": 500.0, "video": 2000.0}
_DOCUMENT_BYTES_PER_TOKEN: Final = 30.0
_DOCUMENT_LEAST: Final = 250

_schema_tokens: OrderedDict[int, tuple[tuple[ToolSpec, ...], int]] = OrderedDict()
_SCHEMA_CACHE: Final = 256


def estimate_text(text: str) -> int:
    """Tokens of a plain text; 0 only for an empty one."""
    if text.isascii():
        return len(text) // 4 + 1 if text else 0
    extra = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return int(len(text) / 4 + extra * _TOKENS_PER_EXTRA_BYTE) + 1


def estimate_media(media: Media) -> int:
    """Tokens of a picture or file. Without its bytes (a link, a blob) the guess is a fixed one for its kind."""
    kind = media.media_type.partition("/")[0]
    if kind == "image":
        return _IMAGE
    if media.data is None:
        return _UNSEEN_FILE
    size = len(media.data) * 3 // 4
    if (rate := _BYTES_PER_TOKEN.get(kind)) is not None:
        return int(size / rate) + 1
    return max(_DOCUMENT_LEAST, int(size / _DOCUMENT_BYTES_PER_TOKEN))


def estimate_parts(parts: Iterable[Part]) -> int:
    """Tokens of the parts of one message. Runs over the whole transcript at every step, so it is written for speed."""
    total = 0
    for part in parts:
        if isinstance(part, Text):
            text = part.text
            total += len(text) // 4 + 1 if text.isascii() else estimate_text(text)
        elif isinstance(part, ToolResult):
            total += _PER_CALL
            for piece in part.content:
                total += estimate_text(piece.text) if isinstance(piece, Text) else estimate_media(piece)
            if part.error is not None and not part.content:
                total += estimate_text(part.error.message)
        elif isinstance(part, ToolCall):
            total += _PER_CALL + estimate_text(part.name + part.arguments)
        elif isinstance(part, Media):
            total += estimate_media(part)
        else:
            total += estimate_text(part.text) + estimate_text(part.opaque or "")
    return total


def estimate_message(message: Message) -> int:
    return _PER_MESSAGE + estimate_parts(message.parts)


def estimate_tools(tools: tuple[ToolSpec, ...]) -> int:
    """Tokens of the tool descriptions. An agent sends the same tuple at every step, so the last ones are remembered."""
    if not tools:
        return 0
    key = id(tools)
    known = _schema_tokens.get(key)
    if known is not None and known[0] is tools:
        return known[1]
    total = sum(
        _PER_TOOL + estimate_text(tool.name + tool.description) + (len(msgspec.json.encode(tool.schema)) // 4)
        for tool in tools
    )
    _schema_tokens[key] = (tools, total)
    if len(_schema_tokens) > _SCHEMA_CACHE:
        _schema_tokens.popitem(last=False)
    return total


def estimate_request(request: ModelRequest) -> int:
    """Input tokens of a request, uncorrected: the same request gives the same number in every process."""
    total = estimate_text(request.system) + estimate_tools(request.tools)
    total += _PER_MESSAGE * len(request.messages)
    for message in request.messages:
        total += estimate_parts(message.parts)
    if request.output_schema is not None:
        total += len(msgspec.json.encode(request.output_schema)) // 4
    return total


@dataclass(slots=True)
class _Ratio:
    value: float = 1.0
    seen: int = 0


class TokenCounter:
    """Estimates corrected by what providers really counted, one ratio per model, kept in memory only.

    A new process starts at 1.0 and is close after a handful of answers. Ratios are kept within `_BOUNDS`, so that one
    absurd count (a proxy that reports zero, a cached prompt left out) cannot switch a budget off.
    """

    _BOUNDS: Final = (0.25, 4.0)
    _WEIGHT: Final = 0.2
    _MODELS: Final = 1024

    def __init__(self) -> None:
        self._ratios: OrderedDict[str, _Ratio] = OrderedDict()

    def ratio(self, model: str) -> float:
        """Real tokens per estimated token of `model`; 1.0 while nothing was counted."""
        known = self._ratios.get(model)
        return known.value if known else 1.0

    def estimate(self, request: ModelRequest, *, model: str | None = None) -> int:
        """Input tokens that the provider will count for `request`, as well as is known now."""
        return self.correct(estimate_request(request), model=model or request.model)

    def correct(self, estimated: int, *, model: str) -> int:
        return round(estimated * self.ratio(model))

    def observe(self, model: str, *, estimated: int, counted: int) -> None:
        """Learn from one answer: `estimated` was the uncorrected guess, `counted` the provider's number."""
        if estimated <= 0 or counted <= 0:
            return
        low, high = self._BOUNDS
        ratio = min(high, max(low, counted / estimated))
        known = self._ratios.setdefault(model, _Ratio())
        self._ratios.move_to_end(model)
        known.seen += 1
        weight = max(self._WEIGHT, 1 / known.seen)  # the first answers count fully, or learning would take dozens
        known.value += (ratio - known.value) * weight
        if len(self._ratios) > self._MODELS:
            self._ratios.popitem(last=False)
