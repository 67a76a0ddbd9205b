"""The metrics that Prometheus reads: every name, help and label in one place.

    metrics = Metrics(database, resources)
    stop = hub.observe(metrics.tally.recorded)      # counters begin here
    text = await metrics.render()                   # gauges are read here

`prometheus-client` writes the text format; it is imported by the first `render`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from foliot.engine.telemetry.standing import StoreSnapshot, look
from foliot.errors import FoliotError, UsageError
from foliot.kernel.messages import Usage
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    Event,
    ModelDelayed,
    ModelFailed,
    ModelResponded,
    RunCancelled,
    RunClaimed,
    RunCreated,
    RunDeadLettered,
    RunFailed,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    SessionCompacted,
    SessionNotCompacted,
    ToolFinished,
)
from foliot.store.base import Database, ResourceStore
from foliot.tools.pipeline.running import going_on
from foliot.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric


# --- tally -----------------------------------------------------------------------------------------------------------

# Counts what runs of this process do, from the events that become durable.
#
# A `Tally` hears every event once (`RunHub.observe`) and touches nothing but its own dicts: no clock, no lock, no
# database. Labels are bounded: of each sort only so many values are told apart, and the rest counts as `_other`; a
# tool that does not exist counts as `_unknown`, whatever a model called it.

OTHER: Final = "_other"
UNKNOWN_TOOL: Final = "_unknown"
MOST_VALUES: Final = 200
MOST_QUESTIONS: Final = 10_000

SHORT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LONG_WORK: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
LONG: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)

Labels: TypeAlias = tuple[str, ...]


class BoundedLabel:
    """Tells so many values of a label apart, in the order in which they come."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


