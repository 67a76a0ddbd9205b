"""From what a backend returned or raised to the one result the model sees."""

from __future__ import annotations

import msgspec

from foliot.kernel.events import UnknownReason
from foliot.kernel.feedback import NOT_AGAIN
from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult
from foliot.tools.base import Effect, Invocation, ToolError
from foliot.tools.stages.classify import classified

# A tool chooses the text of its errors; a model needs the beginning of it.
LONGEST_MESSAGE = 8_000
MAY_HAVE_ACTED = "it may have taken effect"
ACTED = "it has taken effect all the same"
SAME_REQUEST = "The same call again is the same request to the tool: it goes by the same idempotency key."

_encode = msgspec.json.Encoder(enc_hook=lambda value: _plain(value)).encode


def success_result(call: Invocation, value: object) -> ToolResult:
    """Text stays text, parts stay parts; every other value becomes JSON.

    Raises `ToolError` for a value that cannot: the tool has acted, and whoever asked does not learn what came of it.
    """
    match value:
        case str():
            content: tuple[Text | Media, ...] = (Text(value),)
        case None:
            content = (Text("null"),)
        case Text() | Media():
            content = (value,)
        case tuple() | list() if value and all(isinstance(part, Text | Media) for part in value):  # pyright: ignore[reportUnknownVariableType] - narrowed by the guard
            content = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - see above
        case _:
            try:
                content = (Text(_encode(value).decode()),)
            except (TypeError, ValueError) as error:
                what = type(value).__name__
                raise ToolError(f"the tool returned {what}, which is not JSON: {error}", retryable=False) from error
    return ToolResult(call.call_id, call.tool, content)


def failure_result(
    call: Invocation, error: Exception, unknown: UnknownReason | None = None, effect: Effect = "once"
) -> ToolResult:
    """The error as data. The text names the cause, so that the model can do better the next time.

    `unknown` says why nobody knows whether the call has acted; it is of no matter for a tool that only reads.
    """
    known = classified(error, call.tool)
    message = known.message if len(known.message) <= LONGEST_MESSAGE else f"{known.message[:LONGEST_MESSAGE]} […]"
    if unknown is None or effect == "read":
        failure = ToolFailure(
            known.code,
            known.reason,
            message,
            known.retryable,
            known.kind,
            known.details,
            before_effect=known.before_effect,
        )
        return ToolResult(call.call_id, call.tool, (Text(f"Error ({failure.code}): {failure.message}"),), failure)
    message = f"{message}; {ACTED if unknown == 'broken' and not known.lost else MAY_HAVE_ACTED}"
    failure = ToolFailure(
        known.code, known.reason, message, False, known.kind, known.details, unknown, call.idempotency_key
    )
    advice = SAME_REQUEST if effect == "idempotent" else NOT_AGAIN[0].upper() + NOT_AGAIN[1:]
    return ToolResult(call.call_id, call.tool, (Text(f"Error ({failure.code}): {message}. {advice}"),), failure)


def _plain(value: object) -> object:
    """What people return from functions besides JSON: pydantic models, paths, and whatever else pydantic can write."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if hasattr(value, "__next__"):  # it may never end
        raise TypeError("return a list of what it gives")
    from pydantic_core import to_jsonable_python  # here, because almost nobody pays for it

    return to_jsonable_python(value)
