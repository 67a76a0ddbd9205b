"""Conversations over many requests: what was said before is in the journals of earlier runs.

The id of a response names its run, so `previous_response_id` needs nothing else to be stored. A session has a name
that the client chose; the id of its n-th run is made from that name, so its newest run is found by looking for ids, in
any process and after any restart, and of two requests at once one is told to wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from foliot.errors import Conflict, NotFound
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.state import State
from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import Caller
from foliot.server.auth.run_access import may_read
from foliot.server.runs.background import CALLER_LABEL, derived_id
from foliot.server.runs.targets import WorkTarget
from foliot.store.journal.base import RunInfo
from foliot.store.tasks import ENDED

RESPONSE: Final = "resp_"
_RUN: Final = re.compile(r"resp_([A-Za-z0-9-]{1,128})(?:\.([0-9]{1,9}))?")
_TASK: Final = re.compile(r"resp_task~([A-Za-z0-9.-]{1,253})~([A-Za-z0-9.-]{1,253})")
MOST_TURNS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Ref:
    """The run or task that a response id names.

    A response of a run may begin behind its first `after` events, where it had waited.
    """

    namespace: str
    name: str
    after: int = 0

    @property
    def is_task(self) -> bool:
        return bool(self.namespace)


def run_response(run_id: str, after: int = 0) -> str:
    return f"{RESPONSE}{run_id}.{after}" if after else f"{RESPONSE}{run_id}"


def task_response(namespace: str, name: str) -> str:
    return f"{RESPONSE}task~{namespace}~{name}"


def parse_response(id: str) -> Ref:
    """Raises `NotFound` for what was never an id here."""
    if found := _TASK.fullmatch(id):
        return Ref(found[1], found[2])
    if found := _RUN.fullmatch(id):
        return Ref("", found[1], int(found[2] or 0))
    raise no_response(id)


def no_response(id: str) -> NotFound:
    return NotFound(
        f"there is no response {id[:200]!r}, or it is not yours to see",
        param="response_id",
        openai_code="response_not_found",
    )


async def load_visible(runtime: Runtime, caller: Caller, run_id: str) -> tuple[RunInfo, State]:
    """A run that the caller can see. Raises `NotFound`, in the same words for one that is hidden."""
    try:
        info = await runtime.inside.runs.journal.get(run_id)
    except NotFound:
        raise no_response(run_response(run_id)) from None
    if not may_read(caller, info):
        raise no_response(run_response(run_id))
    return await runtime.inside.runs.load(run_id)


@dataclass(frozen=True, slots=True)
class CallerSession:
    """A conversation of one caller with one agent or system, under a name that the caller chose."""

    caller: str
    target: WorkTarget
    name: str

    def turn(self, number: int) -> str:
        """The id of its n-th run."""
        target = self.target
        return f"s-{derived_id(target.namespace, target.kind, target.name, self.caller, self.name)}-{number}"


async def last_turn(runtime: Runtime, session: CallerSession) -> int:
    """How many turns a session has had: few looks, however many there are."""
    if not await _is_there(runtime, session, 1):
        return 0
    low, high = 1, 2
    while high <= MOST_TURNS and await _is_there(runtime, session, high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await _is_there(runtime, session, middle):
            low = middle
        else:
            high = middle
    return low


async def _is_there(runtime: Runtime, session: CallerSession, turn: int) -> bool:
    """Whether the session has had this turn. Work that another has begun under its id is none of its turns."""
    target, id = session.target, session.turn(turn)
    try:
        if target.kind == "system":
            found = await runtime.inside.tasking.tasks.get(target.namespace, id)
        else:
            found = await runtime.inside.runs.journal.get(id)
    except NotFound:
        return False
    return (found.namespace, found.labels.get(CALLER_LABEL)) == (target.namespace, session.caller)


def history_of(info: RunInfo, state: State, target: WorkTarget) -> tuple[Message, ...]:
    """Returns the messages up to the end of a run.

    Another agent gets the texts, not the calls of tools it does not have.

    Raises `Conflict` for a run that has not ended.
    """
    if state.ended is None:
        raise Conflict(
            f"run {info.id} has not ended ({info.phase})", hint=f"GET /v1/responses/{run_response(info.id)} follows it"
        )
    if (info.agent, info.namespace) == (target.name, target.namespace) and target.kind == "agent":
        return tuple(state.transcript)
    return tuple(
        Message(message.role, (Text(message.text),))
        for message in state.transcript
        if message.role in ("user", "assistant") and message.text
    )


async def task_history(runtime: Runtime, namespace: str, name: str) -> tuple[Message, ...]:
    """Returns the input of a system and its answer. Earlier messages are part of the input already.

    Raises `NotFound`; `Conflict` for a task that has not ended.
    """
    info = await runtime.inside.tasking.tasks.get(namespace, name)
    if info.phase not in ENDED:
        raise Conflict(f"task {name} has not ended ({info.phase})", hint="try again when it has")
    told = (await runtime.inside.tasking.tasks.ref(namespace, name)).command.message
    story = await runtime.inside.tasking.stories.of(namespace, name, looks=False)
    messages = [Message("user", (Text(told),))]
    if story.output:
        messages.append(Message("assistant", (Text(story.output),)))
    return tuple(messages)
