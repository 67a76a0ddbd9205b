"""Results of runs for callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.driver.journal import phase_of
from foliot.errors import FoliotError
from foliot.kernel.messages import Message, Usage
from foliot.kernel.run.events import RunDeadLettered, RunFailed, RunSucceeded, RunWaiting
from foliot.kernel.run.state import State
from foliot.store.journal.base import Phase

if TYPE_CHECKING:
    import typing_extensions

    from foliot.runtime.output_types import OutputType

    Value = typing_extensions.TypeVar("Value", default=Any)
else:  # the default is for type checkers: whoever does not say which value gets any
    Value = TypeVar("Value")


class RunFailedError(FoliotError):
    """A run ended without success. `result` is all that is known of it; `foliot why <run>` tells the story.

    Not `kept`: no command finds the run, because its runtime is in memory.
    """

    code: ClassVar[str] = "run_failed"
    exit_code = 1

    def __init__(self, result: RunResult, *, kept: bool = True) -> None:
        why = f"foliot why {result.run_id}" if kept else f'`await rt.runs.why("{result.run_id}")` says more'
        super().__init__(result.error or f"run {result.run_id} was {result.phase}", hint=why)
        self.result = result


class SchemaMismatch(RunFailedError):
    """The answer to a prompt does not fit its schema, although it was sent back twice. `raw_text` is the last one."""

    code: ClassVar[str] = "schema_mismatch"

    def __init__(self, result: RunResult, raw_text: str) -> None:
        super().__init__(result)
        self.raw_text = raw_text


class RunResult(Struct, Generic[Value], frozen=True):
    """How a run stands. `output` is the answer as text; `value` the structured one, when the agent has an output type:
    type checkers know it as that.

    `waiting` says for whom a run waits that has not ended.
    """

    run_id: str
    phase: Phase
    output: str
    value: Value
    usage: Usage
    steps: int
    error: str | None = None
    reason: str = ""
    waiting: RunWaiting | None = None
    messages: tuple[Message, ...] = ()

    @property
    def succeeded(self) -> bool:
        return self.phase == "succeeded"

    def check(self) -> RunResult[Value]:
        """This result, if the run did not fail. Raises `RunFailedError`."""
        if self.phase in ("failed", "cancelled"):
            raise RunFailedError(self)
        return self


def result_of(state: State, phase: Phase) -> RunResult:
    """The result of a run as its journal tells it; `phase` is the stored one of a run that neither ended nor waits."""
    ended = state.ended
    if phase == "running" and state.waiting is not None and ended is None:
        phase = "waiting"  # the journal says so: its phase is written a moment later
    return RunResult(
        run_id=state.run_id,
        phase=_phase(state, phase),
        output=ended.output if isinstance(ended, RunSucceeded) else "",
        value=ended.value if isinstance(ended, RunSucceeded) else None,
        usage=state.spent.usage(),
        steps=state.spent.steps,
        error=ended.message or ended.reason if isinstance(ended, RunFailed | RunDeadLettered) else None,
        reason=getattr(ended, "reason", ""),
        waiting=state.waiting if ended is None else None,
        messages=tuple(state.transcript),
    )


async def typed_result(state: State, phase: Phase, output_type: OutputType | None) -> RunResult:
    """The result of a run, with its answer as a value of the type.

    Raises `InvalidInput` when the type refuses by now what it accepted.
    """
    result = result_of(state, phase)
    if output_type is None or not isinstance(state.ended, RunSucceeded) or not _is_answer(state):
        return result
    return replace(result, value=await output_type.value_of(state.run_id, result.output))


def _is_answer(state: State) -> bool:
    """Whether a run that succeeded gave an answer: no notice that its time is over, and no word on a compaction."""
    return state.ending is None and state.created is not None and not state.created.compacts


def _phase(state: State, stored: Phase) -> Phase:
    """The phase that goes with the state: the stored one may be written a moment later, or have moved on since."""
    if state.ended is not None:
        return phase_of(state.ended)
    if state.waiting is not None:
        return "waiting"
    return stored if stored in ("pending", "running") else "running"
