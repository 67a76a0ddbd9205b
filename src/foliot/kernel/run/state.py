"""The state of one run: what the fold of its journal knows.

It is mutable and owned by one driver, because a run of ten steps is folded thousands of times a second and copying a
transcript for each fact would cost more than everything else. Purity here means: the same facts give the same state,
and nothing but `loop.apply` changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import Media, Message, ToolResult, ToolSpec
from foliot.kernel.run.budget import Spent
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    CancelRequested,
    ContractRule,
    HookDecided,
    InputReceived,
    ModelCut,
    ModelDelayed,
    QuestionAsked,
    RunCreated,
    RunRetried,
    RunWaiting,
    Terminal,
    ToolFinished,
    ToolUnknown,
    Unsettled,
    WorkspaceSnapshot,
)
from foliot.kernel.run.past import CallIds, Past
from foliot.kernel.run.spec import RunSpec, ToolRule
from foliot.kernel.tokens import estimate_text, estimate_tools

# An empty set takes a fifth of a KiB, and most runs keep most of theirs empty.
_NONE: Final[frozenset[str]] = frozenset()
_NO_RULES: Final[frozenset[ContractRule]] = frozenset()
_NO_DOUBTS: Final[Mapping[bytes, Unsettled]] = MappingProxyType({})


def names_file(message: Message) -> bool:
    """Whether a message names a file by its digest, so that somebody has to bring the content to a question."""
    for part in message.parts:  # noqa: SIM110 - asked of every message, and a generator costs more than the loop
        if isinstance(part, Media) and part.blob is not None:
            return True
    return False


@lru_cache(maxsize=1024)
def with_name(names: frozenset[str], name: str) -> frozenset[str]:
    """Returns the names and one more: the very same set for all runs that call the same tools in the same order."""
    return names | {name}


# Phases are plain strings and not an Enum: they are compared several times for every fact, and an Enum member costs
# 0.1 µs to name and as much to hash.

# Where a run is. Derived from the data, so it cannot drift from it. Waiting and ending lie across these.
Phase: TypeAlias = Literal[
    "new",  # before run.created
    "queued",  # no worker holds it
    "ready",  # next: ask the model, or finish
    "thinking",  # the model was asked
    "acting",  # calls of this step have no result yet
    "ended",
]

# Where a call is. The moves are in rules.py.
CallPhase: TypeAlias = Literal[
    "requested",  # to be started, or answered by the kernel
    "parked",  # waits for a person: for an approval, or for the answer to its question
    "running",  # started by the attempt that holds the run
    "unknown",  # it may have acted, here or as an earlier call: a person must say
    "done",
]


class Call(Struct, gc=False, eq=False):
    """One call of the current step.

    `verdict` is an answer the kernel itself gives, until it is recorded. `twin` is an earlier call of the same step
    with the same arguments, whose outcome decides about this one. `unknown` is what was last recorded of an outcome
    that nobody knows; `earlier` is the same call made before, which may have acted and is what this one stands for.
    """

    id: str
    name: str
    arguments: str
    rule: ToolRule | None
    phase: CallPhase = "requested"
    attempts: int = 0  # how often it was started
    effects_before: int = 0  # `State.effects` when it was last started
    bad: bool = False  # the model must write it differently
    edited: bool = False
    ends_run: bool = False
    approval: ApprovalRequested | None = None
    grant: ApprovalDecided | None = None
    question: QuestionAsked | None = None
    result: ToolResult | None = None
    verdict: ToolFinished | None = None
    violation: ContractRule | None = None
    signature: bytes | None = None
    twin: Call | None = None
    unknown: ToolUnknown | None = None
    doubt: str = ""  # why an attempt of it may have acted: a reason as in `ToolUnknown`; blank once somebody has said
    cleared: bool = False  # a person said that it had not taken effect
    repeats: int = 0  # how often it was started again because nobody knew how it had ended
    earlier: Unsettled | None = None

    @property
    def effect(self) -> str:
        return self.rule.effect if self.rule else "read"

    @property
    def awaited(self) -> ApprovalRequested | QuestionAsked | None:
        """The open question to a person while the call is parked. A question comes after the approval to ask it."""
        return (self.question or self.approval) if self.phase == "parked" else None

    @property
    def succeeded(self) -> bool:
        return self.result is not None and self.result.error is None


class FinalAnswer(Struct):
    """A final answer under examination. `cut`: the model ran into its output limit. `tool`: it is a tool's result."""

    text: str
    cut: bool = False
    empty: bool = False
    tool: bool = False
    accepted: bool = False
    value: Any = None


