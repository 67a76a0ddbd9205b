"""What the end of a run means for its task: another attempt, the next agents, or the end of the task."""

from __future__ import annotations

from functools import partial

from foliot.bus.base import Ticket, Transport
from foliot.engine.base import Clock
from foliot.kernel.events import RunCancelled, RunDeadLettered, RunFailed, RunRetried, RunSucceeded, Terminal
from foliot.kernel.plan import Retry
from foliot.kernel.retry import BUSY_FOR, FINAL_CODES, busy_delay, delay, verdict
from foliot.kernel.state import State
from foliot.kernel.task_events import MessageEnded
from foliot.store import tasks
from foliot.store.bounds import class_failed, class_succeeded
from foliot.store.runs import Beside, InTurn
from foliot.store.transaction import Row, Tx
from foliot.work.advancing import TaskRef, lock_live_runs, tell_locked
from foliot.work.routes import held_edges, route_labels


def is_class_failure(fact: MessageEnded) -> bool:
    """Whether a failure says something about where and how the run was done, and not only about this one request."""
    return fact.code not in FINAL_CODES


class _Turn:
    """The row of a task, from where it was locked to where it is changed. A body that is run again locks it again."""

    task: Row | None = None


class TaskSettlement:
    """The `Settlement` of one run of a task."""

    def __init__(self, task: TaskRef, message_id: str, transport: Transport, *, clock: Clock) -> None:
        self._tickets: list[Ticket] = []
        self._transport = transport
        self._task = task
        self._message_id = message_id
        self._clock = clock

    def instead(self, state: State, terminal: Terminal) -> RunRetried | None:
        """Another attempt, while the rule of the task allows one and the failure is of a kind that may pass.

        A model that is busy is waited for without counting an attempt: see `kernel.retry.RETRIES`.
        """
        rule: Retry = self._task.pinned.plan.retry
        if not isinstance(terminal, RunFailed):
            return None
        now, key = self._clock(), self._message_id
        busy = state.busy_since is not None and now - state.busy_since < BUSY_FOR
        why = terminal.reason or terminal.code
        match verdict(terminal, rule, attempt=state.attempt, busy=busy):
            case "wait":
                due = now + busy_delay(rule, key, state.busy)
                return RunRetried(state.attempt, why, terminal.message, due, counted=False)
            case "retry":
                return RunRetried(state.attempt, why, terminal.message, now + delay(rule, key, state.attempt))
            case "end":
                return None

    def settle(self, state: State) -> Beside | None:
        """Tell the task of a run that has ended, and its execution class of how it went. A wait is news to neither."""
        now = self._clock()
        if state.ended is None:
            return InTurn(partial(self._failed, state.spec.agent, now)) if state.retried is not None else None
        fact = self._fact(state, state.ended)
        turn = _Turn()
        return InTurn(
            partial(self._lock, turn, fact, state.spec.agent, now),
            partial(self._tell, turn, fact, now, state.started_at),
        )

    def _failed(self, agent: str, now: float) -> Tx[None]:
        task = self._task
        yield from class_failed(task.class_key(agent), now, namespace=task.namespace, agent=agent, lane=task.lane)

    def _lock(self, turn: _Turn, fact: MessageEnded, agent: str, now: float) -> Tx[None]:
        """Whatever comes ahead of the run: its class, its task, and the other runs of a task that is about to fail."""
        if fact.outcome == "succeeded":
            yield from class_succeeded(self._task.class_key(agent))
        elif fact.outcome == "failed" and is_class_failure(fact):
            yield from self._failed(agent, now)
        turn.task = yield from tasks.turn(self._task.key)
        if fact.outcome != "succeeded":
            yield from lock_live_runs(self._task)

    def _tell(self, turn: _Turn, fact: MessageEnded, now: float, started: float | None) -> Tx[None]:
        self._tickets = yield from tell_locked(self._task, tasks.present(turn.task), fact, now, started)

    async def settled(self) -> None:
        """Tell workers of the runs that this one's end made due."""
        if self._tickets:
            tickets, self._tickets = self._tickets, []
            await self._transport.publish(tickets)

    def _fact(self, state: State, terminal: Terminal) -> MessageEnded:
        usage = state.spent.usage()
        match terminal:
            case RunSucceeded(output=output, value=value):
                labels = route_labels(output, value)
                node = self._task.pinned.plan.nodes[state.spec.agent]
                held = held_edges(node, output, value, labels, self._task.command.input)
                return MessageEnded(
                    self._message_id,
                    "succeeded",
                    run_id=state.run_id,
                    output=output,
                    route=labels,
                    held=held,
                    attempts=state.attempt,
                    usage=usage,
                )
            case RunCancelled(reason=reason):
                return MessageEnded(
                    self._message_id,
                    "cancelled",
                    run_id=state.run_id,
                    reason=reason,
                    attempts=state.attempt,
                    usage=usage,
                )
            case RunFailed() | RunDeadLettered() as failed:
                return MessageEnded(
                    self._message_id,
                    "failed",
                    run_id=state.run_id,
                    code=failed.code if isinstance(failed, RunFailed) else "dead_lettered",
                    reason=failed.reason,
                    error=failed.message,
                    attempts=state.attempt,
                    usage=usage,
                )
