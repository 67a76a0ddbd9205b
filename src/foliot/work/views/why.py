"""Why a task is where it is: for whom it waits, since when, and what to type.

    explanation = why(story, Surroundings(workers, limits, …), now)

Every sentence is drawn from what is stored; nothing is guessed. A run that is due and that nobody has taken is held
against every worker, limit and open class, in the order in which a claim would ask them (store/queue/claims.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from foliot.common.durations import duration
from foliot.common.process import in_words
from foliot.common.text import counted, one_line
from foliot.engine.definition.run_scope import missing_in
from foliot.engine.explain.amounts import money, tokens
from foliot.engine.explain.why import Hint, RunLiveness
from foliot.engine.explain.why import explain as explain_run
from foliot.kernel.graph.advance import Reason, explain
from foliot.kernel.graph.events import TaskCancelled, TaskSucceeded
from foliot.kernel.run.spec import RunSpec
from foliot.store.database_clock import NOTABLE
from foliot.store.queue.limits import COOL_DOWN, ClassInfo, Limit
from foliot.store.queue.placement import Needs, fits, lacked_by, needs_of, starts_programs, unenforced
from foliot.store.queue.shares import share_left
from foliot.store.queue.workers import WorkerInfo
from foliot.work.tasks.advance import deadline_of
from foliot.work.views.story import MessageStory, RunRow, TaskStory
from foliot.work.worker.places import PROGRAMS

CauseKind: TypeAlias = Literal[
    "no_worker",
    "placement",
    "limit",
    "breaker",
    "capacity",
    "due",
    "backoff",
    "waiting",
    "held",
    "lapsed",
    "join",
    "ending",
    "failed",
    "withheld",
    "ended",
    "new",
    "missing",
]
WIDTH = 160
SHOWN = 20
WAITS = "It waits, and nothing of it goes on meanwhile."


class Cause(Struct, frozen=True, omit_defaults=True):
    """One reason; `depth` says under which of those before it stands."""

    kind: CauseKind
    text: str
    depth: int = 0
    agent: str = ""
    message_id: str = ""
    run_id: str = ""
    until: float | None = None


class TaskExplanation(Struct):
    """`causes` are the most telling first; `next` is what to type. `cost` is what it and its helpers have used."""

    task: str
    phase: str
    headline: str
    causes: list[Cause] = field(default_factory=list[Cause])
    next: list[Hint] = field(default_factory=list[Hint])
    cost: list[str] = field(default_factory=list[str])


class Surroundings(Struct, frozen=True):
    """The surroundings of a task: workers, limits (`running` under each), classes that fail, its frozen agents.

    `own` is how many runs of its namespace each worker holds, by identity; `shared`: there are other namespaces.
    """

    workers: Sequence[WorkerInfo] = ()
    limits: Sequence[Limit] = ()
    running: Mapping[tuple[str, str], int] = {}
    classes: Sequence[ClassInfo] = ()
    specs: Mapping[str, RunSpec] = {}
    own: Mapping[str, int] = {}
    shared: bool = False


def why(story: TaskStory, around: Surroundings, now: float) -> TaskExplanation:
    """The reasons of any state; never without one."""
    info = story.info
    told = TaskExplanation(info.name, info.phase, _headline(story, now), cost=cost_of(story))
    if story.state.ended is not None:
        _ended(story, told)
        _missing(around, told)
        return told
    reasons = explain(story.plan, story.state)
    told.causes += [_from_graph(reason, now) for reason in reasons if reason.kind in ("ending", "new")]
    live = story.live
    for each in live[:SHOWN]:
        for cause, hints in _run(each, story, around, now):
            told.causes.append(cause)
            told.next += [hint for hint in hints if hint not in told.next]
    if len(live) > SHOWN:
        told.causes.append(Cause("held", f"and {len(live) - SHOWN} more runs"))
    told.causes += [_from_graph(reason, now) for reason in reasons if reason.kind in ("join", "failed")]
    _missing(around, told)
    _deadline(story, told, now)
    name = _named(story)
    told.next.append(Hint(f"foliot task cancel {name}", "ends it"))
    return told


def cost_of(story: TaskStory) -> list[str]:
    """Describes what the task has used: its runs and, as a run pays for those below it, all helpers too."""
    usage = story.state.spent.usage()
    if not usage.total_tokens:
        return []
    ended = story.state.ended is not None
    estimated = ", estimated" if usage.source == "estimated" else ""
    price = f"{money(usage.cost_usd)}" if usage.cost_usd is not None else "no price is known"
    which = "helpers included" if ended else "helpers included, of the runs that have ended"
    return [f"{tokens(usage.total_tokens)}{estimated}, {price}; {which}"]


def _missing(around: Surroundings, told: TaskExplanation) -> None:
    """Says what was not there when the task was accepted, though something around its agents names it."""
    texts = dict.fromkeys(text for spec in around.specs.values() for text in missing_in(spec))
    told.causes += [Cause("missing", f"not there: {text}") for text in [*texts][:SHOWN]]
    if texts:
        told.next.append(Hint("foliot doctor", "shows everything that is named and not there"))


def _named(story: TaskStory) -> str:
    space = story.info.namespace
    return story.info.name if space == "default" else f"{story.info.name} -n {space}"


def _headline(story: TaskStory, now: float) -> str:
    info = story.info
    ago = duration(max(0.0, now - info.created_at))
    match info.phase:
        case "queued":
            return f"It is queued since {ago} ago; no worker has begun it."
        case "running":
            if story.live and all(each.asking or (each.run and each.run.phase == "waiting") for each in story.live):
                return WAITS
            agents = list(dict.fromkeys(each.message.to for each in story.live if each.run and each.run.held))
            return f"It is at work: {', '.join(agents)}." if agents else "It is under way, and nobody is at work on it."
        case "waiting":
            return WAITS
        case "succeeded":
            took = duration(max(0.0, (info.ended_at or now) - info.created_at))
            return f"It succeeded after {took} and {counted(len(story.messages), 'message')}."
        case "failed":
            return "It failed."
        case "cancelled":
            return "It was cancelled."
        case _:
            return f"It was dead-lettered in attempt {info.attempt}: given up, and kept for somebody to look at."


# --- live --------------------------------------------------------------------------------------------------------


def _run(
    each: MessageStory, story: TaskStory, around: Surroundings, now: float
) -> Iterator[tuple[Cause, Sequence[Hint]]]:
    row = each.run
    assert row is not None, "live messages have runs"
    agent = each.message.to
    if row.phase == "waiting" and not row.held:
        yield from _waiting(each, row, around, now)
    elif each.asking:
        yield from _asking(each, now)
    elif row.held or row.phase == "running":
        yield _held(each, row, around, now), [Hint(f"foliot trace {row.run_id}", f"what {agent} has done so far")]
    elif row.due_at is not None and row.due_at > now:
        retry = each.live.retry if each.live else None
        left = duration(row.due_at - now)
        text = f"{agent} is tried again in {left}"
        if retry is not None:
            text += f": attempt {retry.attempt} of {story.plan.retry.max_attempts} broke down"
        yield _cause("backoff", text, each, until=row.due_at), []
        if retry is not None:
            said = one_line(retry.message or retry.reason, WIDTH)
            yield _cause("backoff", said, each, depth=1), []
    else:
        yield from _due(each, row, story, around, now)


def _waiting(
    each: MessageStory, row: RunRow, around: Surroundings, now: float
) -> Iterator[tuple[Cause, Sequence[Hint]]]:
    agent, spec = each.message.to, around.specs.get(each.message.to)
    if each.live is None or spec is None:
        waits: dict[str, str] = row.summary.get("waiting") or {}
        yield _cause("waiting", f"{agent} waits: {waits.get('reason', 'for somebody')}", each), []
        return
    told = explain_run(each.live.trace, RunLiveness("waiting"), spec, now)
    yield _cause("waiting", f"{agent}: {told.headline}", each, until=row.due_at), told.next
    for line in told.chain:
        yield _cause("waiting", line, each, depth=1), []


def _asking(each: MessageStory, now: float) -> Iterator[tuple[Cause, Sequence[Hint]]]:
    for asking in each.asking:
        told = explain_run(asking.trace, RunLiveness("waiting"), asking.spec, now)
        text = f"{each.message.to} waits for run {asking.run_id}: {told.headline}"
        yield Cause("waiting", text, 0, each.message.to, each.message.id, asking.run_id), told.next
        for line in told.chain:
            yield Cause("waiting", line, 1, each.message.to, each.message.id, asking.run_id), []


def _held(each: MessageStory, row: RunRow, around: Surroundings, now: float) -> Cause:
    agent = each.message.to
    who = worker_name(row.worker, around.workers)
    since = each.live.claimed_at if each.live else None
    ago = f" since {duration(max(0.0, now - since))} ago" if since is not None else ""
    if row.lease_until is not None and row.lease_until < now:
        over = duration(now - row.lease_until)
        text = f"{agent} is held by {who}{ago}, whose lease ended {over} ago: the next worker that looks takes it over"
        return _cause("lapsed", text, each)
    off = next((w.clock_off for w in around.workers if w.identity == row.worker and abs(w.clock_off) > NOTABLE), 0.0)
    if off:
        who += f", whose clock is {duration(abs(off))} {'ahead of' if off > 0 else 'behind'} the store's"
    left = f", lease for {duration(row.lease_until - now)} more" if row.lease_until is not None else ""
    return _cause("held", f"{agent} is done by {who}{ago}{left}", each, until=row.lease_until)


def _due(
    each: MessageStory, row: RunRow, story: TaskStory, around: Surroundings, now: float
) -> Iterator[tuple[Cause, Sequence[Hint]]]:
    """A run that anybody could take: why has nobody?"""
    agent = each.message.to
    alive = [worker for worker in around.workers if worker.state(now) == "ready"]
    if not alive:
        yield (
            _cause("no_worker", f"{agent} is due, and no worker is alive", each),
            [Hint("foliot worker", "starts one here")],
        )
        lost = [worker.name for worker in around.workers if worker.state(now) == "lost"]
        if lost:
            yield _cause("no_worker", f"lost: {', '.join(lost)}", each, depth=1), []
        return
    fitting = [worker for worker in alive if fits(worker.offer, row.requirements)]
    if not fitting and (unread := [worker.name for worker in alive if worker.identity in _needs(row).not_by]):
        text = f"{agent} waits for a newer worker: {', '.join(unread[:5])} could not read what a newer version wrote"
        yield (
            _cause("placement", text, each),
            [Hint("foliot workers", "lists them; upgrade those, or start newer ones")],
        )
        return
    if not fitting:
        yield _cause("placement", f"{agent} needs a worker with {needs_text(row.requirements)}", each), []
        for worker in alive[:5]:
            yield _cause("placement", f"{worker.name} has {_has(worker, _needs(row))}", each, depth=1), []
        return
    able = [worker for worker in fitting if not lacked_by(worker.offer, row.requirements)]
    if not able:
        missing = "; ".join(
            f"{lacked_by(worker.offer, row.requirements)} is missing on worker {worker.name}" for worker in fitting[:5]
        )
        hint = Hint("foliot worker", "starts one where it is there; or install it, they try again by themselves")
        yield _cause("placement", one_line(f"{agent}: no worker can run it: {missing}", 3 * WIDTH), each), [hint]
        return
    fitting = able
    space, lane = story.info.namespace, story.info.lane
    at_work = around.running.get(("definition", f"{space}/{agent}"), 0)
    if row.max_running and at_work >= row.max_running:
        text = f"{agent} waits for a place: {at_work} of {row.max_running} runs are at work, its own max_concurrency"
        yield _cause("limit", text, each), [Hint(f"foliot describe agent {agent}", "shows its max_concurrency")]
        return
    names = {("namespace", space), ("agent", f"{space}/{agent}"), ("lane", f"{space}/{lane}")}
    for limit in around.limits:
        key = (limit.scope, limit.name)
        running = around.running.get(key, 0)
        if key in names and running >= limit.max_running:
            text = f"{agent} waits for a place: {running} of {limit.max_running} runs of {limit.scope} {limit.name}"
            hint = Hint("foliot workers limits", "shows what may run at once")
            yield _cause("limit", f"{text} are at work", each), [hint]
            return
    for known in around.classes:
        if known.key == row.class_key and known.opened_at is not None:
            left = max(0.0, known.opened_at + COOL_DOWN - now)
            then = f"one is tried in {duration(left)}" if left else "one is being tried"
            text = f"{agent} is held back: the last {known.failures} runs of its class failed; {then}"
            hint = Hint("foliot workers classes", "shows what keeps failing")
            yield _cause("breaker", text, each, until=known.opened_at + COOL_DOWN), [hint]
            return
    if all(worker.current >= worker.capacity for worker in fitting):
        full = ", ".join(f"{worker.name} {worker.current}/{worker.capacity}" for worker in fitting[:5])
        yield _cause("capacity", f"{agent} waits for a place: all workers are full ({full})", each), []
        return
    own = around.own
    if around.shared and not any(
        share_left(worker.capacity - worker.current, own.get(worker.identity, 0)) for worker in fitting
    ):
        at_share = [worker for worker in fitting if worker.current < worker.capacity]
        held = ", ".join(f"{worker.name} {own.get(worker.identity, 0)}/{worker.capacity}" for worker in at_share[:5])
        text = f"{agent} waits for a place: namespace {space} has its share of the workers ({held})"
        yield _cause("capacity", f"{text}, and the rest is kept free for others", each), []
        return
    if starts_programs(row.requirements) and all(worker.current >= PROGRAMS for worker in fitting):
        text = f"{agent} starts programs: a worker does {PROGRAMS} such runs at a time where its places follow the load"
        yield _cause("capacity", text, each), [Hint("foliot worker --capacity N", "does N of any sort")]
        return
    yield _cause("due", f"{agent} is due, and is taken at the next look of {fitting[0].name}", each), []


def _cause(kind: CauseKind, text: str, each: MessageStory, *, depth: int = 0, until: float | None = None) -> Cause:
    run_id = each.run.run_id if each.run else ""
    return Cause(kind, text, depth, each.message.to, each.message.id, run_id, until)


def _from_graph(reason: Reason, now: float) -> Cause:
    text = reason.text
    if reason.kind == "join" and reason.until is not None:
        text += f"; it gives up in {duration(max(0.0, reason.until - now))}"
    kind: CauseKind = "held" if reason.kind == "running" else reason.kind
    return Cause(kind, one_line(text, 3 * WIDTH), 0, reason.node, reason.message_id, until=reason.until)


def _deadline(story: TaskStory, told: TaskExplanation, now: float) -> None:
    until = deadline_of(story.command, story.state.since or story.info.created_at)
    if until is not None:
        left = until - now
        text = f"it is cancelled in {duration(left)} if it has not ended" if left > 0 else "its time is over"
        told.causes.append(Cause("ending", text, until=until))


# --- ended -------------------------------------------------------------------------------------------------------


def _ended(story: TaskStory, told: TaskExplanation) -> None:
    name = _named(story)
    end = story.state.ended
    for reason in explain(story.plan, story.state):
        cause = _from_graph(reason, 0.0)
        if reason.kind == "ended" and reason.message_id:
            lost = story.messages.get(reason.message_id)
            cause = replace(cause, agent=lost.message.to if lost else "", run_id=_run_of(lost))
        told.causes.append(cause)
        if reason.kind in ("failed", "ended") and (lost := story.messages.get(reason.message_id)) is not None:
            tries = counted(lost.attempts, "attempt")
            text = f"message {reason.message_id}, {tries}"
            told.causes.append(Cause("failed", text, 1, lost.message.to, reason.message_id, _run_of(lost)))
            if (run_id := _run_of(lost)) and not any(run_id in hint.command for hint in told.next):
                told.next.append(Hint(f"foliot why {run_id}", f"the story of {lost.message.to}"))
    told.next.insert(0, Hint(f"foliot task trace {name}", "every run with its steps and timings"))
    if not isinstance(end, TaskSucceeded):
        what = "goes on behind what had succeeded, as a new attempt"
        told.next.append(Hint(f"foliot task retry {name}", what))
        if not isinstance(end, TaskCancelled) and story.state.lost:
            told.next.append(Hint(f'foliot task retry {name} --edit MESSAGE="…"', "the same with another message"))


def _run_of(each: MessageStory | None) -> str:
    if each is None:
        return ""
    return each.run.run_id if each.run else each.ended.run_id if each.ended else ""


# --- workers -----------------------------------------------------------------------------------------------------


def worker_name(identity: str | None, workers: Sequence[WorkerInfo]) -> str:
    """Returns the name of the worker that holds a lease; the process and its machine when it is not listed."""
    for worker in workers:
        if worker.identity == identity:
            return worker.name
    return in_words(identity) if identity else "somebody"


def _needs(row: RunRow) -> Needs:
    return needs_of(row.requirements or "{}") or Needs()


def needs_text(requirements: str) -> str:
    """`region=eu, gpu, model=x, label tier=fast, isolation process, process+memory`."""
    needs = needs_of(requirements or "{}")
    if needs is None:
        return "requirements that cannot be read"
    parts = [f"region={needs.region}"] if needs.region else []
    parts += ["gpu"] if needs.gpu else []
    parts += [f"model={needs.model}"] if needs.model else []
    parts += [f"label {key}={value}" for key, value in needs.labels.items()]
    parts += [f"isolation {', '.join(needs.isolation)}"] if needs.isolation else []
    return ", ".join(parts) or "nothing special"


def _has(worker: WorkerInfo, needs: Needs) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in worker.labels.items())
    parts = [f"region={worker.region or '-'}", "gpu" if worker.gpu else "no gpu"]
    parts.append(f"models {', '.join(worker.models)}" if worker.models else "all models")
    parts += [f"labels {labels}"] if labels else []
    if missing := unenforced(worker.offer, needs):
        parts.append(f"cannot enforce {', '.join(missing)}")
    return ", ".join(parts)
