"""The vocabulary of the journal: every fact that can be recorded of a run, in one file.

Written by:  the engine's driver, under the lease of the run; decisions and inputs also by whoever received them.
Read by:     `loop.fold` (resume, replay, fork), and everyone who shows something: traces, streams, audit, metering.
Promise:     what was once written is decoded for ever. A field may be added with a default, if a reader that does not
             know it is not misled. Any other change makes a new version: the struct takes the tag `type@2`, the old
             one moves to codec.py with a function that turns it into the new one. Names never change.

Facts are in the past tense. The time of a fact stands beside it in the journal, because it is the shell's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from foliot.kernel.arguments import arguments_digest, parse_object
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import Media, Message, ModelResponse, Number, ToolResult, Usage
from foliot.kernel.run.budget import LimitName

# "model_limit": its turn at a model that may only be asked so often. "model_retry": the next try of one that failed.
# "collecting": more may be said that is answered together with what was.
WaitReason: TypeAlias = Literal[
    "approval", "unknown_effect", "model_retry", "model_limit", "collecting", "input", "capacity", "budget"
]
# "budget": the next window of a budget, or whoever raises its limit.
WaitOwner: TypeAlias = Literal["person", "timer", "input", "capacity", "budget"]
InputMode: TypeAlias = Literal["followup", "collect", "steer", "steer-backlog", "interrupt", "queue"]
Rejection: TypeAlias = Literal["empty", "truncated", "required_tools", "markers", "schema"]
ContractRule: TypeAlias = Literal["undeclared_tool", "duplicate_call", "required_tools", "markers"]
Synthetic: TypeAlias = Literal[
    "invalid",
    "duplicate",
    "denied",
    "interrupted",
    "cancelled",
    "budget",
    "contract",
    "decided",
    "ended",
    "answered",
    "unknown",
    "blocked",
]
# Where hooks are asked: before an act, which they may change or refuse, and after it.
HookPoint: TypeAlias = Literal[
    "before_run",
    "after_run",
    "before_message",
    "after_message",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "before_compaction",
    "after_compaction",
]


# Why a conversation was compacted: it grew past its threshold, did not fit, or somebody asked for it.
CompactionCause: TypeAlias = Literal["size", "overflow", "asked"]
# Why the text of an answer ended before its end: the model failed, the run was stopped, somebody interrupted.
CutReason: TypeAlias = Literal["failed", "stopped", "interrupted"]

# Why nobody knows how a call ended. "broken": it came to an end, and what stands around it lost the result.
UnknownReason: TypeAlias = Literal[
    "timeout", "cancelled", "lease_lost", "connection_lost", "process_died", "broken", "interrupted"
]


class Fact(Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of all events. JSON cannot hold a circle, so they are left out of the garbage collector."""


# --- the run -----------------------------------------------------------------------------------------------------


class Unsettled(Struct, frozen=True, gc=False, omit_defaults=True):
    """A call that may have acted, and of which nobody has said whether it did. `arguments` are canonical JSON.

    `key` is the idempotency key under which it was made: whoever makes it again does so under the same.
    """

    tool: str
    arguments: str
    key: str
    reason: str = ""


# How calls of runs that begin now are compared, see `RunCreated.equality`.
EQUALITY: Final = 3


class PastEffect(Struct, frozen=True, omit_defaults=True):
    """A call that is more than a read, and that a run has made: a fork from before it may make it a second time.

    `arguments` are those that it was made with, for people: secrets are masked, long ones are cut. `digest` is that of
    all of them. `outcome` is what came of it; `result` is the beginning of its result or of its failure.
    """

    run_id: str
    step: int
    call_id: str
    tool: str
    arguments: str
    digest: str
    effect: str
    outcome: Literal["done", "failed", "unknown"]
    result: str = ""

    @property
    def words(self) -> str:
        """The outcome for people."""
        how = {"done": "result", "failed": "it failed", "unknown": "its outcome is unknown"}[self.outcome]
        return f"{how}: {self.result}" if self.result else how


