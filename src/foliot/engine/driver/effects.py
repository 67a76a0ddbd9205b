"""Acting on the world, and the one fact that comes of it. These never raise; cancelling them is the only way out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec.structs import replace

from foliot.engine.base import Clock, Models
from foliot.engine.definition.freeze import DEFERRED
from foliot.kernel.errors import Unencodable
from foliot.kernel.messages import (
    Delta,
    RestartDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolFailure,
    ToolResult,
    Usage,
)
from foliot.kernel.run.actions import AskModel, CallIntent
from foliot.kernel.run.budget import Spent
from foliot.kernel.run.events import Event, ModelFailed, ModelResponded, ToolFinished, ToolUnknown, UnknownReason
from foliot.kernel.run.events import ModelDelayed as Delayed
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import Call
from foliot.models.base import ModelDelayed, ModelError, OnDelta
from foliot.models.routing import usage as spending
from foliot.models.routing.usage import AnswerUsage
from foliot.tools.base import Admitted, MayAct, OnOutput
from foliot.tools.contract import VERSION
from foliot.tools.pipeline.parts import count
from foliot.tools.pipeline.results import MAY_HAVE_ACTED
from foliot.tools.search import offered
from foliot.tools.workspaces import CallFiles, call_files

log = logging.getLogger(__name__)

# Calls that one answer may ask for. Models ask for a few dozen at most; each costs events, turns and results, and an
# answer with thousands of them would keep the event loop from everybody else.
MAX_CALLS: Final = 256


class ShownText:
    """Passes the pieces of an answer on, and keeps the text that people have seen of it."""

    __slots__ = ("_on_delta", "_pieces")

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._pieces: list[str] = []

    def __call__(self, delta: Delta) -> None:
        if type(delta) is TextDelta:
            self._pieces.append(delta.text)
        elif type(delta) is RestartDelta:
            self._pieces.clear()  # whoever shows it begins anew
        self._on_delta(delta)

    @property
    def text(self) -> str:
        return "".join(self._pieces)


async def ask_model(
    models: Models,
    spec: RunSpec,
    action: AskModel,
    *,
    on_delta: OnDelta | None,
    clock: Clock,
    account: AnswerUsage | None = None,
    files: CallFiles | None = None,
) -> ModelResponded | ModelFailed | Delayed:
    """The answer, or that there was none. What attempts used that gave no answer is on the account, and in the fact.

    `files` is what a program that stands in for the model has to do with the files of its run.
    """
    started = clock()
    call_files.set(files)
    account = account or spending.count()
    limit = None if action.deadline is None else asyncio.timeout(max(0.0, action.deadline - started))
    request = action.request
    if deferred := spec.extra.get(DEFERRED):
        request = offered(request, frozenset(deferred))
    try:
        if limit is None:
            response = await models.ask(spec, request, on_delta=on_delta)
        else:
            async with limit:
                response = await models.ask(spec, request, on_delta=on_delta)
    except ModelDelayed as delayed:
        failed = "" if delayed.after is None else delayed.after.kind
        until = clock() + delayed.wait
        return Delayed(action.step, until, delayed.message, delayed.endpoint, account.usage, failed)
    except ModelError as error:
        return not_answered(action.step, error, account)
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if limit is not None and limit.expired():
            message = "the time limit of the run passed before the model had answered"
            return ModelFailed(action.step, "timeout", message, usage=account.usage)
        if _was_told_to_stop(error):
            raise
        # A gateway promises to raise nothing else. One that does must not leave a run without an owner.
        log.exception("the model gateway for run of agent %s broke", spec.agent)
        return ModelFailed(action.step, "other", f"the model gateway broke: {_named(error)}", usage=account.usage)
    parts = response.message.parts
    if len(parts) > MAX_CALLS and (calls := sum(isinstance(part, ToolCall) for part in parts)) > MAX_CALLS:
        account.add(response.usage)
        message = f"the model asked for {calls:,} tool calls in one answer, and at most {MAX_CALLS} are taken"
        return ModelFailed(
            action.step, "garbage", message, retryable=True, provider=response.provider, usage=account.usage
        )
    left = None if files is None else files.kept
    return ModelResponded(action.step, response, clock() - started, account.usage, left)


def not_answered(step: int, error: ModelError, account: AnswerUsage | None = None) -> ModelFailed:
    return ModelFailed(
        step=step,
        kind=error.kind,
        # What can be done about it is part of the story: who reads it later has nothing else.
        message=f"{error.message} ({error.hint})" if error.hint else error.message,
        retryable=error.retryable,
        retry_after=error.retry_after,
        status=error.status,
        provider=error.provider,
        usage=Usage() if account is None else account.usage,
    )


async def call_tool(
    intent: CallIntent,
    call: Admitted,
    *,
    on_output: OnOutput | None,
    deadline: float | None,
    clock: Clock,
    ends_run: bool = False,
    may_act: MayAct | None = None,
    here: bool = False,
    files: CallFiles | None = None,
) -> ToolFinished | ToolUnknown:
    """Calls a tool; returns its result, or `ToolUnknown` if a call that must not happen twice may have acted.

    `ends_run`: its result is the answer of the run, as the tool or the agent declares; a failure never is. `here`: the
    tool is a function of this process, so it can be seen whether it has ended. `files` is what it has to do with the
    files of its run: what it left of them is recorded with the result.
    """
    started = clock()
    delegated = count()
    call_files.set(files)
    limit = None if deadline is None else asyncio.timeout(max(0.0, deadline - started))
    try:
        if limit is None:
            result = await call.run(on_output=on_output, may_act=may_act)
        else:
            async with limit:
                result = await call.run(on_output=on_output, may_act=may_act)
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if limit is not None and limit.expired():
            result = _lost(intent, _OUT_OF_TIME, "timeout")
        elif _was_told_to_stop(error):
            if files is not None:
                files.drop()
            raise
        else:
            # A tool's own task was cancelled inside it, or the pipeline broke: still one result, or the run would hang.
            log.warning("the call %s of %s broke: %r", intent.call_id, intent.name, error)
            failure = ToolFailure("execution_failed", "tool_backend_failure", f"the call broke: {_named(error)}")
            result = _lost(intent, failure, "broken")
    spent: dict[str, Any] = _NOTHING_SPENT
    if delegated.runs:
        spent = {"usage": delegated.usage, "runs": dict(delegated.runs)}
    if files is not None and (files.kept is not None or files.note):
        spent = {**spent, "workspace": files.kept}
        if note := files.note:
            result = replace(result, content=(*result.content, Text(note)))
    error = result.error
    if error is not None and error.unknown and intent.rule.effect == "once":
        reason = cast("UnknownReason", error.unknown)
        now = clock()
        over = here and not error.details.get("still_running") and not error.details.get("forced")
        return ToolUnknown(intent.call_id, reason, error.message, now if over else None, now - started, **spent)
    return ToolFinished(result, clock() - started, ends_run=ends_run and error is None, contract=VERSION, **spent)


def _lost(intent: CallIntent, failure: ToolFailure, reason: UnknownReason) -> ToolResult:
    """The result of a call that was under way when it was given up."""
    if intent.rule.effect != "read":
        failure = replace(failure, message=f"{failure.message}; {MAY_HAVE_ACTED}", unknown=reason, key=intent.key)
    return failed(intent.call_id, intent.name, failure)


def _was_told_to_stop(error: BaseException) -> bool:
    """Whether this task itself was cancelled, and not something that it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its text may be made by a tool
        return type(error).__name__


