"""Inputs to runs outside of sessions: numbered and stored once, heard by way of signals.

The row of an input says what became of it, for whoever says it again with the same id. Its message is in a signal until
the run has it in its journal, and in the row until it is in the conversation: so long it counts as waiting. An ended
run is restarted: the row then names the run that goes on after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from foliot.errors import Conflict, NotFound
from foliot.kernel.inbox import MOST_WAITING, RUN_ENDED, Arrival, InboxOptions, Outcome, Waiting, arrive
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import NAMES, encode, type_of
from foliot.kernel.run.events import CancelRequested, InputReceived
from foliot.store.base import Database
from foliot.store.journal.base import TERMINAL, Signal, TransactionBody
from foliot.store.journal.database import add_signal
from foliot.store.journal.leases import lock_runs
from foliot.store.sessions.base import InboxFull, InputAnswer, NewInput, Said
from foliot.store.sessions.database import add_input, answer_question, input_of_row, open_inputs, said_before
from foliot.store.sessions.inbox_rules import AgentObject, run_inbox_rules
from foliot.store.transaction import Tx, one, run


class RunRestarted(Conflict):
    """The run has ended, and another one goes on after it."""

    code = "run_restarted"

    def __init__(self, run_id: str, by: str) -> None:
        super().__init__(f"run {run_id} has ended, and run {by} goes on after it")
        self.by = by


class SaidMeanwhile(Conflict):
    """The same input was stored by somebody else since it was looked for: what became of it is in its row by now."""

    code = "said_meanwhile"


class RunInputs:
    """The inputs to runs of an installation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def say(
        self,
        run_id: str,
        new: NewInput,
        *,
        now: float,
        agent: AgentObject | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Said:
        """Stores an input for a run that has not ended, with the signal by which the run hears of it.

        An input that is an `answer` is heard as the answer to its question; `QuestionClosed` when that is not open.
        `agent` is that of the run, if it is an object of this process: it says how long what is collected waits.
        For one that has ended nothing is stored, and `act` is "start": whoever asked restarts it with `restarting`.
        Raises `NotFound`, `RunRestarted`, and `Conflict` when the id belongs to other words, too many wait, or the task
        of the run is archived.
        """
        return await self._db.write(_say, run_id, new, now, agent, in_transaction)

    async def unheard(self, key: int) -> list[Message]:
        """Returns what was said to a run, by the key of its row, that failed before it could hear it."""
        found = await self._db.read("inbox_unheard_list", owner=key, reason=RUN_ENDED)
        return [message for row in found if (message := input_of_row(row).message) is not None]

    async def arrival(self, key: int, id: str) -> int:
        """Returns the number of an input to a run, by the key of its row; 0 for one that is not there."""
        found = await self._db.read("inbox_by_id", owner_kind="run", owner=key, id=id)
        return found[0]["seq"] if found else 0


def restarting(
    run_id: str, key: int, new: NewInput, new_run: str, *, now: float, in_transaction: TransactionBody | None = None
) -> Callable[[], Tx[None]]:
    """Returns what the creation of `new_run` does to the inbox of the ended run that it goes on after.

    Both have their rows locked by then. Raises `RunRestarted` when somebody else was faster, and `Conflict` when the
    task of the ended run is archived.
    """

    def body() -> Tx[None]:
        if (yield from one("inbox_by_id", owner_kind="run", owner=key, id=new.id)) is not None:
            raise SaidMeanwhile(f"the input {new.id!r} was said to run {run_id} just now")
        yield from _check_not_archived(run_id)
        if (restart := (yield from one("inbox_restart", owner=key))) is not None:
            raise RunRestarted(run_id, restart["run_id"])
        seq = (yield from _last(key)) + 1
        yield from add_input("run", key, seq, new, Arrival("restarted", "offer"), now, new_run)
        yield from run("inbox_answered", run_id=new_run, owner=key, id=new.id)
        if in_transaction is not None:
            yield from in_transaction()

    return body


def _say(
    run_id: str, new: NewInput, now: float, agent: AgentObject | None, in_transaction: TransactionBody | None
) -> Tx[Said]:
    there = yield from one("run_get", id=run_id)
    found = (yield from lock_runs([there["key"]])) if there is not None else []
    if there is None or not found:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    key, phase = found[0]["key"], found[0]["phase"]
    if (known := (yield from one("inbox_by_id", owner_kind="run", owner=key, id=new.id))) is not None:
        return said_before(input_of_row(known), new)
    yield from _check_not_archived(run_id)
    if phase in TERMINAL:
        if (restart := (yield from one("inbox_restart", owner=key))) is not None:
            raise RunRestarted(run_id, restart["run_id"])
        return Said(0, "restarted", act="start", run_id=run_id)
    if (yield from one("signal_cancelling", run_id=run_id, type=NAMES[CancelRequested])) is not None:
        raise Conflict(f"run {run_id} is being cancelled", hint="once it has ended, saying it restarts the run")
    if new.answer is not None:
        return (yield from _answer(run_id, key, new, new.answer, now, in_transaction))
    waiting = yield from open_inputs("run", key)
    rules = InboxOptions()
    if waiting or new.mode == "collect":
        rules = yield from run_inbox_rules(there["namespace"], there["agent"], agent)
    seq = (yield from _last(key)) + 1
    outcome = run_outcome(new, seq, waiting, rules, now=now, waits=phase == "waiting")
    yield from add_input("run", key, seq, new, Arrival(outcome, "offer"), now, run_id)
    heard = InputReceived(new.id, new.message, new.mode, new.by, seq)
    if new.mode == "collect":
        heard = collected(heard, now, rules)
    yield from add_signal(Signal(new.id, run_id, now, type_of(heard), encode(heard)))
    if in_transaction is not None:
        yield from in_transaction()
    return Said(seq, outcome, act="wake", run_id=run_id)


def _answer(
    run_id: str, key: int, new: NewInput, answer: InputAnswer, now: float, in_transaction: TransactionBody | None
) -> Tx[Said]:
    """Stores an input that answers what the run, or one below it, asks. Raises `QuestionClosed`."""
    yield from answer_question(answer)
    seq = (yield from _last(key)) + 1
    yield from add_input("run", key, seq, new, Arrival("direct", "offer"), now, run_id, heard=True)
    if in_transaction is not None:
        yield from in_transaction()
    return Said(seq, "direct", act="wake", run_id=run_id)


def run_outcome(
    new: NewInput, seq: int, waiting: Sequence[Waiting], rules: InboxOptions, *, now: float, waits: bool
) -> Outcome:
    """Returns what becomes of an input to a live run, beside those that it has not answered. Raises `InboxFull`.

    A run has in its journal what waits for it, so nothing of that can give way to others: only `drop: new` makes `cap`
    a limit of a run.
    """
    arriving = Waiting(seq, new.mode, now, new.place, size=len(msgspec.json.encode(new.message)))
    if rules.drop != "new":
        rules = replace(rules, cap=max(rules.cap, MOST_WAITING))
    arrival = arrive(arriving, waiting, "waiting" if waits else "working", rules)
    if arrival.refused:
        raise InboxFull(arrival.refused, hint="wait until the run has answered what was said to it, or cancel it")
    return arrival.outcome


def collected(heard: InputReceived, now: float, rules: InboxOptions) -> InputReceived:
    """Returns an input that is answered together with others that are collected, after the silence of these rules."""
    return replace(heard, said_at=now, debounce=rules.debounce)


def _check_not_archived(run_id: str) -> Tx[None]:
    """Raises `Conflict` for a run of a task that is archived: nobody waits for an answer there."""
    if (task := (yield from one("task_archived_of_run", run_id=run_id))) is not None:
        raise Conflict(
            f"task {task['name']} is archived", hint=f"run {run_id} belongs to it: submit the work as another task"
        )


def _last(key: int) -> Tx[int]:
    row = yield from one("inbox_last", owner_kind="run", owner=key)
    return 0 if row is None else msgspec.convert(row["seq"], int)