class Fork(Struct, frozen=True, omit_defaults=True):
    """The origin of a forked run: it branched off behind `seq` of run `run_id`, before its `step`.

    `effects` are the calls that the original, and the runs below it, made from there on until the fork began, the
    oldest first.
    """

    run_id: str
    seq: int
    effects: tuple[PastEffect, ...] = ()
    step: int = 0


def describe_made(effects: Sequence[PastEffect], tool: str, arguments: str) -> str:
    """Says what the original of a fork has done already with the tool of a call; blank when that is nothing."""
    made = [effect for effect in effects if effect.tool == tool]
    if not made:
        return ""
    digest = arguments_digest(parse_object(arguments)[0] or {})
    same = [effect for effect in made if effect.digest == digest]
    last, count = (same or made)[-1], len(same or made)
    call = "this call" if same else f"{tool} with {last.arguments or 'no arguments'}"
    often = "" if count == 1 else f" {count} times, the last time"
    return f"the original run {last.run_id} has already made {call}{often}: {last.words}"


class FolderFiles(Struct, frozen=True, gc=False, omit_defaults=True):
    """The folder of an agent and a user as a run has it in `data/`, by digests of its tree.

    `owner` names the folder without saying whose it is, and `life` tells it from one that was deleted before; blank
    when there was none yet. `begun` is what the run began with, `now` what is in `data/` at the moment of a snapshot,
    of which `files` and `size` count as in `WorkspaceSnapshot`.
    """

    owner: str
    begun: str
    now: str
    life: str = ""
    files: int = 0
    size: int = 0


class WorkspaceSnapshot(Struct, frozen=True, gc=False, omit_defaults=True):
    """The files of a run at one moment: `digest` is that of its root folder, in the content of the journal.

    `number` grows with every snapshot of a run. Calls that run side by side may be recorded in another order than
    their snapshots were taken in, so the highest number is the newest. `files` counts folders and links too; `size` is
    in bytes. `data` is the folder of its user in it; None before the run has come to it.
    """

    digest: str
    number: int
    files: int = 0
    size: int = 0
    data: FolderFiles | None = None


class RunCreated(Fact, frozen=True, tag="run.created"):
    """Pins the run. `spec` is the digest of its `RunSpec`; `definitions` are digests of the resources behind it.

    `history` is the digest of the messages before `input` (an earlier conversation, or a fork's past), if any.
    `trace` is the context that the run is traced under, see traces.py; blank when it is not. `identity` is on whose
    behalf it acts. A delegate has that of the run above it, and the `task`, `system` and `template` (the Task that its
    task was made after); `ancestors` are the agents above it, the outermost first. `root` is what its tokens are
    counted under together with others: the uid of its task, or the run that began it all; blank for one of its own.
    `after` is the run whose conversation it goes on with: its messages, `before` in number, are read from the journals
    of the turns before and stored nowhere else. `session` is the id of the session that it is a turn of, `turn` its
    number there, and `inputs` are the arrival numbers of what it answers. `base` is the turn at which reading of that
    conversation begins, `summarised` how many of its messages a summary stands for, and `sized` about how many tokens
    it has, by the provider's own count. `compacts`: the run asks no question and only summarises.
    `unsettled` are calls of the run that it follows (a fork, another try of a task) which may have acted.
    `equality` says which calls are the same. 1: arguments that mean the same to the tool, and a call that a person
    has said to have happened counts as made; 2: also, a repeat is refused where `duplicates` is "deny", and a contract
    that only watches sends nothing back; 3: also, inputs that wait for the end of a turn are answered one by one, and
    an interrupt ends what is under way. 0, in journals of earlier versions: arguments of the same text.
    `workspace` is what the folder of the run begins with: a fork has that of the original.
    `missing` says what was declared around the run and is not there: a rule about a tool that does not exist.
    `past` is of a run below a fork: the effects of the original, which this run may have a second time.
    """

    agent: str
    spec: str
    input: tuple[Message, ...] = ()
    namespace: str = "default"
    definitions: dict[str, str] = {}
    history: str | None = None
    fork: Fork | None = None
    task: str = ""
    parent: str = ""
    depth: int = 0
    trace: str = ""
    identity: Identity = NOBODY
    system: str = ""
    ancestors: tuple[str, ...] = ()
    template: str = ""
    root: str = ""
    unsettled: tuple[Unsettled, ...] = ()
    equality: int = 0
    workspace: WorkspaceSnapshot | None = None
    after: str = ""
    before: int = 0
    session: str = ""
    turn: int = 0
    inputs: tuple[int, ...] = ()
    base: str = ""
    summarised: int = 0
    sized: int = 0
    compacts: bool = False
    missing: tuple[str, ...] = ()
    past: tuple[PastEffect, ...] = ()

    @property
    def past_effects(self) -> tuple[PastEffect, ...]:
        """Lists the effects of the original that this run, a fork or below one, may have again."""
        return self.past if self.fork is None else self.fork.effects


