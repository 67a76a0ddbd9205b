"""Results of the verbs, and the requests sent to a server for them: plain data, the same on both sides.

The results of applying resources are in outcomes.py, those of runs in results.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from msgspec import Meta, Struct, ValidationError, convert

from foliot.engine.budgets.declared import BudgetStanding
from foliot.engine.budgets.wakeups import is_short
from foliot.engine.definition.run_options import UNCHANGED, RunOptions
from foliot.engine.explain.replay import ReplayDifference
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.messages import Message, ToolResult
from foliot.kernel.run.feedback import user_message
from foliot.runtime.results import RunResult
from foliot.sessions.base import TurnOptions
from foliot.store.base import Document
from foliot.store.journal.base import TERMINAL, RunInfo
from foliot.store.sessions.base import SessionKind
from foliot.tools.governance.judge import Judgement, PolicyQuestion
from foliot.tools.governance.rules import Access

# --- inputs ----------------------------------------------------------------------------------------------------------

# What a run is told: a text, a message, or a whole conversation.

Input: TypeAlias = str | Message | Sequence[Message]


def messages_of(input: Input, history: Sequence[Message] = ()) -> tuple[Message, ...]:
    """The input as messages, before it gets into a journal; there may be none where the history is all there is to say.

    Raises `InvalidInput` for an empty one, and `UsageError` for what is none.
    """
    if (input in ((), []) and not history) or (isinstance(input, str) and not input.strip()):
        raise InvalidInput("the input is empty: there is nothing to do")
    if isinstance(input, str):
        return (user_message(input),)
    if isinstance(input, Message):
        return (input,)
    given = cast("object", input)  # annotations are not checked
    if not isinstance(given, Sequence) or not all(
        isinstance(each, Message) for each in cast("Sequence[object]", given)
    ):
        raise UsageError(
            f"{given!r:.80} is nothing that an agent can be told",
            hint='give a text, or messages: Message("user", (Text("What is this?"), Media("image/png", data=…)))',
        )
    return tuple(input)


# --- runs ------------------------------------------------------------------------------------------------------------


class RunOrder(Struct, frozen=True):
    """A run of a declared agent that is to be started. The caller chooses `run_id`, so that asking again finds it.

    `messages` stand in place of `input` when that is more than a text; `history` is what was said before; `after` is
    an ended run of the same user whose conversation goes on. `user` is the person it is run for, as budgets, conditions
    and records name them: by default whoever asks. Another name needs the role impersonator. `options` are what is
    different in this run; with a blank `agent` their model is asked by itself.
    """

    agent: str
    input: str
    run_id: str
    namespace: str = "default"
    labels: dict[str, str] = {}
    user: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    after: str = ""
    options: RunOptions = UNCHANGED


class SessionOrder(Struct, frozen=True):
    """A session that is to be found or created: of a user with an agent, in a channel.

    `user` is by default whoever asks; another name needs the role impersonator. `model` is an endpoint that its turns
    ask instead of the agent's.
    """

    agent: str
    namespace: str = "default"
    user: str = ""
    channel: str = ""
    id: str = ""
    kind: SessionKind = "chat"
    title: str = ""
    model: str = ""
    options: dict[str, Any] = {}


class InvalidateOrder(Struct, frozen=True):
    """A user for whose sessions nothing that is warm is to be used any more; by default whoever asks.

    Another name needs the role admin.
    """

    namespace: str = "default"
    user: str = ""


class SayOrder(Struct, frozen=True):
    """A message to a session: a text, or a message of a user with parts. The same `key` twice is one input."""

    message: str | dict[str, Any]
    mode: str = "followup"
    key: str = ""
    place: str = ""
    options: TurnOptions = TurnOptions()


class RunStanding(Struct, frozen=True):
    """How a run stands. `seq` is the number of its last event, `at` when that was.

    `calls` is how many calls were started, and `results` how many of them went well. `asked` are the calls of the last
    answer: name and arguments by id. `result` is without the messages: they are in the events. `asking` are the runs
    below this one that wait for people or a budget, when all that it does is to wait for them.
    """

    info: RunInfo
    result: RunResult
    seq: int
    at: float
    calls: int = 0
    results: int = 0
    asked: dict[str, tuple[str, str]] = {}
    asking: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether the run has ended, or waits for something that does not come by itself soon."""
        if self.info.phase in TERMINAL:
            return True
        waiting = self.result.waiting  # told by the journal: the phase may be written a moment later
        return waiting is not None and not is_short(waiting, self.at)


