"""How often something that failed is tried again, and how long is waited before: one policy and one formula for all.

    model calls    `Repairs.model_policy`, waited for by the run                            (kernel/run)
    tool calls     `spec.runtime.retry` of a Tool                                           (tools/pipeline/retry.py)
    tasks          `spec.retry` and `spec.message_retry`, waited for in the queue           (kernel/graph/retry.py)
    connections    `backoff` alone: whoever reconnects knows its own first and longest wait

Pure: chance comes in as `share`, a number from 0 to 1. Whoever must wait equally long when asked again takes it from
`share_of(key)`, everybody else from `random.random()`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from foliot.kernel.messages import Number

Jitter: TypeAlias = Literal["none", "full", "equal"]
# Beyond this the bound has been reached by any policy that makes sense; an unbounded power would overflow one day.
_MOST_DOUBLINGS: Final = 20


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """The rule by which a failed attempt is repeated. Stored with the plans of tasks: fields keep their names.

    max_attempts     attempts in all; 1 never tries again
    backoff          seconds before the second attempt; doubled for each one after it
    max_backoff      the longest wait, in seconds
    jitter           spreads the wait: `full` from nothing to all of it, `equal` from half to all of it, `none` not
    non_retryable    parts of an error's text, in small letters, that forbid another attempt (tasks)
    on_kinds         the only kinds of failure that are tried again; None for all that can pass (tool calls)
    """

    max_attempts: int = 1
    backoff: Number = 0.0
    max_backoff: Number = 86_400.0
    jitter: Jitter = "full"
    non_retryable: tuple[str, ...] = ()
    on_kinds: frozenset[str] | None = None

    def wait(self, attempt: int, share: float = 1.0) -> float:
        """Return the seconds between attempt number `attempt`, from 1, and the next one."""
        return backoff(attempt, self.backoff, self.max_backoff, jitter=self.jitter, share=share)


def backoff(failures: int, first: float, longest: float, *, jitter: Jitter = "none", share: float = 1.0) -> float:
    """Return the seconds to wait after so many failures in a row: `first`, doubled each time, at most `longest`."""
    wait = min(first * 2.0 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS), longest)
    match jitter:
        case "full":
            return wait * share
        case "equal":
            return wait / 2 + wait / 2 * share
        case "none":
            return wait


def share_of(key: str) -> float:
    """Return a number from 0 up to 1 that depends on the text alone: FNV-1a of 64 bits, the same in any language."""
    number = 0xCBF29CE484222325
    for byte in key.encode():
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number % 1_000_000 / 1_000_000