class RunClaimed(Fact, frozen=True, tag="run.claimed"):
    """A worker took the run. What an earlier attempt had under way is over, whether or not it took effect.

    `worker` is the process that holds it, `name` what the worker is called; a run outside of tasks has none.
    `released`: the one that holds it in the journal before had released it in order, and has not died or lost it.
    """

    attempt: int
    worker: str = ""
    epoch: int = 0
    name: str = ""
    released: bool = False


class RunWaiting(Fact, frozen=True, tag="run.waiting"):
    """The run waits until `owner` acts. `calls` are the ids it concerns; `until` is when to look again."""

    reason: WaitReason
    owner: WaitOwner
    calls: tuple[str, ...] = ()
    until: Number | None = None
    message: str = ""


class RunResumed(Fact, frozen=True, tag="run.resumed"):
    """The wait is over. Recorded by the kernel's decision, or by the shell when the timer of the wait has gone off."""

    reason: str = ""


class RunRetried(Fact, frozen=True, tag="run.retried"):
    """An attempt broke down for a reason outside the run; it goes on at `due`. The journal goes on.

    `counted`: as another attempt. Without it the same one goes on: the model was busy, which is nobody's failure.
    """

    attempt: int
    reason: str
    message: str = ""
    due: Number | None = None
    counted: bool = True


class RunSucceeded(Fact, frozen=True, tag="run.succeeded"):
    """`value` is the structured output when the run has an output schema."""

    output: str
    value: Any = None
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()


class RunFailed(Fact, frozen=True, tag="run.failed"):
    """`code` is for programs, `reason` for policy and metrics, `message` for people."""

    code: str
    reason: str
    message: str
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()


class RunCancelled(Fact, frozen=True, tag="run.cancelled"):
    by: str = ""
    reason: str = ""
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()


class RunDeadLettered(Fact, frozen=True, tag="run.dead_lettered"):
    """Given up from outside, after too many attempts. The one end that may leave calls without a result."""

    reason: str
    message: str = ""


class CancelRequested(Fact, frozen=True, tag="cancel.requested"):
    by: str = ""
    reason: str = ""


# --- a step: one answer, and the calls it asked for --------------------------------------------------------------


class StepStarted(Fact, frozen=True, tag="step.started"):
    """The model is about to be asked. Recorded again when a step is asked again after a crash or a failure.

    `note` is what it is told of its steps with this question, and stays in the transcript.
    """

    step: int
    attempt: int = 1
    note: str = ""


