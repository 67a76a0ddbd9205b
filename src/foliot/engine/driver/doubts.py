"""Calls in doubt, beyond the run that made them: kept in a list, and looked for before a `once` call is made.

A call that must not happen twice is held when the same call (tool and arguments) of another run of its *family* may
have acted. A family is what one order set going in a namespace: the runs of a task with all their delegates and
requeues, or a run with its delegates. Others may have the same arguments by chance; within a family the likely reason
is that somebody tries again.

A call that is under way in hands that live is not in doubt, so two branches that want the same at once both get it.
In hands that died it is, before anybody has written so: that run's journal is read then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from foliot.engine.base import Clock
from foliot.engine.driver.journal import Specs, load_state
from foliot.errors import FoliotError
from foliot.kernel.arguments import canonical, parse_object
from foliot.kernel.errors import KernelError
from foliot.kernel.messages import Text, ToolResult
from foliot.kernel.run.actions import CallIntent
from foliot.kernel.run.calls import is_repeatable, key_of
from foliot.kernel.run.contract import signature_of
from foliot.kernel.run.events import Event, ToolHeld, UnknownDecided, Unsettled
from foliot.kernel.run.state import Call, State
from foliot.store.journal.base import Journal, LockingBody, TransactionBody
from foliot.store.ledger.doubts import DoubtTable, Family, Happened, NewDoubt, Obstacle, note
from foliot.store.transaction import Tx
from foliot.tools.backends.agent import DELEGATING, PREFIX, SPAWNING

_NO_DOUBTS: Final[Mapping[str, NewDoubt]] = {}


class Doubts:
    """The list of calls in doubt, as drivers use it."""

    def __init__(
        self,
        table: DoubtTable,
        journal: Journal,
        *,
        clock: Clock,
        is_gone: Callable[[str | None], bool],
    ) -> None:
        """`clock` is the one that leases are judged by; `is_gone` says of a worker that it has certainly died."""
        self.table = table
        self._journal = journal
        self._clock = clock
        self._is_gone = is_gone
        self._specs = Specs()

    async def hold(self, state: State, intents: Sequence[CallIntent], worker: str) -> list[Event]:
        """Why calls that are about to be made are not: facts to be recorded. `worker` holds this run."""
        asked = {
            _digest(state, intent.name, intent.arguments): intent
            for intent in intents
            if (call := state.call(intent.call_id)) is not None and _may_be_held(call)
        }
        if not asked or is_alone(state):
            return []
        obstacles, holders = await self.table.look(family_of(state), state.run_id, asked)
        for holder in holders:
            over = holder.lease_until is not None and holder.lease_until < self._clock()
            if over or (holder.worker != worker and self._is_gone(holder.worker)):
                obstacles += await self._left_by(state, holder.worker, asked)
        facts: list[Event] = []
        held: set[str] = set()
        # What nobody has settled comes first: it is asked about, whatever is known of another call like it.
        for obstacle in sorted(obstacles, key=lambda each: each.decision != ""):
            intent = asked[obstacle.signature]
            told = obstacle.decision == "happened"
            if intent.call_id in held or (told and obstacle.key in state.stood_for):
                continue
            held.add(intent.call_id)
            text = canonical(parse_object(intent.arguments)[0] or {}).decode()
            earlier = Unsettled(intent.name, text, obstacle.key, obstacle.reason)
            facts.append(ToolHeld(intent.call_id, earlier, obstacle.run_id))
            if told:
                facts.append(_happened(intent.call_id, intent.name, obstacle.by, obstacle.note, obstacle.result))
        return facts

    async def _left_by(self, state: State, worker: str, asked: Mapping[str, CallIntent]) -> list[Obstacle]:
        """The same calls, under way in runs of a worker that died or lost them."""
        found: list[Obstacle] = []
        for run_id in await self.table.held_by(family_of(state), state.run_id, worker):
            try:
                other = await load_state(self._journal, self._specs, run_id)
            except (FoliotError, KernelError):
                continue  # whoever takes it up hears what is wrong with it
            for call in other.calls:
                if call.phase == "running" and call.effect == "once":
                    signature = _digest(other, call.name, call.arguments)
                    if signature in asked:
                        key = key_of(other, call)
                        found.append(Obstacle(signature, run_id, key, "process_died", "", "", "", None))
        return found

    async def settled(self, state: State, keys: Iterable[str]) -> list[UnknownDecided]:
        """Read the decisions of people about calls that calls of this run stand for."""
        known = await self.table.of_keys(state.spec.namespace, keys)
        happened = {each.key: each for each in known if each.decision == "happened"}
        return [
            _happened(call.id, call.name, said.decided_by, said.note, said.result)
            for call in state.calls
            if call.phase == "unknown" and call.earlier is not None and (said := happened.get(call.earlier.key))
        ]

    async def still_open(self, namespace: str, unsettled: tuple[Unsettled, ...]) -> tuple[Unsettled, ...]:
        """Leave out those of which somebody has said, after their run had ended, that they did not happen."""
        if not unsettled:
            return ()
        known = await self.table.of_keys(namespace, [each.key for each in unsettled])
        free = {each.key for each in known if each.decision == "not_happened"}
        free -= {each.key for each in known if not each.decision}
        return tuple(each for each in unsettled if each.key not in free)


def family_of(state: State) -> Family:
    """Name the family of a run: those among which a call must not happen twice."""
    created = state.created
    return family(state.spec.namespace, state.run_id, *(("", "") if created is None else (created.task, created.root)))


def family(namespace: str, run_id: str, task: str = "", root: str = "") -> Family:
    """The family of a run that began with `task` and `root` (see `RunCreated`)."""
    if task and root:
        return Family(f"{namespace}/task/{root}", namespace)
    own = root or run_id
    return Family(f"{namespace}/run/{own}", namespace, own)


def is_alone(state: State) -> bool:
    """Whether a run has no others beside it: it began by itself, and cannot delegate."""
    if state.created is not None and state.created.root:
        return False
    return not any(name.startswith(PREFIX) or name in SPAWNING or name == DELEGATING for name in state.rules)


def _may_be_held(call: Call) -> bool:
    """Whether the call may be held: no person cleared it, its tool allows no repeat, and it is not held already."""
    return not call.cleared and call.earlier is None and not is_repeatable(call)


def _digest(state: State, name: str, arguments: str) -> str:
    return sha256(signature_of(state, name, parse_object(arguments)[0] or {})).hexdigest()


def _happened(call_id: str, name: str, by: str, reason: str, result: str | None) -> UnknownDecided:
    given = None if result is None else ToolResult(call_id, name, (Text(result),))
    return UnknownDecided(call_id, "happened", by, reason, given)


# --- what is written of a run ------------------------------------------------------------------------------------


def doubts_of(state: State, before: Mapping[str, NewDoubt] = _NO_DOUBTS) -> dict[str, NewDoubt]:
    """The `once` calls of a run that may have acted, by their keys. `before` is what was said of it last."""
    found: dict[str, NewDoubt] = {}
    for call in state.calls:
        lost = call.phase == "unknown" or (call.doubt and call.phase != "done")
        if not lost or call.rule is None or call.rule.effect != "once":
            continue
        unknown, earlier = call.unknown, call.earlier
        reason = call.doubt or (earlier.reason if earlier is not None else "")
        key, until = key_of(state, call), None if unknown is None else unknown.until
        found[key] = _noted(
            state, key, call.id, call.name, call.arguments, reason, until, before.get(key), call.attempts
        )
    own = f"{state.run_id}/"
    for each in state.unsettled.values():
        rule, known = state.rules.get(each.tool), before.get(each.key)
        if each.key in found or rule is None or rule.effect != "once":
            continue
        if known is not None and known.reason:
            found[each.key] = known
        elif each.key.startswith(own):
            call_id = each.key.removeprefix(own)
            found[each.key] = _noted(state, each.key, call_id, each.tool, each.arguments, each.reason, None, None)
    return found


def _noted(
    state: State,
    key: str,
    call_id: str,
    tool: str,
    arguments: str,
    reason: str,
    until: float | None,
    known: NewDoubt | None,
    attempt: int = 0,
) -> NewDoubt:
    at = state.now if known is None or known.reason != reason else known.at
    signature = _digest(state, tool, arguments)
    namespace, family_name = state.spec.namespace, family_of(state).name
    return NewDoubt(state.run_id, key, call_id, namespace, family_name, signature, tool, reason, at, until, attempt)


def noting(
    before: Mapping[str, NewDoubt], after: Mapping[str, NewDoubt], facts: Iterable[Event], state: State
) -> TransactionBody | None:
    """Make the rows to write beside an append, after which other calls of a run are in doubt than before it."""
    opened = [each for key, each in after.items() if before.get(key) != each]
    closed = [each for key, each in before.items() if key not in after]
    if not opened and not closed:
        return None
    said = {fact.call_id: fact for fact in facts if isinstance(fact, UnknownDecided) and fact.decision == "happened"}
    happened: list[Happened] = []
    gone: list[tuple[str, str]] = []
    for each in closed:
        if (fact := said.get(each.call_id)) is None:
            gone.append((state.run_id, each.key))
        else:
            result = None if fact.result is None else fact.result.text
            happened.append(Happened(state.run_id, each.key, fact.by, state.now, fact.reason, result))

    def body() -> Tx[None]:
        yield from note(opened, happened, gone)

    return body


def both(first: TransactionBody | None, second: TransactionBody) -> TransactionBody:
    """Return one body that runs both, in this order."""
    if first is None:
        return second
    before = first

    def body() -> Tx[None]:
        yield from before()
        yield from second()

    return LockingBody(first.locks, body) if isinstance(first, LockingBody) else body
