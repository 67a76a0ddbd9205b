"""A run that waits for a person, in front of an MCP client: a form for its user, and what comes of it.

The current revision of the protocol returns the form as the result of the call, and the client calls again with what
its user said. Earlier ones ask on the connection while the call goes on. Where neither can be done, or the caller may
not decide, the result says what is waited for and how to decide it elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

import mcp_types as types
import msgspec
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from foliot.common.text import one_line, visible, visible_json
from foliot.errors import Conflict, FoliotError
from foliot.runtime.runtime import Runtime
from foliot.server.mcp.tools import Context, McpCaller
from foliot.server.runs.waits import waiting_data, waiting_text
from foliot.server.streams.pieces import Asked, Rested
from foliot.store.journal.base import TASK_LABEL

WAITING_META: Final = "foliot.dev/waiting"
RUN_META: Final = "foliot.dev/run"


class QuestionPlace(Struct, frozen=True):
    """The state that a client brings back. It is trusted only as far as the caller could go by itself."""

    id: str
    after: int = 0
    asked: tuple[str, ...] = ()


def encode_place(place: QuestionPlace) -> str:
    return msgspec.json.encode(place).decode()


def decode_place(text: str) -> QuestionPlace:
    """Raises `Conflict` for what was not given out here."""
    try:
        return msgspec.json.decode(text, type=QuestionPlace)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Conflict("this request state was not given out here", hint="begin the call anew") from None


def answerable(who: McpCaller, rested: Rested) -> list[Asked]:
    """Returns the questions that the user of this client can be asked."""
    approves = who.caller.may("approver", who.namespace)
    return [asked for asked in rested.asked if asked.kind == "question" or (asked.kind == "approval" and approves)]


def takes_forms(ctx: Context) -> bool:
    """Whether the client can show its user a form."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def is_modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def form_of(asked: Asked) -> types.ElicitRequestFormParams:
    """The form for one thing that is asked."""
    if asked.kind == "approval":
        properties: dict[str, Any] = {
            "decision": {"type": "string", "enum": ["approve", "deny"], "title": f"Call {one_line(asked.tool)}?"},
            "comment": {"type": "string", "title": "Why (optional)"},
        }
        message = f"May {one_line(asked.tool)} be called with {visible_json(asked.arguments)}? ({one_line(asked.text)})"
        return types.ElicitRequestFormParams(
            message=message,
            requested_schema={"type": "object", "properties": properties, "required": ["decision"]},
        )
    answer: dict[str, Any] = {"type": "string", "title": "Answer"}
    if asked.choices:
        answer["enum"] = list(asked.choices)
    return types.ElicitRequestFormParams(
        message=visible(asked.text),
        requested_schema={"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
    )


def input_required(asked: list[Asked], place: QuestionPlace) -> types.InputRequiredResult:
    """The forms, as the result of a call."""
    return types.InputRequiredResult(
        input_requests={each.id: types.ElicitRequest(params=form_of(each)) for each in asked},
        request_state=encode_place(place),
    )


async def answer(runtime: Runtime, who: McpCaller, asked: Asked, said: types.ElicitResult) -> bool:
    """Give a run what the user said; False when that was nothing. Raises `FoliotError`."""
    content = said.content or {}
    if said.action == "cancel" or (said.action == "decline" and asked.kind != "approval"):
        return False
    if asked.kind == "approval":
        who.caller.require("approver", who.namespace)
        approve = said.action == "accept" and content.get("decision") == "approve"
        await runtime.inside.approvals.decide(
            asked.id,
            "approve" if approve else "deny",
            by=who.caller.name,
            namespace=who.namespace,
            comment=str(content.get("comment") or ""),
            digest=asked.digest,  # of what the form shows
        )
    else:
        text = str(content.get("answer") or "")
        await runtime.inside.questions.answer(asked.run_id, asked.call_id, text, by=who.caller.name)
    info = await runtime.inside.runs.journal.get(asked.run_id)
    if TASK_LABEL in info.labels:
        await runtime.inside.tasking.ring(info)
    return True


def waiting_result(rested: Rested, where: str) -> types.CallToolResult:
    """Builds the result for a client that cannot be asked. It is an error, because the work is not done."""
    return types.CallToolResult(
        content=[types.TextContent(text=waiting_text(rested))],
        is_error=True,
        _meta={RUN_META: where, WAITING_META: waiting_data(rested)},
    )


def failed_result(error: FoliotError, where: str = "") -> types.CallToolResult:
    """An error as the result of a call, for the model behind the client to read."""
    text = error.message if not error.hint else f"{error.message} ({error.hint})"
    meta = {RUN_META: where} if where else None
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True, _meta=meta)