class RunEnding(Struct, frozen=True):
    """How the run will end once each of its calls has a result. With a `notice` that is its answer."""

    cancelled: CancelRequested | None = None
    code: str = ""
    reason: str = ""
    message: str = ""
    notice: str = ""


class State:
    """The state of a run: the fold of its events.

    `now` is the time of the newest fact, the only clock in the kernel.
    """

    __slots__ = (
        "answer",
        "asking",
        "asks",
        "attempt",
        "bad_steps",
        "base",
        "began_at",
        "begun",
        "busy",
        "busy_since",
        "cache",
        "cached_at",
        "call_ids",
        "called",
        "calls",
        "compact_asked",
        "compacted",
        "counts_tokens",
        "created",
        "cut",
        "delayed",
        "doubts",
        "earlier",
        "effects",
        "ended",
        "ending",
        "epoch",
        "files",
        "final",
        "folder_kept",
        "folder_life",
        "folder_refused",
        "fruitless",
        "held",
        "hooked",
        "inputs",
        "interrupted",
        "known_tokens",
        "link",
        "lost_asks",
        "model_failures",
        "new_tokens",
        "notes",
        "now",
        "open_calls",
        "output_repairs",
        "overflow",
        "paid",
        "past",
        "paused",
        "pauses",
        "ratio",
        "request_tokens",
        "retried",
        "retry_at",
        "rules",
        "run_change",
        "run_id",
        "said",
        "seq",
        "spec",
        "spent",
        "started_at",
        "step_change",
        "stood_for",
        "summarised",
        "taken",
        "told_by",
        "tools",
        "tools_done",
        "transcript",
        "unsettled",
        "waited",
        "waiting",
        "waiting_since",
        "waived",
        "was_delayed",
        "withheld",
        "worker",
        "worker_name",
        "workspace",
    )

    def __init__(self, spec: RunSpec, run_id: str, history: Iterable[Message] = ()) -> None:
        self.spec = spec
        self.run_id = run_id
        known = _kept.get(id(spec))
        self.rules, self.tools, size, _ = known[1:] if known is not None and known[0] is spec else _read(spec)
        self.transcript: list[Message] = list(history)
        # Whether any message of the conversation may name a file by its digest: nothing takes this back.
        self.files = any(map(names_file, self.transcript))
        self.past: Past | None = None  # until it is created: what was said before, where that is not in the transcript
        self.seq = 0
        self.link = b""  # of the newest event, in the chain of the journal; kept for whoever writes the next
        self.now = 0.0
        self.created: RunCreated | None = None
        self.said: tuple[Message, ...] = ()  # what it was begun with, as hooks left it
        self.earlier = 0  # so many messages at the head of the transcript are not of this run
        self.attempt = 0  # a claim alone begins none: a pause, an approval or a moved lease is no attempt
        self.fruitless = 0  # attempts in a row, this one included, that have brought nothing so far
        self.held = False
        self.worker = ""  # who took it up last
        self.epoch = 0  # under which
        self.worker_name = ""
        self.workspace: WorkspaceSnapshot | None = None  # the newest files of the run; None for an empty folder
        self.folder_kept = ""  # digest of `data/` that is in the folder of its user; blank before anything was kept
        self.folder_life = ""  # of the folder that has it
        self.folder_refused = ""  # digest of one that could not be
        self.retried: RunRetried | None = None
        self.busy = 0  # how often in a row it was given back because the model was busy
        self.busy_since: float | None = None  # since when the model has been nothing but busy
        self.started_at: float | None = None
        self.began_at = 0.0  # when this attempt began
        self.waited = 0.0
        self.waiting: RunWaiting | None = None
        self.waiting_since = 0.0
        self.ending: RunEnding | None = None
        self.ended: Terminal | None = None
        # the step
        self.asking = False
        self.asks = 0
        self.calls: list[Call] = []
        self.open_calls = 0
        self.call_ids = CallIds()
        self.called: frozenset[str] = _NONE  # tools that the model has asked for
        self.begun = ""  # the text of an answer that the model paused in
        self.pauses = 0  # of that answer
        self.answer: FinalAnswer | None = None
        # What most runs never have, or seldom, is a tuple, of which all have the same empty one.
        self.notes: tuple[Message, ...] = ()  # what the kernel tells the model at the next boundary
        self.inputs: tuple[InputReceived, ...] = ()
        self.taken: tuple[str, ...] = ()  # ids of the inputs that have entered the transcript
        self.interrupted = False
        # counters and memory of the rules
        self.spent = Spent()
        self.final = False  # the next answer is the last one, without tools
        self.bad_steps = 0
        self.output_repairs = 0
        self.lost_asks = 0  # questions whose process ended before it was recorded what came of them
        self.model_failures = 0
        self.retry_at: float | None = None
        self.delayed: ModelDelayed | None = None  # the model may not be asked yet
        self.was_delayed = False  # and so the run may have a place in a line, at this step
        self.paused: BudgetExceeded | None = None  # a declared budget has no room: nothing that costs is begun
        self.overflow = False
        self.compacted = False  # or found to be no shorter, before the step that is next
        self.compact_asked = False
        self.base = ""  # the turn at which reading its conversation begins; blank for the first
        self.summarised = 0  # so many messages of the conversation stand in the summary at the head of the transcript
        self.cut: ModelCut | None = None  # what people saw of the last answer, if it has not come and is not asked for
        self.paid: frozenset[str] = _NONE  # delegated runs whose account is in `spent`
        self.effects = 0  # calls with a result that may have changed something
        self.tools_done: frozenset[str] = _NONE
        self.told_by: frozenset[str] = _NONE  # who has answered, steered it, or put other arguments into a call
        self.waived: frozenset[ContractRule] = _NO_RULES
        # What calls have given, by their signatures; and `effects` as they were when those began, where not 0.
        self.cache: dict[bytes, ToolResult] = {}
        self.cached_at: dict[bytes, int] | None = None
        # Calls that may have acted, by tool and arguments: the same call is not made a second time beside them.
        self.unsettled: Mapping[bytes, Unsettled] = _NO_DOUBTS
        self.stood_for: frozenset[str] = _NONE  # keys of calls of other runs that calls of this one were held for
        self.doubts = 0  # grows with each call that comes into doubt, for whoever keeps a list of them
        # what hooks have decided: points with acts and what became of them, and of the questions
        self.hooked: dict[str, str] = {}
        self.withheld: tuple[HookDecided, ...] = ()  # what no model may read once the run has ended by it
        self.run_change: HookDecided | None = None
        self.step_change: HookDecided | None = None
        # The size of the next request: what the provider counted up to its last answer, and an estimate of what is new,
        # corrected by how far that of the last request was off. Counted only when something depends on it.
        self.counts_tokens = spec.limits.max_tokens is not None or spec.compaction_rules.max_tokens > 0
        self.known_tokens = 0
        self.new_tokens = size if self.counts_tokens else 0
        self.request_tokens = self.new_tokens  # the same estimate of all of the request
        self.ratio = 1.0

    def become(self, other: State) -> None:
        """Is the other one from now on: a fold of the same run up to another event."""
        for name in State.__slots__:
            setattr(self, name, getattr(other, name))

    @property
    def tokens(self) -> int:
        """Tokens of the next request, as well as is known now."""
        return self.known_tokens + round(self.new_tokens * self.ratio)

    @property
    def phase(self) -> Phase:
        if self.ended is not None:
            return "ended"
        if not self.held:
            return "queued" if self.created is not None else "new"
        if self.asking:
            return "thinking"
        return "acting" if self.calls else "ready"

    @property
    def identity(self) -> Identity:
        """The identity on whose behalf the run acts. Older journals do not have it; their spec may have a name."""
        if self.created is not None and self.created.identity != NOBODY:
            return self.created.identity
        user = self.spec.extra.get("user", "")
        return Identity(str(user)) if user else NOBODY

    @property
    def folder_base(self) -> str:
        """The digest of `data/` that the run has changed since: what it brought into the folder last, or began with."""
        snapshot, created = self.workspace, self.created
        if self.folder_kept or snapshot is None or snapshot.data is None:
            return self.folder_kept
        first = None if created is None or created.workspace is None else created.workspace.data
        return snapshot.data.begun if first is None else first.now

    @property
    def folder_due(self) -> bool:
        """Whether the run has changed `data/` in a way that is not in the folder of its user yet."""
        data = None if self.workspace is None else self.workspace.data
        return data is not None and data.now not in (self.folder_base, self.folder_refused)

    @property
    def step(self) -> int:
        """The number of the step that is under way, or next."""
        return self.spent.steps if self.calls else self.spent.steps + 1

    @property
    def deadline(self) -> float | None:
        """The end of this attempt's time limit.

        Waiting for a person, an input, capacity, a budget, its turn at a model or more to be said does not use it up.
        """
        if self.started_at is None or (limit := self.spec.limits.max_seconds) is None:
            return None
        return self.began_at + limit + self.waited

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that whoever claims the run now goes on with, or begins."""
        begins = self.attempt == 0 or (self.retried is not None and self.retried.counted)
        return self.attempt + 1 if begins else self.attempt

    def call(self, call_id: str) -> Call | None:
        for call in self.calls:
            if call.id == call_id:
                return call
        return None

    def offers(self, name: str) -> bool:
        """Whether the model was offered a tool with the question whose answer is worked on: hooks may leave some out.

        What was not offered is not run.
        """
        change = self.step_change
        if change is not None and change.tools is not None and change.act == str(self.spent.steps):
            return name in self.rules and name in change.tools
        return name in self.rules

    def end(self, code: str, reason: str, message: str, *, notice: str = "") -> None:
        """Take note that the run must fail, or end with a notice; the first reason stands."""
        if self.ending is None:
            self.ending = RunEnding(None, code, reason, message, notice)

    def settled_messages(self) -> tuple[Message, ...]:
        """The transcript up to the last boundary: no call in it is without its result. What a fork starts from."""
        return tuple(self.transcript[:-1] if self.calls else self.transcript)


# What is the same for all runs of a spec: its rules by name, the tools as models see them, the size of its prompt, and
# the names of its tools.
# Thousands of runs have the same spec, so the last ones are kept, by identity.
_MOST_KEPT: Final = 256
_SpecParts: TypeAlias = tuple[Mapping[str, ToolRule], tuple[ToolSpec, ...], int, frozenset[str]]
_kept: dict[int, tuple[RunSpec, Mapping[str, ToolRule], tuple[ToolSpec, ...], int, frozenset[str]]] = {}


def tool_names(spec: RunSpec) -> frozenset[str]:
    """The names of the tools of a spec: one set for all of its runs."""
    known = _kept.get(id(spec))
    return (known[1:] if known is not None and known[0] is spec else _read(spec))[3]


def _read(spec: RunSpec) -> _SpecParts:
    # Sorted by name: the same tools make the same prompt prefix, whatever the order of their declaration.
    rules = {rule.name: rule for rule in sorted(spec.tools, key=lambda rule: rule.name)}
    tools = tuple(rule.spec for rule in rules.values())
    size = estimate_text(spec.system) + estimate_tools(tools)
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept), 0), None)
    names = frozenset(rules)
    _kept[id(spec)] = spec, rules, tools, size, names
    return rules, tools, size, names


OwnerKind: TypeAlias = Literal["worker", "person", "timer", "input", "capacity", "budget", "nobody"]


class Owner(Struct, frozen=True):
    """The party that moves the run next: its `kind`, `what` it has to do, and `until` when, if a timer is set."""

    kind: OwnerKind
    what: str
    until: float | None = None


def owner_of(state: State) -> Owner:
    """There is always one, unless the run has ended: no state without a worker, a timer or a person."""
    match state.phase:
        case "ended":
            return Owner("nobody", "ended")
        case "new":
            return Owner("nobody", "not created")
        case "queued" if state.retried is not None and state.retried.due is not None:
            return Owner("timer", "retry", state.retried.due)
        case "queued":
            return Owner("capacity", "claim")
        case phase if state.waiting is None:
            return Owner("worker", phase)
        case _:
            waiting = state.waiting
            assert waiting is not None
            return Owner(waiting.owner, waiting.reason, waiting.until)
