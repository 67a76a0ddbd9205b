"""The inside of a fence around a Python function: imports it once, then answers calls until its input ends.

Runs as a process of its own, never in that of Foliot. Requests and responses are envelopes of the contract, each behind
its length, on what were standard input and output. Code that prints does so on standard error: it cannot be taken for a
response. Each response repeats the id of its request, which is not known before the request comes.
"""

from __future__ import annotations

import asyncio
import io
import os
import struct
import sys
from importlib import import_module
from typing import Any, BinaryIO, Final

import msgspec

from foliot.kernel.messages import Text
from foliot.tools.base import Caller, Invocation, ToolError
from foliot.tools.contract import (
    ToolRequest,
    ToolResponse,
    decode_request,
    encode_response,
    error_response,
    normalise_response,
)
from foliot.tools.function import FunctionTool, tool
from foliot.tools.pipeline.results import broke_off, classified, success_result

LENGTH: Final = struct.Struct(">I")
# Larger frames are not sent, and not read.
LARGEST: Final = 16 * 1024 * 1024
# The id of the first response, which says that the function was imported, or why not.
READY: Final = "ready"
# The path inside a response by which an error says of itself what the contract has no field for.
MARKS: Final = ("lost", "before_effect", "still_running")


class TooLarge(ToolError):
    """The function returned more than a response may carry. It has acted."""

    kind = "too_large"
    retryable = False
    lost = True


def main(path: str, name: str) -> None:
    """Serve the function at `path` (`module:name`) as the tool `name`."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), line_buffering=True)
    # The one that answers: what the function forks must not answer too.
    own = os.getpid()
    first = ToolRequest(request_id=READY)
    try:
        served, module = _served(path, name)
    except BaseException as error:
        _send(answers, _failed(first, error, name))
        return
    _send(answers, normalise_response(ToolResponse(status="ok", output={"module": module}), first))
    with asyncio.Runner() as runner:
        while (data := _received(requests)) is not None:
            answer = runner.run(_answer(served, decode_request(data)))
            if os.getpid() != own:
                os._exit(0)
            _send(answers, answer)


def _served(path: str, name: str) -> tuple[FunctionTool, str]:
    """Import the function. Returns it as a tool, and the module that it was written in."""
    module, _, attribute = path.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    if isinstance(found, FunctionTool):
        found = found.function
    return tool(name=name)(found), str(getattr(found, "__module__", None))


async def _answer(served: FunctionTool, request: ToolRequest) -> ToolResponse:
    name = served.definition.name
    call = Invocation(
        request.task_id,
        request.trace.span_id,
        name,
        request.input or {},
        request.idempotency_key,
        Caller(request.namespace, request.agent),
        attempt=request.attempt,
        deadline=request.deadline_ms / 1000 or None,
        trace_id=request.trace.trace_id,
    )
    try:
        value = await served.invoke(call)
    except BaseException as error:
        return _failed(request, error, name)
    try:
        content = success_result(call, value).content
        size = sum(len(part.text if isinstance(part, Text) else part.data or "") for part in content)
        if size > LARGEST // 2:
            raise TooLarge(f"the function returned {size:,} characters; {LARGEST // 2:,} are the most")
        return normalise_response(ToolResponse(status="ok", output={"content": msgspec.to_builtins(content)}), request)
    except Exception as error:
        known = classified(error, name)
        known.lost = True  # the function was done, and what came of it is not known
        return _failed(request, known, name)


def _failed(request: ToolRequest, error: BaseException, name: str) -> ToolResponse:
    known = classified(error, name) if isinstance(error, Exception) else broke_off(error)
    response = error_response(request, known)
    marks: dict[str, Any] = {mark: True for mark in MARKS if getattr(known, mark)}
    if known.retry_after is not None:
        marks["retry_after"] = known.retry_after
    return msgspec.structs.replace(response, output=marks)


def _received(requests: BinaryIO) -> bytes | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    return requests.read(size)


def _send(answers: BinaryIO, response: ToolResponse) -> None:
    data = encode_response(response)
    if len(data) > LARGEST:  # by escapes, or by the text of an error
        request = ToolRequest(request_id=response.request_id)
        data = encode_response(_failed(request, TooLarge(f"the response has {len(data):,} bytes"), ""))
    left = memoryview(LENGTH.pack(len(data)) + data)
    while left:
        left = left[answers.write(left) :]
