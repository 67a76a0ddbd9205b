"""Decisions of people about calls that may have acted: for the run that waits for one, and after a run has ended.

A decision is about an effect, and the effect has a key: whoever says that it happened says it to all runs that are
asked about it. That it did not happen, or is to be run, is said to one of those that wait: two that hear it would both
act. Of runs that have ended, all are settled by one word, and a word to the contrary is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from hashlib import sha256
from typing import Literal, TypeAlias, get_args

from foliot.common.suggestions import check_word
from foliot.engine.approval.records import DecisionLog, call_document
from foliot.engine.driver.journal import signal
from foliot.engine.driver.runs import Runs
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.messages import Text, ToolResult
from foliot.kernel.run.calls import key_of
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import UnknownDecided
from foliot.kernel.run.state import Call, State
from foliot.store.journal.base import TERMINAL, DecidedBefore, Signal, TransactionBody
from foliot.store.ledger.doubts import START, Doubt, DoubtDecision, LateDecision, Position, refuse_contradiction

Settling: TypeAlias = Literal["happened", "run", "fail"]


class UnknownCalls:
    """The calls of one store that may have acted."""

    def __init__(self, runs: Runs, decisions: DecisionLog, *, clock: Callable[[], float]) -> None:
        self._runs = runs
        self._decisions = decisions
        self._clock = clock

    async def open(
        self,
        namespace: str | None = None,
        *,
        ended: bool = False,
        limit: int = 100,
        after: Position = START,
    ) -> list[Doubt]:
        """List calls that nobody has settled, oldest first, each effect once. `ended`: only of runs that have ended."""
        if self._runs.doubts is None:
            return []
        return await self._runs.doubts.table.list(namespace or "", ended=ended, limit=limit, after=after)

    async def count(self, namespace: str | None = None, *, ended: bool = False) -> int:
        """How many there are."""
        return 0 if self._runs.doubts is None else await self._runs.doubts.table.count(namespace or "", ended=ended)

    async def settle(
        self,
        state: State,
        call: Call,
        decision: Settling,
        *,
        attempt: int | None = None,
        result: str | None = None,
        by: str = "",
        reason: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> Signal:
        """Leave word for a run of what became of a call of it, for whoever takes the run up.

        `attempt` is the number of the attempt that is meant. It has to be named once a person had the call made again:
        the word about the attempt before may arrive a second time. The record is stored with it. Raises `Conflict` when
        somebody was faster, has said the contrary, or the attempt that is meant was settled before.
        """
        check_word("decision", decision, get_args(Settling))  # what is stored and cannot be read would be dropped
        _check_attempt(state, call, attempt)
        doubts, key, namespace = self._runs.doubts, key_of(state, call), state.spec.namespace
        if doubts is not None and call.effect == "once":
            others = await doubts.table.of_keys(namespace, [key])
            refuse_contradiction((each for each in others if each.run_id != state.run_id), decision)
        message = await self._leave_word(
            state, call, decision, result=result, by=by, reason=reason, in_transaction=in_transaction
        )
        if doubts is not None and call.effect == "once" and decision != "fail":
            await doubts.table.settle_ended(DoubtDecision(namespace, key, decision, by, self._clock(), reason, result))
            if decision == "happened":
                await self._tell_others(namespace, key, state.run_id, result=result, by=by, reason=reason)
        return message

    async def settle_ended(
        self,
        run_id: str,
        word: str,
        decision: LateDecision,
        *,
        attempt: int | None = None,
        result: str | None = None,
        by: str = "",
        reason: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> Doubt:
        """Say what became of a call whose run has ended, by its id or its tool. The run stays as it is.

        The record is stored with it. The same call of another run of the family goes by it: what happened is not done
        again. Raises `Conflict` when somebody was faster, `NotFound`.
        """
        check_word("decision", decision, get_args(LateDecision))
        found = [] if self._runs.doubts is None else await self._runs.doubts.table.of_run(run_id)
        doubt = _meant(found, run_id, word)
        if attempt is not None and doubt.attempt not in (0, attempt):
            raise Conflict(f"Attempt {attempt} of call {doubt.call_id} is not in question: attempt {doubt.attempt} is.")
        assert self._runs.doubts is not None, "somebody has listed it"
        _, state = await self._runs.load(run_id)
        call = Call(doubt.call_id, doubt.tool, "{}", None)
        record = self._decisions.new(decision, by, self._clock(), in_transaction=in_transaction)
        document = call_document(state, call, _name(run_id, f"{doubt.key}/late"), reason=reason)
        said = DoubtDecision(doubt.namespace, doubt.key, decision, by, self._clock(), reason, result)
        await self._runs.doubts.table.settle(said, run_id=run_id, in_transaction=record.body_for(document))
        record.tell()
        if decision == "happened":
            await self._tell_others(doubt.namespace, doubt.key, run_id, result=result, by=by, reason=reason)
        return doubt

    async def _tell_others(
        self, namespace: str, key: str, run_id: str, *, result: str | None, by: str, reason: str
    ) -> None:
        """Say that something happened to the other runs that are asked about it. One that is not told still asks."""
        if self._runs.doubts is None:
            return
        for each in await self._runs.doubts.table.of_keys(namespace, [key]):
            if each.run_id == run_id or each.decision or each.phase in TERMINAL:
                continue
            with contextlib.suppress(FoliotError):  # it has ended meanwhile, or somebody was faster
                _, state = await self._runs.load(each.run_id)
                if (call := state.call(each.call_id)) is not None and call.phase == "unknown":
                    await self._leave_word(state, call, "happened", result=result, by=by, reason=reason)

    async def _leave_word(
        self,
        state: State,
        call: Call,
        decision: Settling,
        *,
        result: str | None,
        by: str,
        reason: str,
        in_transaction: TransactionBody | None = None,
    ) -> Signal:
        happened = decision == "happened" and result is not None
        given = ToolResult(call.id, call.name, (Text(result or ""),)) if happened else None
        fact = UnknownDecided(call.id, decision, by, reason, given)
        # The same for the same attempt: of several decisions at once the store keeps the first, with its record.
        name = _name(state.run_id, f"{call.id}/{call.attempts}")
        message = signal(state.run_id, fact, self._clock(), signal_id=name)
        record = self._decisions.new(decision, by, self._clock(), in_transaction=in_transaction)
        body = record.body_for(call_document(state, call, name, reason=reason))
        try:
            await self._runs.journal.signal(message, after=state.seq, in_transaction=body)
        except DecidedBefore as error:
            earlier = decode(error.winner)
            assert isinstance(earlier, UnknownDecided), "nothing else is of its type"
            raise Conflict(
                f"somebody else has decided about call {call.id} of run {state.run_id} already: "
                f"{earlier.by or 'somebody'} has said {earlier.decision!r}"
            ) from None
        record.tell()
        return message


def _check_attempt(state: State, call: Call, attempt: int | None) -> None:
    """Raises `Conflict` unless the attempt that is meant is the one in question."""
    if attempt is None and not call.cleared:
        return
    if attempt != call.attempts:
        meant = "no attempt is named" if attempt is None else f"attempt {attempt} was settled before"
        raise Conflict(
            f"call {call.id} of run {state.run_id} was made again after a decision, and attempt {call.attempts} is in "
            f"question now: {meant}",
            hint=f"look whether that one took effect, and name it: --attempt {call.attempts}",
        )


def _name(run_id: str, what: str) -> str:
    return f"un-{sha256(f'{run_id}/{what}'.encode()).hexdigest()[:20]}"


def _meant(found: list[Doubt], run_id: str, word: str) -> Doubt:
    """The one that is meant: by the id of its call, or else by its tool's name.

    One that is settled can be meant by its id, so that whoever says the contrary hears what was said.
    """
    if exact := [each for each in found if word == each.call_id]:
        return exact[0]
    settled = [each for each in found if each.decision and word == each.tool]
    found = [each for each in found if not each.decision]
    meant = [each for each in found if word == each.tool]
    if not meant and len(settled) == 1:
        return settled[0]
    if not found:
        raise Conflict(f"Run {run_id} has ended, and none of its calls waits for a decision.")
    if len(meant) == 1:
        return meant[0]
    listed = "\n".join(f"{each.call_id}  {each.tool}" for each in found)
    if meant:
        raise Conflict(f"Several calls of {word} wait for a decision:\n{listed}", hint="Give the id of one.")
    raise NotFound(f"No call {word!r} waits for a decision. These do:\n{listed}")