class ModelResponded(Fact, frozen=True, tag="model.responded"):
    """The answer as the provider gave it. `seconds` is how long it took.

    `wasted` is what attempts at it had used before, that failed or were cut: retries, and endpoints that fell back.
    `workspace` is the folder of the run as a program left it that stands in for the model; None when nothing changed.
    """

    step: int
    response: ModelResponse
    seconds: Number | None = None
    wasted: Usage = Usage()
    workspace: WorkspaceSnapshot | None = None


class ModelFailed(Fact, frozen=True, tag="model.failed"):
    """The model gave no usable answer, after the shell's own retries and fallbacks.

    `kind` is the gateway's ("auth", "request", "rate_limit", "overloaded", "timeout", "garbage"); "context_overflow"
    asks for a compaction when the spec allows one. "interrupted": someone said something that could not wait for it.
    """

    step: int
    kind: str
    message: str
    retryable: bool = False
    retry_after: Number | None = None
    status: int | None = None
    provider: str = ""
    usage: Usage = Usage()


class ModelDelayed(Fact, frozen=True, tag="model.delayed"):
    """The model was not asked: the limit on how often it is has no room before `until`. The run keeps its place there.

    That is no failure. `endpoint` is whose limit it is. Where another was asked before and `failed` (the kind of it),
    that was a try like any other, and `usage` is what it took.
    """

    step: int
    until: Number
    message: str = ""
    endpoint: str = ""
    usage: Usage = Usage()
    failed: str = ""


class ModelCut(Fact, frozen=True, tag="model.cut"):
    """People saw `text` while it was written, and the answer it was to become did not come.

    When the question is not asked again, it stands in the conversation as an answer that was cut off.
    """

    step: int
    text: str
    reason: CutReason = "failed"


class OutputRejected(Fact, frozen=True, tag="output.rejected"):
    """A final answer that cannot be accepted; `feedback` is what the model is told before it is asked again."""

    reason: Rejection
    feedback: str
    problems: tuple[str, ...] = ()


class OutputAccepted(Fact, frozen=True, tag="output.accepted"):
    """The answer is JSON of the wanted shape; `value` is what it says."""

    value: Any


class ToolStarted(Fact, frozen=True, tag="tool.started"):
    """The tool is about to act. `key` is the idempotency key, the same in every attempt of this call.

    `standing` is the standing grant that it rests on, and `granted_by` who gave that; empty when nobody had to agree.
    """

    call_id: str
    name: str
    key: str
    attempt: int = 1
    standing: str = ""
    granted_by: str = ""


class ToolFinished(Fact, frozen=True, tag="tool.finished"):
    """The one result of a call. `synthetic` says why the kernel answered in the tool's place.

    `ends_run` is set when the result is the answer of the run, as its tool or its agent declares. `usage` is what
    delegated runs have spent, and `runs` what each of them has: a run that several calls report is paid for once.
    `contract` is the version of the tool contract by which it was called; blank when nothing was called. `workspace`
    is the folder of the run as the call left it; None when it changed nothing there. `hooks` are those that put another
    result in the place of the tool's.
    """

    result: ToolResult
    seconds: Number | None = None
    synthetic: Synthetic | None = None
    ends_run: bool = False
    usage: Usage | None = None
    runs: dict[str, Usage] = {}
    contract: str = ""
    workspace: WorkspaceSnapshot | None = None
    hooks: tuple[str, ...] = ()


class ToolUnknown(Fact, frozen=True, tag="tool.unknown"):
    """The call was started, and no result came of it: it may have acted. What follows is its tool's `on_unknown`.

    `until` is when whatever made it had certainly ended; None: nobody can say until when it might act (a function that
    did not stop, a process that may wake up, a server). What was sent by then may be acted on later. `usage`, `runs`
    and `workspace` are those of `ToolFinished`.
    """

    call_id: str
    reason: UnknownReason
    message: str = ""
    until: Number | None = None
    seconds: Number | None = None
    usage: Usage | None = None
    runs: dict[str, Usage] = {}
    workspace: WorkspaceSnapshot | None = None


