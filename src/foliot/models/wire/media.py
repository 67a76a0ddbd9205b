"""Images and files on the wire: the few shapes that all formats are made of."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from foliot.kernel.messages import Media, Message, Text, ToolResult
from foliot.models.wire.base import Unsendable


def is_image(media: Media) -> bool:
    return media.media_type.startswith("image/")


def is_text(media: Media) -> bool:
    return media.media_type.startswith("text/") or media.media_type in ("application/json", "application/xml")


def needs_bytes(media: Media, what: str) -> str:
    """The base64 data, or `Unsendable` saying that this provider takes no address for such a file."""
    if media.data is None:
        raise Unsendable(f"{what} takes the bytes of a {media.media_type} file, not an address")
    return media.data


def address(media: Media) -> str:
    """A URL that carries or names the media. Blobs must have been resolved by the caller."""
    if media.url is not None:
        return media.url
    if media.data is None:
        raise Unsendable(f"the {media.media_type} part has neither data nor an address: its blob was not resolved")
    return f"data:{media.media_type};base64,{media.data}"


def decoded_text(media: Media) -> str:
    """The text of a text file given as data."""
    try:
        return base64.b64decode(media.data or "", validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        raise Unsendable(f"the data of the {media.media_type} part is not base64") from None


def file_name(media: Media) -> str:
    return media.name or f"file{mimetypes.guess_extension(media.media_type) or ''}"


def from_address(url: str, media_type: str = "image/png") -> Media:
    """Media that a model returned as a URL, which is often a data URL."""
    if url.startswith("data:") and ";base64," in url:
        head, data = url[5:].split(";base64,", 1)
        return Media(head.split(";")[0] or media_type, data=data)
    return Media(media_type, url=url)


def readable(messages: Sequence[Message], reads: Callable[[Media], bool]) -> tuple[tuple[Message, ...], list[str]]:
    """Returns messages in which files that a model does not read are named in words, and the media types of those.

    A conversation may hold files that only an earlier model could read: they must not keep this one from answering.
    """
    unread: dict[str, None] = {}

    def part_of(part: Any) -> Any:
        if isinstance(part, Media) and not reads(part):
            unread[part.media_type] = None
            return Text(f"[the file {part.name or part.media_type}: this model does not read {part.media_type}]")
        if isinstance(part, ToolResult) and any(isinstance(each, Media) for each in part.content):
            return replace(part, content=tuple(map(part_of, part.content)))
        return part

    found: list[Message] = []
    for message in messages:
        if any(isinstance(part, Media | ToolResult) for part in message.parts):
            parts = tuple(map(part_of, message.parts))
            message = replace(message, parts=parts) if parts != message.parts else message
        found.append(message)
    return tuple(found), list(unread)


EMPTY: Final = "(empty result)"
"""What a model is told of a tool that gave nothing: some refuse an empty message, others take it for a fault."""


def result_texts(result: ToolResult) -> list[str]:
    """The blocks of a result for a format whose tool messages hold text only; never none of them.

    A text file is its text. Where another file stood stands its name: it follows in another place (`result_files`), and
    the order must not be lost.
    """
    given = [
        part.text if isinstance(part, Text) else decoded_text(part) if _is_said(part) else placeholder(part)
        for part in result.content
    ]
    texts = [text for text in given if text.strip()]
    return texts or [result.error.message or result.error.code if result.error is not None else EMPTY]


def result_files(result: ToolResult) -> list[Media]:
    """Returns the files of a result that are not in `result_texts`, in order."""
    return [part for part in result.content if isinstance(part, Media) and not _is_said(part)]


def _is_said(media: Media) -> bool:
    return media.data is not None and is_text(media)


def placeholder(media: Media) -> str:
    """Returns the text that stands in a history for media which the provider does not accept from an assistant."""
    return f"[{media.name or media.media_type}]"
