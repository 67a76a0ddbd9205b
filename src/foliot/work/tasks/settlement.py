"""The settlement of a run with its task: another attempt, the next agents, or the end of the task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from foliot.bus.base import Ticket, Transport
from foliot.engine.base import Clock
from foliot.engine.definition.edge_conditions import edge_condition
from foliot.errors import InvalidInput
from foliot.kernel.graph.events import MessageEnded
from foliot.kernel.graph.plan import OTHERWISE, Node
from foliot.kernel.graph.retry import BUSY_FOR, CONDITION_FAILED, FINAL_CODES, POLICY, busy_delay, delay, verdict
from foliot.kernel.run.events import RunCancelled, RunDeadLettered, RunFailed, RunRetried, RunSucceeded, Terminal
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.store import tasks
from foliot.store.journal.base import LockingBody, TransactionBody
from foliot.store.queue.limits import class_failed, class_succeeded
from foliot.store.transaction import Row, Tx
from foliot.tools.governance.cel import ConditionFailed
from foliot.work.tasks.advance import Outcome, TaskRef, lock_live_runs, tell_locked

if TYPE_CHECKING:
    from foliot.engine.telemetry.metrics import TaskCounts

# --- routes ----------------------------------------------------------------------------------------------------------

# Where an agent's answer goes: the route labels it gave, and the conditions of its edges that hold.
#
# Labels are the scalar fields at the top of a structured output. A text answer gives them in its last lines:
#
#     The report is about a crash.
#     route: bug
#     severity=high
#
# Only lines at the very end count, and only when each of them is one label, so that prose is not mistaken for a route.

_LABEL: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9_.-]{0,62})\s*[=:]\s*(\S(?:.*\S)?)\s*")
_LONGEST_VALUE: Final = 256
_MOST_LABELS: Final = 32


class EdgeVerdict(Struct, frozen=True):
    """Which edges hold, by position; and `problems`: position and why, of expressions that cannot be evaluated."""

    held: tuple[int, ...]
    problems: tuple[tuple[int, str], ...] = ()


def route_labels(output: str, value: Any) -> dict[str, str]:
    """The labels an answer gives. A structured one gives its fields; text, the label lines at its end."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        labels = {name: _as_label(item) for name, item in fields.items() if isinstance(item, (str, int, float))}
        return {name: text for name, text in labels.items() if len(text) <= _LONGEST_VALUE}
    labels: dict[str, str] = {}
    for line in reversed(output.rstrip().splitlines()):
        found = _LABEL.fullmatch(line)
        if found is None or len(found[2]) > _LONGEST_VALUE or len(labels) == _MOST_LABELS:
            break
        labels.setdefault(found[1], _unquoted(found[2]))
    return labels