class ToolHeld(Fact, frozen=True, tag="tool.held"):
    """The call is not made: the same call of another run of the family, `run_id`, may have acted. It stands for that.

    What follows is its tool's `on_unknown`, as if this run itself had made the call.
    """

    call_id: str
    earlier: Unsettled
    run_id: str = ""


class ApprovalRequested(Fact, frozen=True, tag="approval.requested"):
    """The call is parked until someone decides. `digest` names the arguments the grant will be bound to.

    `required` different people must approve; with `four_eyes` none of them is who the run acts for.
    """

    call_id: str
    approval_id: str
    tool: str
    digest: str
    reason: str = ""
    approvers: tuple[str, ...] = ()
    expires_at: Number | None = None
    required: int = 1
    four_eyes: bool = False


class ApprovalDecided(Fact, frozen=True, tag="approval.decided"):
    """`arguments` is the JSON text to run instead when the decision is "edit"."""

    call_id: str
    decision: Literal["approve", "deny", "edit", "expired"]
    by: str = ""
    reason: str = ""
    arguments: str | None = None
    approval_id: str = ""


class QuestionAsked(Fact, frozen=True, tag="question.asked"):
    """The call is parked until someone answers: what is said becomes its result. Nothing of the tool is run.

    With `choices` the answer is one of them. When nobody answers until `expires_at`, the answer is `default`, if any.
    `client`: it is not a person who is asked, but the program that began the run, which makes the call itself.
    """

    call_id: str
    tool: str
    question: str
    choices: tuple[str, ...] = ()
    default: str | None = None
    expires_at: Number | None = None
    client: bool = False


class QuestionAnswered(Fact, frozen=True, tag="question.answered"):
    """`answer` is None when nobody answered in time and the question has no default. `late`: it is the default.

    `files` are images and documents that come with it: the result of a tool that a client has called itself.
    """

    call_id: str
    answer: str | None
    by: str = ""
    late: bool = False
    files: tuple[Media, ...] = ()


class UnknownDecided(Fact, frozen=True, tag="unknown.decided"):
    """A person decided about a call that may have acted: it `happened` (with its result), `run` it, or `fail` it."""

    call_id: str
    decision: Literal["happened", "run", "fail"]
    by: str = ""
    reason: str = ""
    result: ToolResult | None = None


# --- what comes from outside, and what governs -------------------------------------------------------------------


class InputReceived(Fact, frozen=True, tag="input.received"):
    """Someone said something to a live run; it enters the transcript at the next boundary that its mode allows.

    `arrival` is its number among all that was said to the run, in the order in which it was stored; 0 if unnumbered.
    `ordered_by` are the others whose order it is, as in `Identity`. One that is collected also says when it was said
    and after how many seconds of silence it is answered: none of them at once.
    """

    input_id: str
    message: Message
    mode: InputMode = "steer"
    by: str = ""
    arrival: int = 0
    ordered_by: tuple[str, ...] = ()
    said_at: Number = 0.0
    debounce: Number = 0.0


class MemoryWritten(Fact, frozen=True, tag="memory.written"):
    key: str
    scope: str = "run"
    digest: str = ""
    size: int = 0


class SessionCompacted(Fact, frozen=True, tag="session.compacted"):
    """The first `replaced` messages are sent as `summary` from now on. They stay readable in the journal.

    The messages of a conversation are numbered from 1 over all its turns. Those from `first` in the turn `first_run` to
    `last` in `last_run` were summarised, together with an earlier summary if there was one: it stands for all messages
    up to `last` now. `kept_from` is the turn of the first message that is kept. `model` is who summarised; "fallback"
    is the summary that is made without any. `tokens_before` and `tokens_after` are estimates of the whole conversation.
    """

    replaced: int
    summary: Message
    usage: Usage = Usage()
    first: int = 0
    last: int = 0
    first_run: str = ""
    last_run: str = ""
    kept_from: str = ""
    made: Literal["model", "fallback"] = "model"
    cause: CompactionCause = "overflow"
    model: str = ""
    tokens_before: int = 0
    tokens_after: int = 0


