"""Trying again when trying again may help.

Waits grow exponentially and are drawn at random from zero up ("full jitter"): a crowd that failed together must not
come back together. A Retry-After is obeyed, and never undercut. When the wait that is asked for does not fit, the
error is raised at once, so that a fallback can take over instead of a run sitting still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from foliot.errors import InvalidInput
from foliot.models.base import ModelError, ModelTimeout

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` counts the first one too; all times are in seconds.

    The n-th wait is at most `base` x 2^(n-1) and at most `longest`. A Retry-After above `patience` ends the trying.
    `deadline` bounds everything, calls and waits together.
    """

    attempts: int = 4
    base: float = 0.5
    longest: float = 30.0
    patience: float = 60.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInput(f"retry attempts must be 1 or more, not {self.attempts}")
        for name in ("base", "longest", "patience"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidInput(f"retry {name} must be 0 or more seconds, not {getattr(self, name)!r}")
        if self.deadline is not None and not self.deadline > 0:
            raise InvalidInput(f"retry deadline must be above 0 seconds, not {self.deadline!r}")

    def wait(self, attempt: int, error: ModelError, random: Random) -> float | None:
        """Seconds to wait after `attempt` failed with `error`; None when there is no use in going on."""
        if not error.retryable or error.spent_out or attempt >= self.attempts:
            return None
        jitter = random.random() * min(self.longest, self.base * 2.0 ** min(attempt - 1, 60))
        if error.retry_after is None:
            return jitter
        if error.retry_after > self.patience:
            return None
        return error.retry_after + min(jitter, self.base)


DEFAULT: Final = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, as it is reported: `error` is None for the one that succeeded, `wait` is None when none follows."""

    number: int
    seconds: float
    error: ModelError | None = None
    wait: float | None = None


OnAttempt = Callable[[Attempt], None]


async def with_retry(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy = DEFAULT,
    *,
    on_attempt: OnAttempt | None = None,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
    random: Random | None = None,
) -> T:
    """Call until it succeeds or the policy says stop; then the last `ModelError` is raised.

    Only a `ModelError` that calls itself retryable is tried again; anything else passes through unreported. Every try
    is reported to `on_attempt` before the wait that follows it. A call that runs into the deadline is a `ModelTimeout`.
    """
    random = random or Random()
    started = clock()
    number = 0
    while True:
        number += 1
        began = clock()
        try:
            answer = await _within(call, policy, began - started)
        except ModelError as error:
            now = clock()
            wait = policy.wait(number, error, random)
            if wait is not None and policy.deadline is not None and now - started + wait >= policy.deadline:
                wait = None
            if on_attempt is not None:
                on_attempt(Attempt(number, now - began, error, wait))
            if wait is None:
                raise
        else:
            if on_attempt is not None:
                on_attempt(Attempt(number, clock() - began))
            return answer
        await sleep(wait)


async def _within(call: Callable[[], Awaitable[T]], policy: RetryPolicy, elapsed: float) -> T:
    if policy.deadline is None:
        return await call()
    bound = asyncio.timeout(policy.deadline - elapsed)
    try:
        async with bound:
            return await call()
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise ModelTimeout(
            f"no answer within the deadline of {policy.deadline:g} seconds",
            hint="raise the deadline of the endpoint's retry policy",
            retryable=False,
        ) from error
