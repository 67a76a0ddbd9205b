"""Speech to text as OpenAI has it: a form with a file. Groq, Mistral, vLLM and others take the same one.

    file, model, language, prompt  ->  {text, usage}, with `duration` and `language` where they are asked for or given

What was used is counted in tokens (gpt-4o-transcribe), in seconds (whisper) or in both (Mistral).
models/gateways/http.py moves the bytes. Raises `Unsendable` for bytes that are no audio of a kind that providers take,
`WireError` for an answer without a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from foliot.kernel.messages import Usage
from foliot.models.wire.base import ProviderFault, Unsendable, WireError

PATH: Final = "/audio/transcriptions"
LARGEST: Final = 25 * 1024 * 1024
"""How many bytes OpenAI takes, and whoever does not say otherwise."""
WORDS: Final = "Write down what is said in this recording, word for word, in its own language. Answer with that alone."
"""How a model that hears is asked, where there is no form for it."""
_ENDINGS: Final[Mapping[str, str]] = {
    "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3",
    "audio/mp4": "m4a", "audio/m4a": "m4a", "audio/x-m4a": "m4a", "video/mp4": "mp4", "audio/ogg": "ogg",
    "audio/opus": "ogg", "audio/flac": "flac", "audio/x-flac": "flac", "audio/webm": "webm", "video/webm": "webm",
}  # fmt: skip


class FoundTranscript(NamedTuple):
    """The content of one answer. `usage` has no tokens where the provider counts seconds, or nothing."""

    text: str
    usage: Usage
    audio_tokens: int
    seconds: float
    language: str


class _Details(msgspec.Struct):
    audio_tokens: int | None = None


class _Counted(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None
    prompt_audio_seconds: float | None = None
    input_token_details: _Details | None = None
    cost: float | None = None


class _Answer(msgspec.Struct):
    text: str | None = None
    usage: _Counted | None = None
    duration: float | str | None = None
    language: str | None = None


def media_type_of(audio: bytes, said: str) -> str:
    """The kind of a recording: as it is said to be, or as its first bytes have it."""
    found = said.partition(";")[0].strip().lower() or _looks_like(audio[:16])
    if found not in _ENDINGS:
        what = f"{found!r} is" if found else "these bytes are"
        known = ", ".join(sorted(set(_ENDINGS)))
        raise Unsendable(f"{what} no recording of a kind that is transcribed ({known}); say which by media_type")
    return found


def _looks_like(head: bytes) -> str:
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        return "audio/wav"
    if head.startswith(b"ID3") or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0):
        return "audio/mpeg"
    if head[4:8] == b"ftyp":
        return "audio/mp4"
    begins = {b"OggS": "audio/ogg", b"fLaC": "audio/flac", b"\x1aE\xdf\xa3": "audio/webm"}
    return begins.get(head[:4], "")


def form(fields: Mapping[str, str], audio: bytes, media_type: str, boundary: str) -> tuple[bytes, str]:
    """The body of a request, and its content type."""
    parts: list[bytes] = []
    for name, value in fields.items():
        if value:
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
            parts += [head.encode(), value.encode(), b"\r\n"]
    # The ending of the name is what most servers know the kind by.
    file = f'Content-Disposition: form-data; name="file"; filename="audio.{_ENDINGS[media_type]}"'
    head = f"--{boundary}\r\n{file}\r\nContent-Type: {media_type}\r\n\r\n"
    parts += [head.encode(), audio, f"\r\n--{boundary}--\r\n".encode()]
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def parse(raw: bytes) -> FoundTranscript:
    answer = msgspec.json.decode(raw, type=_Answer)
    if answer.text is None:
        payload: Any = msgspec.json.decode(raw)
        if isinstance(payload, dict) and ("error" in payload or "message" in payload):
            raise ProviderFault(payload)
        raise WireError("its answer holds no text")
    counted = answer.usage or _Counted()
    usage = Usage(
        counted.input_tokens or counted.prompt_tokens or 0,
        counted.output_tokens or counted.completion_tokens or 0,
        cost_usd=counted.cost,
    )
    details = counted.input_token_details or _Details()
    seconds = counted.seconds or counted.prompt_audio_seconds or _seconds(answer.duration)
    return FoundTranscript(answer.text, usage, details.audio_tokens or 0, max(0.0, seconds), answer.language or "")


def _seconds(duration: float | str | None) -> float:
    """The length of the recording; some servers write the number as text."""
    try:
        return float(duration or 0)
    except ValueError:
        return 0.0
