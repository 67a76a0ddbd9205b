"""From an order to work under way: whom it is for, what was said before, and whether it was asked for already."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from foliot.common.threads import unhurried
from foliot.engine.approval.questions import questions_of
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, NotFound
from foliot.kernel.messages import Media, Message, ModelRequest, ToolResult
from foliot.kernel.run import events as e
from foliot.kernel.run.state import State
from foliot.kernel.tokens import estimate_request
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.runtime import Runtime
from foliot.server.audit import ActRecord
from foliot.server.auth.identity import Caller
from foliot.server.openai.content import handed_out, parse_call
from foliot.server.openai.conversations import (
    CallerSession,
    history_of,
    last_turn,
    load_visible,
    no_response,
    parse_response,
    run_response,
    task_history,
    task_response,
)
from foliot.server.openai.errors import BadRequest, no_such_model
from foliot.server.openai.requests import OpenAIRequest, adjusted, check_target
from foliot.server.runs.background import (
    CALLER_LABEL,
    REQUEST_LABEL,
    VIA_LABEL,
    ClientTurn,
    RunEngagement,
    StartedTurn,
    derived_id,
    engage,
)
from foliot.server.runs.targets import WorkTarget, find_target
from foliot.store.journal.base import TASK_LABEL

METADATA_LABEL: Final = "openai.com/metadata."
MODEL_LABEL: Final = "openai.com/model"
PREVIOUS_LABEL: Final = "openai.com/previous_response_id"
END_USER_LABEL: Final = "openai.com/user"
SESSION_LABEL: Final = "foliot.dev/session"


@dataclass(frozen=True, slots=True)
class RequestCaller:
    """The caller of a request: `key` makes a repeat harmless; `digest` is that of the request."""

    caller: Caller
    namespace: str
    key: str = ""
    session: str = ""
    digest: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class StartedWork:
    """Work under way. `response` is the id that it has for clients; `where` the run or task.

    Its first `after` events were told to the client before.
    """

    engagement: StartedTurn
    response: str
    where: str
    created: float
    after: int = 0


async def begin(
    runtime: Runtime, drives: BackgroundRuns, order: OpenAIRequest, asker: RequestCaller, *, param: str
) -> StartedWork:
    """Have the order done. Raises `BadRequest`, `NotFound`, `Denied`, `Conflict`, and what an agent cannot start by."""
    target, session = await _target_of(runtime, order, asker)
    if order.conversation.results and target.kind == "agent":
        gone_on = await _called(runtime, drives, asker, order, target, param)
        if gone_on is not None:
            return gone_on
    previous, turn = await _previous(runtime, asker, order, target, session)
    if previous and not parse_response(previous).is_task:
        gone_on = await _answered(runtime, drives, asker, order, previous, target)
        if gone_on is not None:
            return gone_on
    before, said = await unhurried(order.conversation.size, order.conversation.split, param)
    after = await _followed(runtime, asker, previous, target) if not before else ""
    history = () if after else (*await _history(runtime, asker.caller, previous, target), *before)
    id = session.turn(turn) if session is not None else _id(runtime, asker, target)
    await _check_same(runtime, target, id, asker)
    labels = _labels(order, asker, previous)
    act = _act(runtime, asker, target, id)
    ordered = replace(_turn(order, asker, target, id, said, history, labels), after=after, act=act)
    engagement = await engage(runtime, drives, ordered)
    act.tell()
    await _check_same(runtime, target, engagement.id, asker)  # of two at once, one has begun it
    is_task = target.kind == "system"
    response = task_response(target.namespace, engagement.id) if is_task else run_response(engagement.id)
    return StartedWork(engagement, response, engagement.id, time.time())


async def count_input(runtime: Runtime, order: OpenAIRequest, asker: RequestCaller, *, param: str) -> int:
    """About how many tokens the first question of this order would have. Nothing is begun. Raises as `begin`."""
    target, session = await _target_of(runtime, order, asker)
    previous, _ = await _previous(runtime, asker, order, target, session)
    before, said = await unhurried(order.conversation.size, order.conversation.split, param)
    messages = (*await _history(runtime, asker.caller, previous, target), *before, *said)
    if target.kind == "system":
        return estimate_request(ModelRequest("", messages))
    spec = adjusted(order, await runtime.inside.spec_of(f"{target.namespace}/{target.name}"))
    tools = tuple(rule.spec for rule in spec.tools)
    request = ModelRequest(spec.model, messages, spec.system, tools, spec.output_schema, spec.settings, spec.agent)
    return (await runtime.inside.models.question(spec, request)).input_tokens


async def _target_of(
    runtime: Runtime, order: OpenAIRequest, asker: RequestCaller
) -> tuple[WorkTarget, CallerSession | None]:
    """The agent or system of an order, and the session that it names. Raises `BadRequest`, `NotFound`, `Denied`."""
    try:
        target = await find_target(runtime.inside.resources, asker.caller, order.model, asker.namespace)
    except NotFound:
        raise no_such_model(order.model) from None
    asker.caller.require("operator", target.namespace)
    check_target(order, target)
    named = order.session or asker.session
    return target, CallerSession(asker.caller.name, target, named) if named else None


def _act(runtime: Runtime, asker: RequestCaller, target: WorkTarget, id: str) -> ActRecord:
    kind = str(target.document["kind"])
    where = target.namespace, target.name
    return ActRecord(runtime, asker.caller, "started", kind, *where, request=asker.request, run_id=id)


def _turn(
    order: OpenAIRequest,
    asker: RequestCaller,
    target: WorkTarget,
    id: str,
    said: tuple[Message, ...],
    history: tuple[Message, ...],
    labels: dict[str, str],
) -> ClientTurn:
    return ClientTurn(
        target,
        said,
        id,
        history=history,
        instructions=order.instructions,
        adjust=partial(adjusted, order),
        structured=bool(order.schema or target.output_schema),
        by=asker.caller.name,
        # What the request calls its `user` is a label: whoever holds a token cannot choose who pays.
        identity=asker.caller.acting_for_self("openai"),
        labels=labels,
    )


def _id(runtime: Runtime, asker: RequestCaller, target: WorkTarget) -> str:
    if asker.key:
        return f"i-{derived_id(target.namespace, asker.caller.principal, asker.key)}"
    return runtime.inside.new_run_id()


def _labels(order: OpenAIRequest, asker: RequestCaller, previous: str) -> dict[str, str]:
    labels = {
        VIA_LABEL: "openai",
        CALLER_LABEL: asker.caller.name,
        REQUEST_LABEL: asker.digest,
        MODEL_LABEL: order.model,
        PREVIOUS_LABEL: previous,
        END_USER_LABEL: order.user,
        SESSION_LABEL: order.session or asker.session,
        **{METADATA_LABEL + key: value for key, value in order.metadata.items()},
    }
    return {key: value for key, value in labels.items() if value}


async def _previous(
    runtime: Runtime, asker: RequestCaller, order: OpenAIRequest, target: WorkTarget, session: CallerSession | None
) -> tuple[str, int]:
    """The response to go on from, if any, and the number of this turn in its session."""
    if session is None:
        return order.previous, 0
    if order.previous:
        raise BadRequest("a session knows what came before", param="previous_response_id", hint="give one of the two")
    last = await last_turn(runtime, session)
    if last == 0:
        return "", 1
    id = session.turn(last)
    if asker.key and await _asked_before(runtime, target, id, asker.digest):
        return await _previous_of(runtime, target, id), last
    return task_response(target.namespace, id) if target.kind == "system" else run_response(id), last + 1


async def _followed(runtime: Runtime, asker: RequestCaller, previous: str, target: WorkTarget) -> str:
    """Returns the run whose conversation goes on by reference: an ended one of the same agent, for the same user."""
    ref = parse_response(previous) if previous else None
    if ref is None or ref.is_task or target.kind != "agent":
        return ""
    info, state = await load_visible(runtime, asker.caller, ref.name)
    same = (info.namespace, info.agent, state.identity.user) == (
        target.namespace,
        target.name,
        asker.caller.acting_for_self("openai").user,
    )
    return info.id if same and state.ended is not None else ""


async def _history(runtime: Runtime, caller: Caller, previous: str, target: WorkTarget) -> tuple[Message, ...]:
    if not previous:
        return ()
    ref = parse_response(previous)
    if ref.is_task:
        caller.require("reader", ref.namespace, missing=no_response(previous).message)
        _check_namespace(ref.namespace, target)
        return await task_history(runtime, ref.namespace, ref.name)
    info, state = await load_visible(runtime, caller, ref.name)
    _check_namespace(info.namespace, target)
    return history_of(info, state, target)


def _check_namespace(namespace: str, target: WorkTarget) -> None:
    if namespace != target.namespace:
        raise BadRequest("a conversation stays in its namespace", param="previous_response_id")


async def _answered(
    runtime: Runtime,
    drives: BackgroundRuns,
    asker: RequestCaller,
    order: OpenAIRequest,
    previous: str,
    target: WorkTarget,
) -> StartedWork | None:
    """Go on with a run that waits for what the request says: decisions about calls, or the answer to a question."""
    caller = asker.caller
    info, state = await load_visible(runtime, caller, parse_response(previous).name)
    _check_namespace(info.namespace, target)
    waiting = state.waiting if state.ended is None else None
    if waiting is None or info.phase != "waiting":
        if order.conversation.approvals:
            raise Conflict(f"run {info.id} waits for no approval ({info.phase})")
        return None
    caller.require("operator", info.namespace)
    if order.conversation.approvals:
        caller.require("approver", info.namespace)
        for given in order.conversation.approvals:
            await _decide(runtime, caller, state, given)
    elif waiting.reason == "input":
        if asked := [each.tool for each in questions_of(state) if each.client]:
            raise BadRequest(
                f"run {info.id} waits for the results of {', '.join(asked)}",
                param="input",
                hint="send them, or cancel the response",
            )
        _, said = order.conversation.split("input")
        await runtime.inside.questions.answer(info.id, None, "\n\n".join(each.text for each in said), by=caller.name)
    else:
        return None
    if TASK_LABEL in info.labels:
        await runtime.inside.tasking.ring(info)
    engagement = await RunEngagement.again(
        runtime, drives, info.id, structured=state.spec.output_schema is not None, by=caller.name, after=state.seq
    )
    return StartedWork(engagement, run_response(info.id, state.seq), info.id, time.time(), state.seq)


async def _called(
    runtime: Runtime, drives: BackgroundRuns, asker: RequestCaller, order: OpenAIRequest, target: WorkTarget, param: str
) -> StartedWork | None:
    """Go on with the run that waits for the results of the client's own calls, which the request brings.

    None when no such run is known: then the calls are a part of the conversation as any other. Results that were sent
    before are heard once, and whoever sends them again hears what followed. Raises `Conflict` when others were sent.
    """
    caller = asker.caller
    refs = [parse_call(id) for id in order.conversation.results]
    runs = {ref.run_id for ref in refs if ref is not None}
    if len(runs) != 1 or None in refs:
        return None
    given = {ref.call_id: result for ref, result in zip(refs, order.conversation.results.values(), strict=True) if ref}
    try:
        info, state = await load_visible(runtime, caller, runs.pop())
    except NotFound:
        return None
    if (info.namespace, info.agent) != (target.namespace, target.name):
        return None
    caller.require("operator", info.namespace)
    asked = {each.call_id for each in questions_of(state) if each.client} if state.ended is None else set[str]()
    after = state.seq
    # Results that came before, sent again because their answer was lost: the run may ask for the next ones by now.
    heard = _heard(await runtime.inside.runs.facts(info.id), given) if asked.isdisjoint(given) else None
    if asked and heard is None:
        if missing := asked - given.keys():
            listed = ", ".join(handed_out(info.id, call_id) for call_id in sorted(missing))
            raise BadRequest(f"the calls {listed} have no result", param=param, hint="send the results of all calls")
        for call_id in asked:
            result = given[call_id]
            await runtime.inside.questions.answer(info.id, call_id, result.text, by=caller.name, files=_files(result))
        await _say(runtime, order, info.id, min(asked), by=caller.name)
    elif heard is None:
        return None
    else:
        after = heard
    engagement = await RunEngagement.again(
        runtime, drives, info.id, structured=state.spec.output_schema is not None, by=caller.name, after=after
    )
    return StartedWork(engagement, run_response(info.id, after), info.id, time.time(), after)


def _files(result: ToolResult) -> tuple[Media, ...]:
    return tuple(part for part in result.content if isinstance(part, Media))


def _heard(facts: Sequence[tuple[float, e.Event]], given: Mapping[str, ToolResult]) -> int | None:
    """How many events were before the run heard these results; None if it never did. Raises `Conflict`."""
    answered = {
        event.call_id: (seq, event) for seq, (_, event) in enumerate(facts) if isinstance(event, e.QuestionAnswered)
    }
    found = [answered[call_id] for call_id in given if call_id in answered]
    if len(found) != len(given) or any(event.answer is None for _, event in found):
        return None
    for _, event in found:
        result = given[event.call_id]
        if (event.answer, event.files) != (result.text, _files(result)):
            raise Conflict(f"another result of call {event.call_id} was sent before", hint="the first one counts")
    return min(seq for seq, _ in found)


async def _say(runtime: Runtime, order: OpenAIRequest, run_id: str, call_id: str, *, by: str) -> None:
    """Put what the user says besides results behind them, once."""
    journal = runtime.inside.runs.journal
    for number, message in enumerate(order.conversation.besides):
        name = f"in-{derived_id(run_id, call_id, str(number))}"
        said = e.InputReceived(name, message, "steer", by)
        await journal.signal(signal(run_id, said, runtime.inside.clock(), signal_id=name))


async def _decide(runtime: Runtime, caller: Caller, state: State, given: dict[str, Any]) -> None:
    name, approve = given.get("approval_request_id"), given.get("approve")
    if not isinstance(name, str) or not isinstance(approve, bool):
        raise BadRequest("an approval response needs approval_request_id and approve", param="input")
    # What the client was shown are the arguments of the model.
    shown = [call.approval.digest for call in state.calls if call.approval and call.approval.approval_id == name]
    await runtime.inside.approvals.decide(
        name,
        "approve" if approve else "deny",
        by=caller.name,
        namespace=state.spec.namespace,
        comment=str(given.get("reason") or ""),
        digest=shown[0] if shown else "",
    )


async def _check_same(runtime: Runtime, target: WorkTarget, id: str, asker: RequestCaller) -> None:
    """Raises `Conflict` when this id stands for another request already."""
    labels = await _labels_of(runtime, target, id)
    if labels is None or labels.get(REQUEST_LABEL) == asker.digest:
        return
    raise Conflict(
        "another request was faster, or has used this idempotency key",
        hint="a key belongs to one request, and a session takes one request at a time",
    )


async def _asked_before(runtime: Runtime, target: WorkTarget, id: str, digest: str) -> bool:
    return (await _labels_of(runtime, target, id) or {}).get(REQUEST_LABEL) == digest


async def _previous_of(runtime: Runtime, target: WorkTarget, id: str) -> str:
    return (await _labels_of(runtime, target, id) or {}).get(PREVIOUS_LABEL, "")


async def _labels_of(runtime: Runtime, target: WorkTarget, id: str) -> dict[str, str] | None:
    try:
        if target.kind == "system":
            return (await runtime.inside.tasking.tasks.get(target.namespace, id)).labels
        return (await runtime.inside.runs.journal.get(id)).labels
    except NotFound:
        return None