def _as_label(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _unquoted(text: str) -> str:
    for quote in ('"', "'", "`", "**"):
        if len(text) > 2 * len(quote) and text.startswith(quote) and text.endswith(quote):
            return text[len(quote) : -len(quote)]
    return text


def judge_edges(
    node: Node, output: str, value: Any, labels: Mapping[str, str], given: Mapping[str, str]
) -> EdgeVerdict:
    """Evaluate the expressions on a node's edges. One that cannot be evaluated is a problem, and neither yes nor no."""
    held: list[int] = []
    problems: list[tuple[int, str]] = []
    for position, edge in enumerate(node.edges):
        if not isinstance(edge.when, str) or edge.when == OTHERWISE:
            continue
        try:
            if edge_condition(edge.when).holds(output, value, labels, given):
                held.append(position)
        except ConditionFailed as failed:
            problems.append((position, str(failed)))
        except InvalidInput as wrong:
            problems.append((position, wrong.message))
    return EdgeVerdict(tuple(held), tuple(problems))


def condition_failure(agent: str, node: Node, verdict: EdgeVerdict) -> str:
    """Says which conditions could not be evaluated, and why; blank when all could."""
    return "; ".join(
        f"the condition {node.edges[position].when!r} of the edge {agent} -> {node.edges[position].to}"
        f" cannot be evaluated: {why}"
        for position, why in verdict.problems
    )


# --- settling --------------------------------------------------------------------------------------------------------


def is_class_failure(fact: MessageEnded) -> bool:
    """Whether a failure says something about where and how the run was done, and not only about this one request."""
    return fact.code not in FINAL_CODES and fact.reason != POLICY


class _Turn:
    """The row of a task, from where it was locked to where it is changed. A body that is run again locks it again."""

    task: Row | None = None


class TaskSettlement:
    """The `Settlement` of one run of a task."""

    def __init__(
        self, task: TaskRef, message_id: str, transport: Transport, *, clock: Clock, counts: TaskCounts | None = None
    ) -> None:
        self._tickets: list[Ticket] = []
        self._counts = counts
        # What became of the run, until it is stored: its agent, how it ended, and what that brought about.
        self._outcome: tuple[str, str, Outcome] | None = None
        self._transport = transport
        self._task = task
        self._message_id = message_id
        self._clock = clock

    def instead(self, state: State, terminal: Terminal) -> RunRetried | None:
        """Returns another attempt while the task's rule allows one and the failure is of a kind that may pass.

        A model that is busy is waited for without counting an attempt: see `kernel.retry.RETRIES`.
        """
        rule = self._task.pinned.plan.retry
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

    def settle(self, state: State) -> TransactionBody | None:
        """Tell the task of a run that has ended, and its execution class of how it went. A wait is news to neither."""
        now = self._clock()
        self._outcome = None
        if state.ended is None:
            if state.retried is not None:
                self._outcome = state.spec.agent, "retried", Outcome()
            return LockingBody(partial(self._failed, state.spec, now)) if state.retried is not None else None
        fact = self._fact(state, state.ended)
        turn = _Turn()
        self._outcome = state.spec.agent, fact.outcome, Outcome()
        return LockingBody(
            partial(self._lock, turn, fact, state.spec, now),
            partial(self._tell, turn, fact, now, state.started_at),
        )

    def _failed(self, spec: RunSpec, now: float) -> Tx[None]:
        task = self._task
        yield from class_failed(task.class_key(spec), now, namespace=task.namespace, agent=spec.agent, lane=task.lane)

    def _lock(self, turn: _Turn, fact: MessageEnded, spec: RunSpec, now: float) -> Tx[None]:
        """Locks the rows ahead of the run's: its class, its task, and the other runs of a task about to fail."""
        if fact.outcome == "succeeded":
            yield from class_succeeded(self._task.class_key(spec))
        elif fact.outcome == "failed" and is_class_failure(fact):
            yield from self._failed(spec, now)
        turn.task = yield from tasks.turn(self._task.key)
        if fact.outcome != "succeeded":
            yield from lock_live_runs(self._task)

    def _tell(self, turn: _Turn, fact: MessageEnded, now: float, started: float | None) -> Tx[None]:
        outcome = None if self._outcome is None else self._outcome[2]
        row = tasks.present(turn.task)
        self._tickets = yield from tell_locked(self._task, row, fact, now, started, outcome=outcome)

    async def settled(self) -> None:
        """Tell workers of the runs that this one's end made due."""
        if self._counts is not None and self._outcome is not None:
            (agent, how, outcome), self._outcome = self._outcome, None
            self._counts.message_ended(agent, how, outcome.waited)
            self._counts.messages_sent(ticket.agent for ticket in self._tickets)
            if outcome.status:
                task = self._task
                self._counts.task_ended(task.namespace, task.command.target, outcome.status, outcome.took)
        if self._tickets:
            tickets, self._tickets = self._tickets, []
            await self._transport.publish(tickets)

    def _fact(self, state: State, terminal: Terminal) -> MessageEnded:
        usage = state.spent.usage()
        match terminal:
            case RunSucceeded(output=output, value=value):
                labels = route_labels(output, value)
                node = self._task.pinned.plan.nodes[state.spec.agent]
                edges = judge_edges(node, output, value, labels, self._task.command.input)
                if error := condition_failure(state.spec.agent, node, edges):
                    # The agent is done, and nobody knows who comes next: as when it had failed, `on_failure` of its
                    # edges says what happens.
                    return MessageEnded(
                        self._message_id,
                        "failed",
                        run_id=state.run_id,
                        code=CONDITION_FAILED,
                        reason=CONDITION_FAILED,
                        error=error,
                        route=labels,
                        attempts=state.attempt,
                        usage=usage,
                        worker=state.worker_name,
                    )
                return MessageEnded(
                    self._message_id,
                    "succeeded",
                    run_id=state.run_id,
                    output=output,
                    route=labels,
                    held=edges.held,
                    attempts=state.attempt,
                    usage=usage,
                    worker=state.worker_name,
                )
            case RunCancelled(reason=reason):
                return MessageEnded(
                    self._message_id,
                    "cancelled",
                    run_id=state.run_id,
                    reason=reason,
                    attempts=state.attempt,
                    usage=usage,
                    worker=state.worker_name,
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
                    worker=state.worker_name,
                )
