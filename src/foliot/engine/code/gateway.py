"""The gateway of runs whose model is a program: a question is how far it has come, the answer what it asks for next.

It needs no endpoint, no key and no price, and is the same in every process, so any of them can go on with such a run.
"""

from __future__ import annotations

from foliot.common.threads import on_thread, unhurried
from foliot.engine.code.conversation import REFERENCE, Course, Ended, MakeRunner, Runner, course_of, message_of
from foliot.kernel.messages import ModelRequest, ModelResponse, Usage
from foliot.kernel.tokens import estimate_messages
from foliot.models.base import ModelRequestError, OnDelta

MODEL = "python"
PROVIDER = "foliot"


class CodeGateway:
    """A `Gateway`. `sandbox` makes what runs programs in one; None where there is none."""

    def __init__(self, interpreter: MakeRunner, sandbox: MakeRunner | None = None) -> None:
        self._make = {"interpreter": interpreter, "sandbox": sandbox}
        self._runners: dict[str, Runner] = {}

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Raises `ProgramError` when the program ends with an error, another `ModelError` when it cannot be run."""
        # All that it was ever given is read again at each question: beside the event loop when that is much.
        size = 4 * estimate_messages(request.messages)
        course = await unhurried(size, course_of, request)
        turn = await self._runner(course).run(course)
        stop = "end" if isinstance(turn, Ended) else "tool_calls"
        # How large the arguments of its calls are is not known before they are written.
        message = await on_thread(message_of, turn)
        return ModelResponse(message, Usage(cost_usd=0.0), stop, model=MODEL, provider=PROVIDER, endpoint=REFERENCE)

    def _runner(self, course: Course) -> Runner:
        where = course.program.runs_in
        if where not in self._runners:
            make = self._make[where]
            if make is None:
                raise ModelRequestError(
                    "programs of this agent run in a sandbox, and there is none here",
                    hint="`foliot doctor` says what is missing",
                )
            self._runners[where] = make()
        return self._runners[where]

    async def close(self) -> None:
        runners, self._runners = list(self._runners.values()), {}
        for runner in runners:
            await runner.close()
