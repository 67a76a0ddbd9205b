"""What a caller gets back from a run."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from foliot.errors import FoliotError
from foliot.kernel.events import RunFailed, RunSucceeded, RunWaiting
from foliot.kernel.messages import Message, Usage
from foliot.kernel.state import State
from foliot.store.runs import Phase


class RunFailedError(FoliotError):
    """A run ended without success. `result` is all that is known of it; `foliot why <run>` tells the story."""

    code: ClassVar[str] = "run_failed"
    exit_code = 1

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.error or f"run {result.run_id} was {result.phase}", hint=f"foliot why {result.run_id}")
        self.result = result


class RunResult(Struct, frozen=True):
    """How a run stands. `output` is the answer as text; `value` the structured one, when the agent has an output type.

    `waiting` says for whom a run waits that has not ended.
    """

    run_id: str
    phase: Phase
    output: str
    value: Any
    usage: Usage
    steps: int
    error: str | None = None
    reason: str = ""
    waiting: RunWaiting | None = None
    messages: tuple[Message, ...] = ()

    @property
    def succeeded(self) -> bool:
        return self.phase == "succeeded"

    def check(self) -> RunResult:
        """This result, if the run did not fail. Raises `RunFailedError`."""
        if self.phase in ("failed", "cancelled"):
            raise RunFailedError(self)
        return self


def result_of(state: State, phase: Phase, output_type: type[Any] | None = None) -> RunResult:
    ended = state.ended
    value = ended.value if isinstance(ended, RunSucceeded) else None
    if output_type is not None and isinstance(ended, RunSucceeded):
        from pydantic import TypeAdapter

        value = TypeAdapter(output_type).validate_python(value)
    return RunResult(
        run_id=state.run_id,
        phase=phase,
        output=ended.output if isinstance(ended, RunSucceeded) else "",
        value=value,
        usage=state.spent.usage(),
        steps=state.spent.steps,
        error=ended.message if isinstance(ended, RunFailed) else None,
        reason=getattr(ended, "reason", ""),
        waiting=state.waiting if ended is None else None,
        messages=tuple(state.transcript),
    )
