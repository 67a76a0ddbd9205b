"""The input of a response, as items: the conversation before it, the request, and decisions that it waited for.

Read from the journal of its run, like everything else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from foliot.errors import NotFound
from foliot.kernel.messages import Media, Message, Text, ToolCall, ToolResult
from foliot.kernel.run import events as e
from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import Caller
from foliot.server.openai.content import AUDIO
from foliot.server.openai.conversations import load_visible, no_response, parse_response
from foliot.server.openai.errors import BadRequest
from foliot.server.openai.responses import SERVER_LABEL

Item: TypeAlias = dict[str, Any]
Order: TypeAlias = Literal["asc", "desc"]
_FORMATS: Final = {kind: word for word, kind in AUDIO.items()}


async def list_input(runtime: Runtime, caller: Caller, id: str) -> list[Item]:
    """The items of a response's input, oldest first. Raises `NotFound`."""
    ref = parse_response(id)
    if ref.is_task:
        if not caller.sees(ref.namespace):
            raise no_response(id)
        try:
            told = (await runtime.inside.tasking.tasks.ref(ref.namespace, ref.name)).command.message
        except NotFound:
            raise no_response(id) from None
        return _numbered(ref.name, [_message("user", [_text_part(told)])])
    await load_visible(runtime, caller, ref.name)
    facts = [event for _, event in await runtime.inside.runs.facts(ref.name)]
    if ref.after:
        return _numbered(f"{ref.name}.{ref.after}", _decisions(facts[ref.after :]))
    created = facts[0]
    assert isinstance(created, e.RunCreated), "a journal begins so"
    said = (*await runtime.inside.runs.history(created), *created.input)
    return _numbered(ref.name, await _items(runtime, said))


def page_of(items: Sequence[Item], *, order: Order, limit: int, after: str | None) -> dict[str, Any]:
    """One page of items, as lists are. Raises `BadRequest` when `after` is none of them."""
    ordered = list(items if order == "asc" else reversed(items))
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise BadRequest(f"there is no item {after[:100]!r}", param="after")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(ordered) > limit,
    }


def _numbered(where: str, items: Sequence[Item]) -> list[Item]:
    return [{"id": f"in_{where}_{number}", **item} for number, item in enumerate(items)]


async def _items(runtime: Runtime, messages: Sequence[Message]) -> list[Item]:
    results = {part.call_id: part for message in messages for part in message.parts if isinstance(part, ToolResult)}
    items: list[Item] = []
    for message in messages:
        if message.role == "assistant":
            if message.text:
                part: dict[str, Any] = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
                items.append(_message("assistant", [part]))
            items += (_call(call, results.get(call.id)) for call in message.calls)
        elif content := [await _content(runtime, part) for part in message.parts if isinstance(part, Text | Media)]:
            items.append(_message("user" if message.role == "user" else "system", content))
    return items


def _message(role: str, content: list[dict[str, Any]]) -> Item:
    return {"type": "message", "role": role, "status": "completed", "content": content}


def _call(call: ToolCall, result: ToolResult | None) -> Item:
    error = result.error.message if result is not None and result.error is not None else None
    return {
        "type": "mcp_call",
        "server_label": SERVER_LABEL,
        "name": call.name,
        "arguments": call.arguments,
        "output": result.text if result is not None and error is None else None,
        "error": None if error is None else {"type": "mcp_tool_execution_error", "content": error},
    }


def _decisions(facts: Sequence[e.Event]) -> list[Item]:
    """Returns the decisions of people before the run continued with its next step."""
    items: list[Item] = []
    for fact in facts:
        match fact:
            case e.ApprovalDecided():
                item: Item = {
                    "type": "mcp_approval_response",
                    "approval_request_id": fact.approval_id or fact.call_id,
                    "approve": fact.decision in ("approve", "edit"),
                    "reason": fact.reason or None,
                }
                items.append(item)
            case e.QuestionAnswered(answer=str(answer)):
                items.append(_message("user", [_text_part(answer)]))
            case e.StepStarted():
                break
            case _:
                pass
    return items


async def _content(runtime: Runtime, part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return _text_part(part.text)
    data = part.data
    if data is None and part.blob is not None:
        data = base64.b64encode(await runtime.inside.runs.journal.get_blob(part.blob)).decode()
    address = part.url or f"data:{part.media_type};base64,{data}"
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": address, "detail": "auto"}
    if part.media_type in _FORMATS and data is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS[part.media_type]}}
    return {"type": "input_file", "filename": part.name, "file_url" if part.url else "file_data": address}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}