class ForkOrder(Struct, frozen=True):
    """A run from step `at` of another on, under the id `new_id`, with what is given here changed.

    `user` is as in `RunOrder`: whoever forks a run acts for themselves, not for whom it was run.
    """

    at: int
    new_id: str
    prompt: str | None = None
    model: str | None = None
    input: str | None = None
    user: str = ""


class Replayed(Struct, frozen=True):
    """The result of a replay: `decided` of `events` were decided anew and came out the same, up to a difference."""

    events: int
    decided: int
    ended: bool
    difference: ReplayDifference | None = None


class FolderOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The folder to be deleted: a user's, by default the caller's, or with `system` that for runs without a user."""

    namespace: str = "default"
    user: str = ""
    system: bool = False


class RunContent(Struct, frozen=True):
    """Content that a run or a folder keeps, by its digest. In JSON, `data` is base64."""

    digest: str
    data: bytes


class Answered(Struct, frozen=True):
    """A decision that was taken: the approval as it is now, and the run that goes on with it."""

    document: Document
    run_id: str


# --- operations ------------------------------------------------------------------------------------------------------

# How many calls are judged at once.
MOST_JUDGED: Final = 500


class Budgets(Struct, frozen=True):
    """How budgets stand: each account of a current window, how many are declared, and the runs that wait for room."""

    standings: list[BudgetStanding]
    declared: int
    waiting: list[str] = []


class RuleDefaults(Struct, frozen=True):
    """The defaults for tool calls that no resource names; see the settings of the same names."""

    default_tool_access: Access
    allowed_tools: tuple[str, ...] | None = None


class PolicyAnswer(Struct, frozen=True):
    """The judgement of a hypothetical call. A tool that is not `declared` was judged by its name alone.

    `user` is the person on whose behalf it was judged; `notes` say what was taken for granted.
    """

    judgement: Judgement
    declared: bool
    user: str = ""
    notes: tuple[str, ...] = ()


class Fate(Struct, frozen=True):
    """One call under the rules as they are, and as they would be."""

    before: Judgement
    after: Judgement
    user: str = ""
    notes: tuple[str, ...] = ()


class Simulation(Struct, frozen=True):
    """Calls to judge as things are, and as they would be with these manifests."""

    manifests: tuple[Document, ...]
    calls: tuple[PolicyQuestion, ...]


class Fates(Struct, frozen=True):
    """The judgements of each call, in their order."""

    fates: list[Fate]


# --- triggers --------------------------------------------------------------------------------------------------------


class Fired(Struct, frozen=True):
    """The outcome of a schedule that ran right now: its task, the session that it spoke to, or why there is neither."""

    task: str = ""
    phase: str = ""
    reason: str = ""
    session: str = ""


class Sent(Struct, frozen=True):
    """The response of a webhook to a delivery."""

    status: int
    document: dict[str, Any]


# --- tools -----------------------------------------------------------------------------------------------------------


class Toolset(Struct, frozen=True):
    """The facts of each tool as `tool_facts` tells them, and what the deployment has and lacks."""

    tools: list[Document]
    capabilities: dict[str, Any]


class Called(Struct, frozen=True):
    """The result of a call. `printed` is its output before the result."""

    result: ToolResult
    printed: str = ""


class Acceptance(Struct, frozen=True, forbid_unknown_fields=True):
    """The agreement to one tool of an MCP server as it was seen: `digest` is of the definition, or its beginning.

    What is given besides is the least that Tools have to say of it from now on, which may be less than before.
    """

    tool: Annotated[str, Meta(pattern=r"\S", max_length=253)]
    digest: Annotated[str, Meta(pattern="^(sha256:)?[0-9a-f]{12,64}$")]
    risk_level: Literal["low", "medium", "high", "critical"] | None = None
    effect: Literal["read", "idempotent", "once"] | None = None
    isolation_mode: Literal["none", "sandboxed", "container", "wasm"] | None = None
    operation_classes: tuple[Literal["read", "write", "delete", "admin"], ...] = ()

    @classmethod
    def of(cls, tool: str, digest: str, levels: Mapping[str, Any]) -> Acceptance:
        """Raises `InvalidInput`, which names the field."""
        try:
            return convert({"tool": tool, "digest": digest, **levels}, cls)
        except ValidationError as error:
            raise InvalidInput(f"the tool cannot be accepted: {error}") from None

    def levels(self) -> dict[str, Any]:
        fields = ("risk_level", "effect", "isolation_mode", "operation_classes")
        return {field: value for field in fields if (value := getattr(self, field))}
