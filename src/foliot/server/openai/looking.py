"""Answers that were given before, told again from the journals."""

from __future__ import annotations

from typing import Any

from foliot.errors import Conflict, NotFound
from foliot.runtime import Runtime
from foliot.server.engagements import TaskEngagement, recorded
from foliot.server.identity import Caller
from foliot.server.openai.asking import METADATA_LABEL, MODEL_LABEL, PREVIOUS_LABEL
from foliot.server.openai.conversations import Ref, load_visible, no_response, parse_response
from foliot.server.openai.responses import Answer
from foliot.server.pieces import Teller
from foliot.store.tasks import ENDED


async def find_response(runtime: Runtime, caller: Caller, id: str) -> dict[str, Any]:
    """The response of this id as it stands now. Raises `NotFound`."""
    ref = parse_response(id)
    if ref.is_task:
        return await _of_task(runtime, caller, id, ref)
    info, state = await load_visible(runtime, caller, ref.name)
    answer = Answer(id, info.labels.get(MODEL_LABEL, info.agent), info.created_at, echo_of(info.labels), info.id)
    teller = Teller(info.id, structured=state.spec.output_schema is not None)
    for piece in recorded(teller, await runtime.runs.facts(info.id), ref.after):
        answer.take(piece)
    if teller.ended is None and info.phase == "waiting":
        answer.take(teller.rest())
    return answer.document()


async def cancel_response(runtime: Runtime, caller: Caller, id: str) -> None:
    """Ask the work behind a response to end. Raises `NotFound`, `Denied`; `Conflict` when it has ended."""
    ref = parse_response(id)
    if ref.is_task:
        caller.require("operator", ref.namespace, missing=no_response(id).message)
        await runtime.tasking.tasks.cancel(ref.namespace, ref.name, by=caller.name, reason="cancelled by a client")
        return
    info, state = await load_visible(runtime, caller, ref.name)
    caller.require("operator", info.namespace)
    if state.ended is not None:
        raise Conflict(f"run {info.id} has ended ({info.phase})")
    await runtime.cancel(info.id, by=caller.name, reason="cancelled by a client")


def echo_of(labels: dict[str, str]) -> dict[str, Any]:
    """What a response repeats of its request, as far as it was kept."""
    metadata = {
        key.removeprefix(METADATA_LABEL): value for key, value in labels.items() if key.startswith(METADATA_LABEL)
    }
    return {"metadata": metadata, "previous_response_id": labels.get(PREVIOUS_LABEL)}


async def _of_task(runtime: Runtime, caller: Caller, id: str, ref: Ref) -> dict[str, Any]:
    if not caller.sees(ref.namespace):
        raise no_response(id)
    try:
        info = await runtime.tasking.tasks.get(ref.namespace, ref.name)
    except NotFound:
        raise no_response(id) from None
    answer = Answer(id, info.labels.get(MODEL_LABEL, info.target), info.created_at, echo_of(info.labels), info.name)
    if info.phase in ENDED or info.phase == "waiting":
        async for piece in TaskEngagement(runtime, ref.namespace, ref.name).pieces():
            answer.take(piece)
    return answer.document()
