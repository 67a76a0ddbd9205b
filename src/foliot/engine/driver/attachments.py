"""Files that messages name by a digest: their content is put into a question right before a model is asked.

A transcript holds the digest, so that a picture is stored once however many questions it is part of. A digest alone
opens nothing: whoever knows which files belong to the conversation brings the content (`FetchesFiles`). A file that
is not brought is named in words, so a question is never refused for it.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from foliot.common.threads import unhurried
from foliot.kernel.messages import Media, Message, ModelRequest, Part, Text

# Returns the content of those of these digests that belong to the conversation of a run.
FetchesFiles: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]


def named_files(messages: Sequence[Message]) -> Iterator[str]:
    """Yields the digests that messages name files by."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, Media) and part.blob is not None:
                yield part.blob


async def with_files(request: ModelRequest, fetch: FetchesFiles | None) -> ModelRequest:
    """Returns the request with the content of the files that it names. Raises what `fetch` raises."""
    wanted = list(dict.fromkeys(named_files(request.messages)))
    if not wanted:
        return request
    found: Mapping[str, bytes] = {} if fetch is None else await fetch(wanted)
    size = sum(map(len, found.values()))
    texts = await unhurried(size, _encoded, found)
    return replace(request, messages=tuple(_with_files(message, texts) for message in request.messages))


def _encoded(content: Mapping[str, bytes]) -> dict[str, str]:
    return {digest: base64.b64encode(data).decode() for digest, data in content.items()}


def _with_files(message: Message, texts: Mapping[str, str]) -> Message:
    if not any(isinstance(part, Media) and part.blob is not None for part in message.parts):
        return message
    return replace(message, parts=tuple(_part(part, texts) for part in message.parts))


def _part(part: Part, texts: Mapping[str, str]) -> Part:
    if not isinstance(part, Media) or part.blob is None:
        return part
    if (data := texts.get(part.blob)) is not None:
        return Media(part.media_type, data=data, name=part.name)
    return Text(f"[the file {part.name or part.media_type} cannot be shown: it is not kept any more]")