def given_up(call: Call, *, interrupted: bool = False) -> ToolUnknown:
    """Returns the record of a call that is told to stop: its run ends, or was interrupted. Its outcome is unknown."""
    if interrupted:
        message = f"{call.name} was in progress when someone interrupted the run; {MAY_HAVE_ACTED}"
        return ToolUnknown(call.id, "interrupted", message)
    return ToolUnknown(call.id, "cancelled", f"{call.name} was under way when the run ended; {MAY_HAVE_ACTED}")


def left_behind(call: Call, left_by: UnknownReason, over: float | None = None) -> ToolUnknown:
    """Say what is known of a call that an earlier attempt had under way: `cancelled` is that it let the run go itself.

    `over` is the time of a call that ends with its process. That process has certainly ended if it died; one that
    lost the run may wake up, and one that let it go may have a function that did not stop.
    """
    how = _LEFT_BEHIND.get(left_by)
    until = over if left_by == "process_died" else None
    return ToolUnknown(call.id, left_by, "" if how is None else f"{call.name} was under way when {how}", until)


_LEFT_BEHIND: Final[Mapping[UnknownReason, str]] = {
    "cancelled": "the process that made the call let the run go: it was told to end, or could not go on",
    "lease_lost": "its worker lost the run: it did not reach the store for longer than its lease, or stood still",
}


def in_place_of(event: Event, error: Unencodable, call: Call | None = None) -> Event:
    """Returns the event to record instead of one that JSON cannot carry (half of a surrogate pair, for example).

    `call` is the one that the fact is about: one that must not happen twice has happened, whatever it returned.
    """
    match event:
        case ToolFinished(result=result) if call is not None and call.effect == "once" and call.phase == "running":
            message = f"{call.name} has ended, and its result cannot be stored: {error}"
            return ToolUnknown(call.id, "broken", message, workspace=event.workspace)
        case ToolUnknown():
            return replace(event, message=event.message.encode("utf-8", "replace").decode())
        case ToolFinished(result=result):
            failure = ToolFailure("execution_failed", "tool_backend_failure", f"the result cannot be stored: {error}")
            return ToolFinished(failed(result.call_id, result.name, failure), event.seconds, workspace=event.workspace)
        case ModelResponded():
            used = Spent()
            used.add(event.response.usage)
            used.add(event.wasted)
            message = f"the answer cannot be stored: {error}"
            return ModelFailed(event.step, "garbage", message, retryable=True, usage=used.usage())
        case ModelFailed():
            return replace(event, message=event.message.encode("utf-8", "replace").decode())
        case _:
            raise error


def failed(call_id: str, name: str, failure: ToolFailure) -> ToolResult:
    return ToolResult(call_id, name, (Text(f"Error ({failure.code}): {failure.message}"),), failure)


_OUT_OF_TIME = ToolFailure(
    "timeout",
    "tool_execution_timeout",
    "the time limit of the run passed before the tool had finished",
    kind="timeout",
    details={"timeout_scope": "run", "forced": False},
)
_NOTHING_SPENT: Final[dict[str, Any]] = {}
