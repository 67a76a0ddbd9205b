"""Tries a call again when that can help and cannot harm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from foliot.tools.base import Invocation, ToolDefinition, ToolError
from foliot.tools.pipeline.running import CallProgress, Handler

# These need the attention of the model or of a person. No declaration makes them worth another attempt.
NEVER: Final = frozenset(
    {
        "invalid_arguments",
        "unknown_tool",
        "denied",
        "permission",
        "policy_denied",
        "precondition_failed",
        "dependency_failed",
        "version_mismatch",
        "cancelled",
        "circuit_open",
        "too_large",
    }
)


class Retries:
    """`chance` gives a number from 0 up to 1, for jitter.

    A `once` tool is tried again only after a failure that certainly came before it acted, unless its declaration says
    that repeating is right (`on_unknown: retry`).
    """

    def __init__(
        self,
        definition: ToolDefinition,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: Callable[[], float],
    ) -> None:
        self._name = definition.name
        self._retry = definition.retry
        self._repeatable = definition.effect != "once" or definition.on_unknown == "retry"
        self._attempt_timeout = definition.attempt_timeout
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Any:
        while True:
            try:
                return await next(call, running)
            except ToolError as error:
                wait = self._wait_before_next(call, error, running.attempts)
                if wait is None:
                    raise self._final(error, running.attempts)  # noqa: B904 - it is the same error
                running.failures += (error,)
            if wait:
                await self._sleep(wait)
            await running.check_right()

    def _wait_before_next(self, call: Invocation, error: ToolError, attempts: int) -> float | None:
        """Seconds until the next attempt; None when there is none."""
        retry = self._retry
        if attempts >= retry.max_attempts or not error.retryable or error.kind in NEVER:
            return None
        if retry.on_kinds is not None and error.kind not in retry.on_kinds:
            return None
        if not self._repeatable and not error.before_effect:
            return None
        wait = retry.wait(attempts, self._chance())
        if error.retry_after is not None:
            if error.retry_after > retry.max_backoff:
                return None
            wait = max(wait, error.retry_after)
        if call.deadline is None:
            return wait
        # An attempt that is bound to be cut off is not worth starting.
        needed = min(1.0, 0.1 * self._attempt_timeout) if self._attempt_timeout else 0.0
        return wait if self._clock() + wait + needed < call.deadline else None

    def _final(self, error: ToolError, attempts: int) -> ToolError:
        if attempts > 1:
            error.message = f"tool {self._name!r} failed after {attempts} attempts: {error.message}"
            error.args = (error.message,)
            error.details = {**error.details, "attempts": attempts}
        return error