class SessionNotCompacted(Fact, frozen=True, tag="session.not_compacted"):
    """The conversation was to be compacted and stays as it is, because of `reason`."""

    reason: str
    cause: CompactionCause = "asked"
    usage: Usage = Usage()


class CompactionRequested(Fact, frozen=True, tag="compaction.requested"):
    """A request to compact the conversation before the next question to the model."""

    by: str = ""


class BudgetExceeded(Fact, frozen=True, tag="budget.exceeded"):
    """Recorded before the act that would have passed the limit. `feedback` is what the model is told, if it goes on.

    `budget` names a declared budget, which is shared with other runs; without it the limit is the run's own. Such a
    budget may `pause` the run: it waits until its window ends at `until`, or until the limit is raised. `call_id` is
    the call that was not started; without it the model was not asked. `basis` is a digest of the declarations that it
    was refused by: once it is another, the run should ask again.
    """

    limit: LimitName
    used: Number
    allowed: Number
    message: str
    then: Literal["fail", "finish", "pause"] = "fail"
    feedback: str = ""
    budget: str = ""
    until: Number | None = None
    call_id: str | None = None
    basis: str = ""


class HookDecided(Fact, frozen=True, tag="hook.decided"):
    """Hooks decided about one act of the run, which is done as they say: see hooks.py for what `act` names.

    Recorded before the act, so that nobody is asked about it again; also when nothing was changed. `hooks` are those
    that changed it, the last of them is the one that refused. What is None stays as it was. `then` says what becomes of
    the act: it is done, it is refused and `message` tells why, or the run ends. `failed` are hooks that broke or were
    late, each with what is known of it.
    """

    point: HookPoint
    act: str = ""
    hooks: tuple[str, ...] = ()
    system: str | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None
    arguments: str | None = None
    text: str | None = None
    then: Literal["do", "refuse", "end"] = "do"
    message: str = ""
    failed: dict[str, str] = {}


class FolderKept(Fact, frozen=True, tag="folder.kept"):
    """The folder of the user has what the run changed in `data/`, in the same transaction; or `refused` says why not.

    `now` is the digest of `data/` that was brought in, `tree` that of the folder since then: another one when others
    have changed it meanwhile. `conflicts` are the paths that both had changed, each with the path under which the
    version of this run is kept; the same path where one side had deleted it. `life` is that of the folder since then.
    """

    now: str
    tree: str = ""
    conflicts: dict[str, str] = {}
    refused: str = ""
    life: str = ""


class ContractViolated(Fact, frozen=True, tag="contract.violated"):
    """`observed`: the contract only watches, and the run goes on."""

    rule: ContractRule
    message: str
    observed: bool = False
    call_id: str | None = None
    tool: str = ""


Event: TypeAlias = (
    RunCreated
    | RunClaimed
    | RunWaiting
    | RunResumed
    | RunRetried
    | RunSucceeded
    | RunFailed
    | RunCancelled
    | RunDeadLettered
    | CancelRequested
    | StepStarted
    | ModelResponded
    | ModelFailed
    | ModelDelayed
    | ModelCut
    | OutputRejected
    | OutputAccepted
    | ToolStarted
    | ToolFinished
    | ToolUnknown
    | ToolHeld
    | ApprovalRequested
    | ApprovalDecided
    | QuestionAsked
    | QuestionAnswered
    | UnknownDecided
    | InputReceived
    | MemoryWritten
    | SessionCompacted
    | SessionNotCompacted
    | CompactionRequested
    | BudgetExceeded
    | ContractViolated
    | HookDecided
    | FolderKept
)
Terminal: TypeAlias = RunSucceeded | RunFailed | RunCancelled | RunDeadLettered