class Histogram:
    """How often a number fell between which bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Tally:
    """Counts by labels, each a dict of its own. Read them at any time; they only grow."""

    def __init__(self) -> None:
        self.events = 0
        self.runs_started = 0
        self.run_attempts = 0
        self.runs_ended: defaultdict[Labels, int] = defaultdict(int)
        self.run_retries: defaultdict[Labels, int] = defaultdict(int)
        self.run_waits: defaultdict[Labels, int] = defaultdict(int)
        self.steps: defaultdict[Labels, int] = defaultdict(int)
        self.tool_calls: defaultdict[Labels, int] = defaultdict(int)
        self.tokens: defaultdict[Labels, int] = defaultdict(int)
        self.cost: defaultdict[Labels, float] = defaultdict(float)
        self.unpriced: defaultdict[Labels, int] = defaultdict(int)
        self.wasted_tokens = 0
        self.wasted_cost = 0.0
        self.approvals_requested = 0
        self.approvals_decided: defaultdict[Labels, int] = defaultdict(int)
        self.budget_stops: defaultdict[Labels, int] = defaultdict(int)
        self.model_seconds: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(SHORT))
        self.tool_seconds: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(SHORT))
        self.approval_wait = Histogram(LONG)
        self._models, self._tools, self._reasons = BoundedLabel(), BoundedLabel(), BoundedLabel()
        self._asked: dict[tuple[str, str], float] = {}
        self._by_type: dict[type[Any], Callable[[str, float, Any], None]] = {
            RunCreated: self._created,
            RunClaimed: self._claimed,
            RunSucceeded: self._ended,
            RunFailed: self._ended,
            RunCancelled: self._ended,
            RunDeadLettered: self._ended,
            RunRetried: self._retried,
            RunWaiting: self._waited,
            ModelResponded: self._responded,
            ModelFailed: self._failed,
            ModelDelayed: self._delayed,
            SessionCompacted: self._compacted,
            SessionNotCompacted: self._compacted,
            ToolFinished: self._called,
            ApprovalRequested: self._requested,
            ApprovalDecided: self._decided,
            BudgetExceeded: self._stopped,
        }

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        """One event of one run is durable."""
        self.events += 1
        count = self._by_type.get(type(event))
        if count is not None:
            count(run_id, at, event)

    # --- runs ----------------------------------------------------------------------------------------------------

    def _created(self, run_id: str, at: float, event: RunCreated) -> None:
        self.runs_started += 1

    def _claimed(self, run_id: str, at: float, event: RunClaimed) -> None:
        self.run_attempts += 1

    def _ended(self, run_id: str, at: float, event: RunSucceeded | RunFailed | RunCancelled | RunDeadLettered) -> None:
        match event:
            case RunSucceeded():
                outcome, reason = "succeeded", ""
            case RunCancelled():
                outcome, reason = "cancelled", ""  # what people say is no label
            case RunFailed():
                outcome, reason = "failed", self._reasons(event.reason)
            case RunDeadLettered():
                outcome, reason = "dead_lettered", self._reasons(event.reason)
        self.runs_ended[outcome, reason] += 1

    def _retried(self, run_id: str, at: float, event: RunRetried) -> None:
        self.run_retries[self._reasons(event.reason),] += 1

    def _waited(self, run_id: str, at: float, event: RunWaiting) -> None:
        self.run_waits[event.reason,] += 1

    def _stopped(self, run_id: str, at: float, event: BudgetExceeded) -> None:
        self.budget_stops[event.limit, event.then] += 1

    # --- steps and calls -----------------------------------------------------------------------------------------

    def _responded(self, run_id: str, at: float, event: ModelResponded) -> None:
        model = self._models(event.response.model)
        self.steps[model, "responded"] += 1
        if event.seconds is not None:
            self.model_seconds[model,].add(event.seconds)
        self._spent(model, event.response.usage)
        if event.wasted.total_tokens:
            self._spent(model, event.wasted)
            self._lost(event.wasted)

    def _failed(self, run_id: str, at: float, event: ModelFailed) -> None:
        self.steps["", self._reasons(event.kind)] += 1
        self._spent("", event.usage)
        self._lost(event.usage)

    def _delayed(self, run_id: str, at: float, event: ModelDelayed) -> None:
        if event.failed:
            self._failed(run_id, at, ModelFailed(event.step, event.failed, "", usage=event.usage))

    def _lost(self, usage: Usage) -> None:
        self.wasted_tokens += usage.total_tokens
        self.wasted_cost += usage.cost_usd or 0.0

    def _compacted(self, run_id: str, at: float, event: SessionCompacted | SessionNotCompacted) -> None:
        self._spent(getattr(event, "model", ""), event.usage)

    def _spent(self, model: str, usage: Usage) -> None:
        for sort, number in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if number:
                self.tokens[model, sort] += number
        if usage.cost_usd is not None:
            self.cost[model,] += usage.cost_usd
        elif usage.total_tokens:
            self.unpriced[model,] += 1

    def _called(self, run_id: str, at: float, event: ToolFinished) -> None:
        error = event.result.error
        tool = UNKNOWN_TOOL if error is not None and error.kind == "unknown_tool" else self._tools(event.result.name)
        outcome = event.synthetic or ("ok" if error is None else "error")
        if error is not None and error.unknown:
            outcome = "unknown"
        self.tool_calls[tool, outcome] += 1
        if event.seconds is not None:
            self.tool_seconds[tool,].add(event.seconds)

    # --- approvals -----------------------------------------------------------------------------------------------

    def _requested(self, run_id: str, at: float, event: ApprovalRequested) -> None:
        self.approvals_requested += 1
        if len(self._asked) >= MOST_QUESTIONS:
            del self._asked[next(iter(self._asked))]  # the oldest: it was decided elsewhere, or never will be
        self._asked[run_id, event.call_id] = at

    def _decided(self, run_id: str, at: float, event: ApprovalDecided) -> None:
        self.approvals_decided[event.decision,] += 1
        asked = self._asked.pop((run_id, event.call_id), None)
        if asked is not None:  # asked while another process had the run: its beginning was not heard here
            self.approval_wait.add(max(0.0, at - asked))


class TaskCounts:
    """Counts the tasks that ended in this process, and the messages between agents that it sent and dealt with.

    Told by whoever stored it, once it is stored. `phase` of a message is one that its document can have.
    """

    def __init__(self) -> None:
        self.durations: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(LONG_WORK))
        self.messages: defaultdict[Labels, int] = defaultdict(int)
        self.latencies: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(SHORT))
        self.retries: defaultdict[Labels, int] = defaultdict(int)
        self.dead_letters: defaultdict[Labels, int] = defaultdict(int)
        self._agents, self._namespaces, self._systems = BoundedLabel(), BoundedLabel(), BoundedLabel()

    def messages_sent(self, agents: Iterable[str]) -> None:
        """Messages to these agents were queued."""
        for agent in agents:
            self.messages["queued", self._agents(agent)] += 1

    def message_begun(self, agent: str) -> None:
        """An attempt at a message began."""
        self.messages["running", self._agents(agent)] += 1

    def message_ended(self, agent: str, how: str, waited: float | None) -> None:
        """An attempt at a message ended: `how` is succeeded, failed, cancelled, or retried, when it is tried again.

        `waited` is how long the message was in flight, from where it was sent.
        """
        agent = self._agents(agent)
        if how == "retried":
            self.retries[agent,] += 1
        if how == "failed":
            self.dead_letters[agent,] += 1
        phase = {"retried": "retrypending", "failed": "deadletter"}.get(how, how)
        self.messages[phase, agent] += 1
        if waited is not None:
            self.latencies[agent,].add(waited)

    def task_ended(self, namespace: str, target: str, status: str, seconds: float) -> None:
        """A task ended, so long after it was accepted or requeued."""
        self.durations[self._namespaces(namespace), self._systems(target), status].add(seconds)


# --- metrics ---------------------------------------------------------------------------------------------------------

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# What was counted under the same name by the older system is served under both.
PREFIXES: Final = ("foliot", "orloj")
_QUEUE_STATES: Final = ("due", "later", "parked", "held")
_LIVE: Final = ("pending", "running", "waiting")


@runtime_checkable
class CommitsInGroups(Protocol):
    """A database that commits many transactions together, and counts how many."""

    def commit_sizes(self) -> tuple[tuple[int, ...], int]:
        """Commits of up to 1, 2, 4 … 1024 transactions and of more, and the number of all transactions."""
        ...


@runtime_checkable
class Linked(Protocol):
    """A transport that needs a connection of its own."""

    @property
    def is_connected(self) -> bool: ...


class Metrics:
    """The metrics of one process. `transport` says how it hears of work, and whether it does now."""

    def __init__(
        self,
        database: Database | None,
        resources: ResourceStore | None = None,
        *,
        transport: Callable[[], tuple[str, bool]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tally = Tally()
        self.tasks = TaskCounts()
        self._database = database
        self._resources = resources
        self._transport = transport
        self._clock = clock
        self._namespaces, self._workers, self._agents = BoundedLabel(), BoundedLabel(), BoundedLabel()

    async def render(self) -> bytes:
        """Everything, in the text format. A store that does not answer is told by `foliot_store_up`, not raised.

        Raises `UsageError` when prometheus-client is not installed.
        """
        try:
            from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry, generate_latest
        except ImportError:
            raise UsageError(
                "metrics need the package prometheus-client, which is not installed",
                hint="pip install prometheus-client",
            ) from None
        began = time.perf_counter()
        standing = await self._standing()
        took = time.perf_counter() - began
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(list(self._families(standing, took))))
        registry.register(PROCESS_COLLECTOR)
        return generate_latest(registry)

    async def _standing(self) -> StoreSnapshot | None:
        if self._database is None:
            return None
        try:
            return await look(self._database, self._resources, now=self._clock())
        except FoliotError:
            return None

    def _families(self, standing: StoreSnapshot | None, took: float) -> Iterable[Metric]:
        yield _gauge("build_info", "The version that runs.", {(__version__,): 1}, ("version",))
        yield _gauge("store_up", "Whether the store answered this scrape.", {(): int(standing is not None)})
        yield _gauge("scrape_store_seconds", "How long the store took for this scrape.", {(): took})
        still = {(tool,): count for tool, count in Counter(each.tool for each in going_on()).items()}
        yield _gauge("tool_calls_going_on", "Calls here that were told to end and have not.", still, ("tool",))
        yield from _counted(self.tally)
        yield from _of_tasks(self.tasks)
        yield from self._commits()
        if self._transport is not None:
            name, connected = self._transport()
            yield _gauge(
                "transport_connected",
                "Whether this process hears of work; 0: it looks by itself, some seconds apart.",
                {(name,): int(connected)},
                ("transport",),
            )
        if standing is not None:
            yield from self._queue(standing)
            yield from self._in_flight(standing)
            yield from _stood(standing)
            yield from self._staff(standing)

    def _commits(self) -> Iterable[Metric]:
        if isinstance(self._database, CommitsInGroups):
            counts, transactions = self._database.commit_sizes()
            spread = Histogram(tuple(2.0**n for n in range(len(counts) - 1)))
            spread.counts, spread.sum = list(counts), transactions
            yield _histogram("commit_transactions", "Transactions in one commit of the store.", {(): spread})

    def _queue(self, standing: StoreSnapshot) -> Iterable[Metric]:
        runs: dict[Labels, float] = {}
        ages: dict[Labels, float] = {}
        for each in standing.queue:
            namespace = self._namespaces(each.namespace)
            for state, number in zip(_QUEUE_STATES, (each.due, each.later, each.parked, each.held), strict=True):
                runs[namespace, state] = runs.get((namespace, state), 0) + number
            age = 0.0 if each.oldest_due is None else max(0.0, standing.at - each.oldest_due)
            ages[namespace,] = max(age, ages.get((namespace,), 0.0))
        yield _gauge(
            "queue_runs",
            "Runs of tasks in the queue: due, later, parked until a signal, or held by a worker.",
            runs,
            ("namespace", "state"),
        )
        yield _gauge("queue_oldest_due_seconds", "How long the first in line has been due.", ages, ("namespace",))

    def _in_flight(self, standing: StoreSnapshot) -> Iterable[Metric]:
        flying: dict[Labels, float] = {}
        for agent, number in standing.in_flight.items():
            flying[self._agents(agent),] = flying.get((self._agents(agent),), 0) + number
        for prefix in PREFIXES:
            yield _gauge("inflight_messages", "Messages that have not ended.", flying, ("agent",), prefix)

    def _staff(self, standing: StoreSnapshot) -> Iterable[Metric]:
        states = {(state,): 0 for state in ("ready", "draining", "stopped", "lost")}
        current: dict[Labels, float] = {}
        capacity: dict[Labels, float] = {}
        silent: dict[Labels, float] = {}
        for worker in standing.workers:
            state = worker.state(standing.at)
            states[state,] += 1
            if state in ("stopped", "lost"):
                continue
            name = (self._workers(worker.name),)
            current[name] = current.get(name, 0) + worker.current
            capacity[name] = capacity.get(name, 0) + worker.capacity
            silent[name] = max(silent.get(name, 0.0), standing.at - worker.heartbeat_at)
        yield _gauge("workers", "Workers of the last day, by state.", states, ("state",))
        yield _gauge("worker_runs", "Runs that a worker is doing.", current, ("worker",))
        yield _gauge("worker_capacity", "Runs that a worker can do at once.", capacity, ("worker",))
        yield _gauge("worker_heartbeat_age_seconds", "Since a worker's last sign of life.", silent, ("worker",))


def _counted(tally: Tally) -> Iterable[Metric]:
    """Yields the metrics that count the acts of this process."""
    yield _counter("events", "Events that were recorded.", {(): tally.events})
    yield _counter("runs_started", "Runs that were begun.", {(): tally.runs_started})
    yield _counter("run_attempts", "Runs that were taken, for the first time or again.", {(): tally.run_attempts})
    yield _counter("runs_ended", "Runs that ended, by outcome.", tally.runs_ended, ("outcome", "reason"))
    yield _counter("run_retries", "Attempts that failed and will be repeated.", tally.run_retries, ("reason",))
    yield _counter("run_waits", "Times that a run began to wait.", tally.run_waits, ("reason",))
    yield _counter("steps", "Questions to a model, by how they ended.", tally.steps, ("model", "outcome"))
    yield _histogram("model_seconds", "How long a model took to answer.", tally.model_seconds, ("model",))
    yield _counter("tool_calls", "Tool calls, by how they ended.", tally.tool_calls, ("tool", "outcome"))
    yield _histogram("tool_seconds", "How long a tool took.", tally.tool_seconds, ("tool",))
    yield _counter("tokens", "Tokens; input includes what came from a cache.", tally.tokens, ("model", "type"))
    yield _counter("cost_usd", "What models cost, in US dollars, where the price is known.", tally.cost, ("model",))
    yield _counter("unpriced_answers", "Answers whose price is not known.", tally.unpriced, ("model",))
    yield _counter(
        "wasted_tokens", "Tokens of attempts that gave no answer; part of `tokens`.", {(): tally.wasted_tokens}
    )
    yield _counter("wasted_cost_usd", "What those cost, in US dollars; part of `cost_usd`.", {(): tally.wasted_cost})
    yield _counter("approvals_requested", "Calls that were parked for consent.", {(): tally.approvals_requested})
    yield _counter("approvals_decided", "Parked calls, by decision.", tally.approvals_decided, ("decision",))
    yield _histogram(
        "approval_wait_seconds", "From question to decision, where this process saw both.", {(): tally.approval_wait}
    )
    yield _counter(
        "budget_stops", "Acts that a budget or a limit did not allow.", tally.budget_stops, ("limit", "then")
    )


def _of_tasks(counts: TaskCounts) -> Iterable[Metric]:
    """Yields the metrics of tasks and messages, each also under the name that dashboards of the older system read."""
    for prefix in PREFIXES:
        yield _histogram(
            "task_duration_seconds",
            "From accepting or requeuing a task to its end here.",
            counts.durations,
            ("namespace", "system", "status"),
            prefix,
        )
        yield _counter(
            "messages",
            "Messages to agents, by phase.",
            counts.messages,
            ("phase", "agent"),
            prefix,
        )
        yield _counter("retries", "Messages that are tried again.", counts.retries, ("agent",), prefix)
        yield _counter("deadletters", "Messages that were given up.", counts.dead_letters, ("agent",), prefix)
    yield _histogram(
        "message_latency_seconds", "From sending a message to the end of its run.", counts.latencies, ("agent",)
    )


def _stood(standing: StoreSnapshot) -> Iterable[Metric]:
    """How things stand in the store, whoever did it."""
    at = standing.at
    yield _gauge("runs", "Live runs.", {(phase,): standing.runs.get(phase, 0) for phase in _LIVE}, ("phase",))
    waiting = {(reason,): number for reason, number in standing.waiting.items()}
    yield _gauge("waiting_runs", "Runs that wait, by what for.", waiting, ("reason",))
    longest = {(reason,): max(0.0, at - since) for reason, since in standing.waiting_since.items()}
    yield _gauge("waiting_longest_seconds", "How long the longest wait has lasted.", longest, ("reason",))
    tasks = {(phase,): standing.tasks.get(phase, 0) for phase in ("queued", "running", "dead_lettered")}
    yield _gauge("tasks", "Tasks that are live, or were given up and wait for a person.", tasks, ("phase",))
    oldest = 0.0 if standing.oldest_lease is None else max(0.0, at - standing.oldest_lease)
    yield _gauge("lease_oldest_seconds", "How long the run that is held longest has been held.", {(): oldest})
    yield _gauge("leases_expired", "Runs whose holder let the lease run out.", {(): standing.leases_expired})
    sizes = {(state,): number for state, number in standing.store_bytes.items()}
    yield _gauge("store_bytes", "Bytes of the store, in use and free.", sizes, ("state",))
    yield _gauge("budget_used_ratio", "Spent and reserved, of the limit.", standing.budgets, ("namespace", "budget"))


class _Collected:
    """Families that are made already, as the library wants to be given them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, help: str, values: Mapping[Labels, float], labels: Labels = (), prefix: str = "foliot") -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"{prefix}_{name}", help, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _counter(
    name: str, help: str, values: Mapping[Labels, float], labels: Labels = (), prefix: str = "foliot"
) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"{prefix}_{name}", help, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(
    name: str, help: str, values: Mapping[Labels, Histogram], labels: Labels = (), prefix: str = "foliot"
) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"{prefix}_{name}", help, labels=labels)
    for key, spread in values.items():
        bounds = [*(f"{bound:g}" for bound in spread.bounds), "+Inf"]
        family.add_metric(key, list(zip(bounds, accumulate(spread.counts), strict=True)), spread.sum)
    return family
