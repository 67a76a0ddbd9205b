"""From the body of an answer to the value of a call."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from foliot.kernel.messages import Media
from foliot.threads import unhurried
from foliot.tools.backends.stream import is_stream, read_stream
from foliot.tools.base import OnOutput, ToolAnswerLost
from foliot.tools.contract import check_request_id, decode_response, is_envelope, result_of
from foliot.tools.masking import Masker
from foliot.tools.outbound.client import Answer, decoded

_MEDIA: Final = ("image/", "audio/", "video/", "font/", "model/")
_BINARY: Final = frozenset({"application/pdf", "application/zip", "application/gzip", "application/x-tar"})
_UNTYPED: Final = frozenset({"application/octet-stream", "binary/octet-stream"})
_MARK: Final = b'"tool_contract_version"'


async def plain_value(answer: Answer, masker: Masker, on_output: OnOutput | None) -> Any:
    """What a tool of any kind answered: text as it is, files as parts, and an envelope only if it says it is one."""
    if is_stream(answer.media_type):
        return await read_stream(answer, masker=masker, on_output=on_output, request_id=None, contract=False)
    body = await answer.read()
    return await unhurried(len(body), _plain, answer.media_type, answer.charset, body, masker)


def _plain(media_type: str, charset: str | None, body: bytes, masker: Masker) -> Any:
    if _is_file(media_type, body):
        return _media(media_type, body, masker)
    if _MARK in body and is_envelope(_json(body)):
        return masker.mask_value(result_of(decode_response(body)))
    return masker.mask(decoded(body, charset).strip())


async def contract_value(answer: Answer, masker: Masker, on_output: OnOutput | None, request_id: str) -> Any:
    """What a tool that speaks the contract answered. Raises `ToolError`, retryable, when it is no envelope."""
    if is_stream(answer.media_type):
        return await read_stream(answer, masker=masker, on_output=on_output, request_id=request_id, contract=True)
    body = await answer.read()
    return await unhurried(len(body), _contract, body, masker, request_id)


def _contract(body: bytes, masker: Masker, request_id: str) -> Any:
    response = decode_response(body)
    check_request_id(response, request_id)
    return masker.mask_value(result_of(response))


def _is_file(media_type: str, body: bytes) -> bool:
    if media_type == "image/svg+xml":
        return False
    if media_type.startswith(_MEDIA) or media_type in _BINARY:
        return True
    if media_type not in _UNTYPED:
        return False
    try:
        return "\0" in body.decode()
    except UnicodeDecodeError:
        return True


def _media(media_type: str, body: bytes, masker: Masker) -> Media:
    data = base64.b64encode(body).decode()
    # A file cannot be masked without being broken.
    if masker.mask(data) != data or masker.mask(body.decode("latin-1")) != body.decode("latin-1"):
        raise ToolAnswerLost("the tool answered with a file that holds a secret; it was not used", retryable=False)
    return Media(media_type, data=data)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
