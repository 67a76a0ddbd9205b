"""Holds the audit log against the journals, and makes up the records that a killed process took with it.

Calls do not wait for their records (see log.py), so a process that is killed loses those of its last moments. The
result of a finished call is in the journal of its run by then, and everything that a record says follows from there.
Who takes over a run of a dead process makes up what is missing; runs that had ended are found by looking through the
journals of the time since the last look. `foliot audit verify` compares both and says what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.audit.entry import CallEntry, entry_of
from foliot.engine.audit.log import AuditTrail
from foliot.engine.driver.intake import caller_of, invocation_of
from foliot.engine.driver.journal import Specs, read_history, told_by
from foliot.errors import FoliotError
from foliot.kernel.arguments import parse_object
from foliot.kernel.errors import KernelError
from foliot.kernel.messages import Message, Usage
from foliot.kernel.run.calls import intent, key_of
from foliot.kernel.run.events import Event, RunClaimed, RunCreated, ToolFinished, ToolStarted, ToolUnknown
from foliot.kernel.run.feedback import failed, lost
from foliot.kernel.run.loop import apply
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import Call, State
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Database
from foliot.store.journal.database import SqlJournal
from foliot.tools.base import ToolDefinition
from foliot.tools.pipeline.record import CallRecord, snapshot
from foliot.tools.pipeline.results import MAY_HAVE_ACTED
from foliot.tools.secrets.masking import Masker

log = logging.getLogger(__name__)

# Records of calls that finished just now may still be on their way.
ON_THEIR_WAY: Final = 30.0
RUNS_AT_ONCE: Final = 200


class MissingRecord(Struct, frozen=True):
    """A call that finished or was lost, of which the log has no record, and the record that is made up for it."""

    run_id: str
    call_id: str
    tool: str
    entry: CallEntry


class Completion:
    """The audit log of a database and the journals beside it."""

    def __init__(self, database: Database, *, masker: Masker | None = None, trail: AuditTrail | None = None) -> None:
        """`trail` tells others of records that are made up, if somebody wants to hear of records."""
        self._db = database
        self._trail = trail
        self._log = SqlAuditLog(database)
        self._journal = SqlJournal(database)
        self._masker = masker
        self._specs = Specs()

    async def complete_run(self, state: State, facts: Sequence[tuple[float, Event]]) -> int:
        """Make up the records that are missing of a run whose holder died; how many. Never raises.

        What that one had under way may have acted, and there is nobody else to say so.
        """
        if not any(isinstance(event, ToolStarted) for _, event in facts):
            return 0
        try:
            history = await read_history(self._journal, state.created) if state.created is not None else ()
            found = await self._missing(state.spec, state.run_id, facts, history, left=True)
            await self._add(found)
        except (FoliotError, KernelError) as error:
            log.warning("run %s: its audit records could not be completed: %s", state.run_id, error)
            return 0
        return len(found)

    async def complete(self, *, since: float, now: float) -> int:
        """Make up the records that are missing of runs that nobody drives and that changed since a time; how many."""
        count = 0
        async for found in self._look(since, now):
            await self._add(found)
            count += len(found)
        return count

    async def missing(self, *, now: float) -> list[MissingRecord]:
        """Finished calls that the log should tell of and does not, of all runs that nobody drives now."""
        return [each async for found in self._look(await self._first_kept(), now) for each in found]

    async def _first_kept(self) -> float:
        """The time from which on nothing was pruned."""
        base = await self._log.base()
        if not base.seq:
            return 0.0
        first = await self._db.read("audit_read", after=base.seq, count=1)
        return first[0]["at"] if first else 0.0

    async def _look(self, since: float, now: float) -> AsyncIterator[list[MissingRecord]]:
        after = 0
        while True:
            runs = await self._db.read(
                "audit_short", after=after, since=since, until=now - ON_THEIR_WAY, now=now, count=RUNS_AT_ONCE
            )
            for row in runs:
                try:
                    found = await self._of_run(row["id"])
                except (FoliotError, KernelError, msgspec.MsgspecError) as error:
                    log.warning("run %s cannot be held against the audit log: %s", row["id"], error)
                    continue
                kept = [each for each in found if each.entry.at >= since]
                if kept:
                    yield kept
            if len(runs) < RUNS_AT_ONCE:
                return
            after = runs[-1]["key"]

    async def _of_run(self, run_id: str) -> list[MissingRecord]:
        facts = (await told_by(run_id, await self._journal.read(run_id))).facts
        if not facts or not isinstance(created := facts[0][1], RunCreated):
            return []
        spec = await self._specs.get(self._journal, created.spec)
        return await self._missing(spec, run_id, facts, await read_history(self._journal, created))

    async def _missing(
        self,
        spec: RunSpec,
        run_id: str,
        facts: Sequence[tuple[float, Event]],
        history: Sequence[Message],
        left: bool = False,
    ) -> list[MissingRecord]:
        bodies = [msgspec.json.decode(row["data"]) for row in await self._db.read("audit_finished", run_id=run_id)]
        known = {(body["call_id"], body.get("attempt", 1)) for body in bodies}
        found: list[MissingRecord] = []
        for record, usage in finished_calls(spec, run_id, facts, history, left=left):
            call = record.call
            entry = entry_of(record, snapshot(call.arguments), self._masker, usage)
            entry.recovered = True
            if (entry.call_id, call.attempt) not in known:
                found.append(MissingRecord(run_id, call.call_id, call.tool, entry))
        return found

    async def _add(self, found: Sequence[MissingRecord]) -> None:
        if found:
            fed = self._trail is not None and self._trail.fed
            records = await self._log.append([each.entry for each in found], told=fed)
            if self._trail is not None and fed:
                self._trail.appended(records)
            log.info("run %s: %d audit records were made up from its journal", found[0].run_id, len(found))


def finished_calls(
    spec: RunSpec,
    run_id: str,
    facts: Sequence[tuple[float, Event]],
    history: Sequence[Message] = (),
    left: bool = False,
) -> Iterator[tuple[CallRecord, Usage | None]]:
    """Yields the audit record of each call that acted and has a result, with the usage of the runs it delegated.

    Also of each call that came to no result and may have acted. `left`: nobody drives the run any more, and so what is
    under way at the end of the journal is such a call too.
    """
    state = State(spec, run_id, history)
    at = 0.0
    for at, event in facts:
        if isinstance(event, ToolFinished) and event.synthetic is None:
            call = state.call(event.result.call_id)
            if call is not None and call.attempts and call.rule is not None:
                yield _record(state, call, event, at), event.usage
        elif isinstance(event, ToolUnknown):
            call = state.call(event.call_id)
            if call is not None and call.phase == "running" and call.rule is not None:
                yield _record(state, call, _lost(state, call, event), at), event.usage
        elif isinstance(event, RunClaimed):
            yield from _left(state, at)
        apply(state, event, at)
    if left:
        yield from _left(state, at)


def _left(state: State, at: float) -> Iterator[tuple[CallRecord, Usage | None]]:
    """The records of what was under way when the run was left."""
    for call in state.calls:
        if call.phase == "running" and call.effect != "read" and call.rule is not None:
            said = f"whoever made the call of {call.name} has not recorded its end; {MAY_HAVE_ACTED}"
            yield _record(state, call, _lost(state, call, ToolUnknown(call.id, "process_died", said)), at), None


def _lost(state: State, call: Call, unknown: ToolUnknown) -> ToolFinished:
    said = unknown.message or lost(call.name, unknown)
    kind = "timeout" if unknown.reason == "timeout" else "cancelled"
    code = "timeout" if unknown.reason == "timeout" else "canceled"
    key = key_of(state, call)
    return failed(call.id, call.name, "unknown", code, "unknown_effect", said, kind, unknown.reason, key)


def _record(state: State, call: Call, event: ToolFinished, at: float) -> CallRecord:
    arguments: dict[str, Any] = parse_object(call.arguments)[0] or {}
    asked = replace(intent(state, call), attempt=call.attempts)
    assert call.rule is not None, "only a known tool can have been started"
    definition = ToolDefinition(call.name, schema=call.rule.spec.schema, effect=call.rule.effect)
    made = invocation_of(state, asked, arguments, caller_of(state))
    return CallRecord(
        "finished",
        replace(made, version=made.version or definition.version),
        definition,
        at,
        result=event.result,
        attempts=1,
        seconds=float(event.seconds or 0.0),
    )
