"""How one run stands, for whoever is about to watch it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.explain.replay import Difference
from foliot.runtime.results import RunResult, result_of
from foliot.store.journal.base import RunInfo

if TYPE_CHECKING:
    from foliot.runtime.runtime import Runtime


class RunOrder(Struct, frozen=True):
    """A run of a declared agent that is to be begun. `run_id` is chosen by whoever asks, so that asking again finds it.

    `user` is who it is done for, as budgets, conditions and records name him: by default whoever asks. Another name
    needs the role impersonator.
    """

    agent: str
    input: str
    run_id: str
    namespace: str = "default"
    labels: dict[str, str] = {}
    user: str = ""


class RunStanding(Struct, frozen=True):
    """`seq` is the number of its last event, `at` when that was; `calls` is how many calls were started, and `results`
    how many of them went well. `asked` are the calls of the last answer: name and arguments by id.

    `result` is without the messages: they are in the facts.
    """

    info: RunInfo
    result: RunResult
    seq: int
    at: float
    calls: int = 0
    results: int = 0
    asked: dict[str, tuple[str, str]] = {}


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
    """What a replay found: `decided` of `events` were decided anew and came out the same, up to a difference."""

    events: int
    decided: int
    ended: bool
    difference: Difference | None = None


async def standing_of(runtime: Runtime, run_id: str) -> RunStanding:
    """Raises `NotFound`."""
    from foliot.engine.explain.trace import trace_of

    info, state = await runtime.runs.load(run_id)
    trace = trace_of(run_id, await runtime.runs.facts(run_id))
    result = replace(result_of(state, info.phase), messages=(), value=_plain(state.ended))
    return RunStanding(
        info,
        result,
        state.seq,
        state.now,
        state.spent.tool_calls,
        sum(call.ok for call in trace.calls),
        {call.id: (call.name, call.arguments) for call in state.calls},
    )


def _plain(ended: Any) -> Any:
    """The structured answer as it is stored: whoever reads it far away does not know the type of the agent."""
    return getattr(ended, "value", None)
