"""The one estimate of how many tokens messages take, before anybody has counted them.

It starts from characters, which costs about a microsecond and needs no vocabulary file, and is pure: the same request
gives the same number in every process. Two readers correct it by what providers really count: a run by the usage of its
last answer (`run/state.py`, for its limits and its compaction), and a process by a ratio for each model
(`models/routing/tokens.py`, for budgets and rate limits).

Pictures are counted by the rule of the model that will see them, from their width and height, never by their bytes.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from math import ceil
from typing import Final, Literal, NamedTuple

import msgspec

from foliot.kernel.messages import Media, Message, ModelRequest, Part, Text, ToolCall, ToolResult, ToolSpec

# Measured by the byte, text outside ASCII is dearer: about one token per Chinese sign, two thirds per Cyrillic letter.
_TOKENS_PER_EXTRA_BYTE: Final = 0.4
PER_MESSAGE: Final = 4
_PER_CALL: Final = 8
_PER_TOOL: Final = 12

# What a file costs when only its kind is known, and how many bytes of it make a token when its bytes are here.
_UNSEEN_FILE: Final = 2000
_BYTES_PER_TOKEN: Final = {"text": 4.0, "audio": 500.0, "video": 2000.0}
_DOCUMENT_BYTES_PER_TOKEN: Final = 30.0
_DOCUMENT_LEAST: Final = 250

_schema_tokens: OrderedDict[int, tuple[tuple[ToolSpec, ...], int]] = OrderedDict()
_SCHEMA_CACHE: Final = 256
# The estimates of the last long transcripts. Each question of a run repeats all that was said before it, so only what
# is new is estimated. What is kept for that alone is bounded: so many transcripts, of so many tokens, without files.
_transcript_tokens: OrderedDict[int, tuple[tuple[Message, ...], ImageRule, int]] = OrderedDict()
_TRANSCRIPT_CACHE: Final = 32
_TRANSCRIPT_MESSAGES: Final = 64
_TRANSCRIPT_TOKENS: Final = 100_000


# --- pictures --------------------------------------------------------------------------------------------------------


class ImageRule(NamedTuple):
    """How a family of models counts a picture.

    `usual` is for one whose size is not known. A picture is first scaled down to fit `longest` on each side, and to
    `shortest` on its shorter one. Then "area" takes a token for so many `pixels`, and "tiles" takes `base` and `each`
    for every square of `side` that covers it; a picture of at most `small` on both sides is one tile.
    """

    usual: int
    by: Literal["area", "tiles", "fixed"] = "fixed"
    longest: int = 0
    shortest: int = 0
    pixels: int = 1
    most: int = 0
    base: int = 0
    each: int = 0
    side: int = 1
    small: int = 0


# Providers bill a picture of usual size at 700 to 1,600 tokens, whatever its bytes.
_ANY_MODEL: Final = ImageRule(1200)
# As the providers document them. The first pattern that is found in the name of the model holds.
_IMAGE_RULES: Final = (
    (r"claude", ImageRule(1200, "area", longest=1568, pixels=750, most=1600)),
    (r"gemini", ImageRule(1032, "tiles", longest=3072, each=258, side=768, small=384)),
    (r"gpt-4o-mini", ImageRule(25501, "tiles", longest=2048, shortest=768, base=2833, each=5667, side=512)),
    (r"gpt-(4\.1|5)-(mini|nano)|o4-mini", ImageRule(1536, "tiles", longest=2048, each=1, side=32, most=1536)),
    (r"gpt-5", ImageRule(630, "tiles", longest=2048, shortest=768, base=70, each=140, side=512)),
    (r"gpt-|(^|/)o[134]", ImageRule(765, "tiles", longest=2048, shortest=768, base=85, each=170, side=512)),
)


@lru_cache(maxsize=512)
def image_rule(model: str) -> ImageRule:
    """The rule by which this model counts pictures; that of any model when none is known."""
    return next((rule for pattern, rule in _IMAGE_RULES if re.search(pattern, model, re.IGNORECASE)), _ANY_MODEL)


def image_tokens(rule: ImageRule, width: int, height: int) -> int:
    """Tokens of a picture of this size."""
    if rule.by == "fixed" or width <= 0 or height <= 0:
        return rule.usual
    scale = min(1.0, rule.longest / max(width, height)) if rule.longest else 1.0
    if rule.shortest:
        scale = min(scale, rule.shortest / min(width, height))
    wide, high = max(1.0, width * scale), max(1.0, height * scale)
    if rule.by == "area":
        found = ceil(wide * high / rule.pixels)
    elif max(wide, high) <= rule.small:
        found = rule.base + rule.each
    else:
        found = rule.base + rule.each * ceil(wide / rule.side) * ceil(high / rule.side)
    return min(found, rule.most) if rule.most else found


# The size of a JPEG stands behind its previews and comments: so much of a file is looked through for it.
_HEAD: Final = 64 * 1024
_START_OF_FRAME: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_size(data: str) -> tuple[int, int] | None:
    """Width and height of a picture in base64 (PNG, GIF, WebP, JPEG), from its head; None when they are not there."""
    try:
        head = b64decode(data[:64])
        if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
            return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
        if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
            return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
            return _webp_size(head)
        if head.startswith(b"\xff\xd8"):
            return _jpeg_size(b64decode(data[:_HEAD]))
    except (NotBase64, ValueError):
        pass
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _START_OF_FRAME:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        # A run of 0xFF is padding; every other segment says how long it is.
        at += 1 if marker == 0xFF else 2 + max(2, int.from_bytes(head[at + 2 : at + 4]))
    return None


# --- texts, messages, requests ---------------------------------------------------------------------------------------


def estimate_text(text: str) -> int:
    """Tokens of a plain text; 0 only for an empty one."""
    if text.isascii():
        return len(text) // 4 + 1 if text else 0
    extra = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return int(len(text) / 4 + extra * _TOKENS_PER_EXTRA_BYTE) + 1


def estimate_media(media: Media, images: ImageRule = _ANY_MODEL) -> int:
    """Tokens of a picture or file. Without its bytes (a link, a blob) the guess is a fixed one for its kind."""
    kind = media.media_type.partition("/")[0]
    if kind == "image":
        size = None if media.data is None or images.by == "fixed" else image_size(media.data)
        return images.usual if size is None else image_tokens(images, *size)
    if media.data is None:
        return _UNSEEN_FILE
    size_in_bytes = len(media.data) * 3 // 4
    if (rate := _BYTES_PER_TOKEN.get(kind)) is not None:
        return int(size_in_bytes / rate) + 1
    return max(_DOCUMENT_LEAST, int(size_in_bytes / _DOCUMENT_BYTES_PER_TOKEN))


def estimate_parts(parts: Iterable[Part], images: ImageRule = _ANY_MODEL) -> int:
    """Tokens of the parts of one message. Runs over the whole transcript at every step, so it is written for speed."""
    total = 0
    for part in parts:
        if isinstance(part, Text):
            text = part.text
            total += len(text) // 4 + 1 if text.isascii() else estimate_text(text)
        elif isinstance(part, ToolResult):
            total += _PER_CALL
            for piece in part.content:
                total += estimate_text(piece.text) if isinstance(piece, Text) else estimate_media(piece, images)
            if part.error is not None and not part.content:
                total += estimate_text(part.error.message)
        elif isinstance(part, ToolCall):
            total += _PER_CALL + estimate_text(part.name + part.arguments)
        elif isinstance(part, Media):
            total += estimate_media(part, images)
        else:
            total += estimate_text(part.text) + estimate_text(part.opaque or "")
    return total


def estimate_message(message: Message, images: ImageRule = _ANY_MODEL) -> int:
    return PER_MESSAGE + estimate_parts(message.parts, images)


def estimate_messages(messages: Iterable[Message], images: ImageRule = _ANY_MODEL) -> int:
    return sum(estimate_message(message, images) for message in messages)


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
    total += PER_MESSAGE * len(request.messages) + _estimate_transcript(request.messages, image_rule(request.model))
    if request.output_schema is not None:
        total += len(msgspec.json.encode(request.output_schema)) // 4
    return total


def _estimate_transcript(messages: tuple[Message, ...], images: ImageRule) -> int:
    """Tokens of the parts of all messages. Of a long transcript those that are known from the last time are skipped."""
    if len(messages) < _TRANSCRIPT_MESSAGES:
        return sum(estimate_parts(message.parts, images) for message in messages)
    key = id(messages[0])
    count = total = 0
    known = _transcript_tokens.pop(key, None)
    # Two tuples of the same objects are compared without looking into them.
    if known is not None and known[1] == images and messages[: len(known[0])] == known[0]:
        count, total = len(known[0]), known[2]
    for message in messages[count:-1]:
        total += estimate_parts(message.parts, images)
    # The last one may be a note for this question alone.
    if total <= _TRANSCRIPT_TOKENS and not any(map(_has_file, messages[count:-1])):
        _transcript_tokens[key] = messages[:-1], images, total
        if len(_transcript_tokens) > _TRANSCRIPT_CACHE:
            _transcript_tokens.popitem(last=False)
    return total + estimate_parts(messages[-1].parts, images)


def _has_file(message: Message) -> bool:
    return any(
        isinstance(piece, Media)
        for part in message.parts
        for piece in (part.content if isinstance(part, ToolResult) else (part,))
    )
