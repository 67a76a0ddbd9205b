"""Whether a run that failed is tried again, when, and what that counts as. Pure: the same failure, the same answer.

`RETRIES` is the whole table, of every failure and of whoever tries again; docs/failures.md shows it, and a test holds
the page, the table and the functions below against each other.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from foliot.kernel.backoff import RetryPolicy, share_of
from foliot.kernel.run.events import ModelFailed, RunFailed, Terminal

# What becomes of a run of a task that failed: the same attempt goes on later, another one follows, or that was the end.
Verdict: TypeAlias = Literal["wait", "retry", "end"]


# The reason of a run whose model is refused by a policy of whoever operates it.
POLICY: Final = "policy"
# A condition on an edge behind an agent that has answered could not be evaluated.
CONDITION_FAILED: Final = "condition_failed"


class RetryRow(NamedTuple):
    """`examples` are codes and reasons of failed runs that the row is about, and `then` what becomes of those."""

    failure: str
    retried_by: str
    counted_as: str
    examples: tuple[tuple[str, str], ...] = ()
    then: Verdict | None = None


RETRIES: Final = (
    RetryRow(
        "the model is busy: 429, 503, 529",
        "a fallback, at once; then the run, three times; then its task, with growing pauses, for up to a day",
        "nothing; after a day without any other answer: an attempt",
        (("model_failed", "rate_limit"), ("model_failed", "overloaded")),
        "wait",
    ),
    RetryRow(
        "the model fails otherwise: other 5xx, a lost connection, a time-out, an answer that cannot be understood",
        "a fallback, at once; then the run, three times; then `message_retry`, or `retry`, of the task",
        "an attempt of the message",
        (("model_failed", "overloaded"), ("model_failed", "timeout"), ("model_failed", "garbage")),
        "retry",
    ),
    RetryRow(
        "the endpoint's own `rate_limit` has no room, or its provider asked for a pause before",
        "a fallback, at once; else the run waits for its turn, with its place in the line",
        "nothing; the model was not asked, and the time of the run does not pass",
    ),
    RetryRow(
        "the model refuses: key, no credit left, request, model not found, too long, too large, its own rules",
        "nobody",
        "the end",
        (
            ("model_failed", "auth"),
            ("model_failed", "request"),
            ("model_failed", "not_found"),
            ("model_failed", "context_overflow"),
            ("model_failed", "request_too_large"),
            ("model_failed", "content_filter"),
            ("model_failed", "quota"),
            ("model_failed", "program_cancelled"),
            ("refused", "model_refusal"),
        ),
        "end",
    ),
    RetryRow(
        "the agent's time is over (`limits.timeout`)",
        "`message_retry`, or `retry`, of the task; each attempt has the whole time",
        "an attempt of the message",
        (("budget_exceeded", "seconds"),),
        "retry",
    ),
    RetryRow(
        "another limit of the run is reached: steps, tokens, cost, tool calls; a Budget with `on_exceeded: fail`",
        "nobody",
        "the end",
        tuple(("budget_exceeded", limit) for limit in ("steps", "tokens", "cost_usd", "tool_calls")),
        "end",
    ),
    RetryRow(
        "the answer is empty, cut off, or does not fit the output schema or its validators",
        "the run sends it back, twice; then `message_retry`, or `retry`, of the task",
        "an attempt of the message",
        tuple((code, "repairs_exhausted") for code in ("empty_answer", "truncated", "schema_mismatch")),
        "retry",
    ),
    RetryRow(
        "the contract is violated; a rule denies; what was asked for is wrong, or is not there",
        "nobody",
        "the end",
        (
            *((code, "") for code in ("contract_violation", "denied", "invalid_input", "not_found")),
            ("model_failed", POLICY),
        ),
        "end",
    ),
    RetryRow(
        "a condition on an edge behind the agent cannot be evaluated",
        "nobody",
        "the end: `condition_failed`",
        ((CONDITION_FAILED, ""),),
        "end",
    ),
    RetryRow(
        "somebody decided that a call of unknown effect ends the run",
        "nobody",
        "the end",
        (("unknown_effect", "decided"),),
        "end",
    ),
    RetryRow(
        "a tool fails and says that it may pass",
        "`runtime.retry` of the tool, if repeating cannot harm",
        "an attempt of the call; what is left is a result, and the model decides",
    ),
    RetryRow(
        "a tool's rate limit is reached, or its circuit is open",
        "the call waits its turn within its time-out; then the model decides",
        "nothing; the call has not begun",
    ),
    RetryRow(
        "a Budget has no room (`on_exceeded: pause`), a call needs an approval, a tool asks a question",
        "whoever makes room, decides or answers; the end of the window",
        "nothing",
    ),
    RetryRow(
        "the worker dies, drains or loses its lease; the store does not answer",
        "the next worker, from the journal",
        "nothing; 25 claims in a row without a single fact are `crash_loop`, a dead letter",
    ),
    RetryRow(
        "a worker cannot read what a newer version wrote",
        "workers that can",
        "nothing",
    ),
)

# Failures that another attempt would only repeat: the run used up what it may use, broke its contract, was refused by
# a rule, or asks its provider for something wrong.
FINAL_CODES: Final = frozenset(
    {
        "budget_exceeded",
        CONDITION_FAILED,
        "contract_violation",
        "denied",
        "refused",
        "unknown_effect",
        "invalid_input",
        "not_found",
    }
)
FINAL_REASONS: Final = frozenset(
    {
        "auth",
        "quota",
        "request",
        "not_found",
        "model_refusal",
        "context_overflow",
        "request_too_large",
        "content_filter",
        "program_cancelled",
        POLICY,
    }
)
# Time is the one limit that another attempt has anew.
_TIME_IS_OVER: Final = ("budget_exceeded", "seconds")
_BUSY: Final = frozenset({429, 503, 529})
# A model that was nothing but busy for so long is not waited for without counting.
BUSY_FOR: Final = 86_400.0
_BUSY_DELAY, _BUSY_DELAY_MAX = 5.0, 300.0


def is_busy(failed: ModelFailed) -> bool:
    """Whether the provider only said that it has too much to do."""
    return failed.retryable and (failed.kind == "rate_limit" or failed.status in _BUSY)


def is_retryable(terminal: Terminal, rule: RetryPolicy) -> bool:
    """Whether a failure of this kind may be tried again at all."""
    if not isinstance(terminal, RunFailed):
        return False
    text = f"{terminal.code} {terminal.reason} {terminal.message}".lower()
    if any(part in text for part in rule.non_retryable):
        return False
    if (terminal.code, terminal.reason) == _TIME_IS_OVER:
        return True
    return terminal.code not in FINAL_CODES and terminal.reason not in FINAL_REASONS


def verdict(terminal: Terminal, rule: RetryPolicy, *, attempt: int, busy: bool) -> Verdict:
    """Decides what follows when attempt number `attempt` of a run failed.

    `busy`: the model was only busy, and not for long.

    Being busy is waited for even where nothing is retried: it is no failure of the run.
    """
    if not is_retryable(terminal, rule):
        return "end"
    if busy and isinstance(terminal, RunFailed) and terminal.code == "model_failed":
        return "wait"
    return "retry" if attempt < rule.max_attempts else "end"


def busy_delay(rule: RetryPolicy, key: str, times: int) -> float:
    """Returns the seconds before a busy model is asked again, after it was given up `times` times in a row."""
    patient = RetryPolicy(
        backoff=max(rule.backoff, _BUSY_DELAY), max_backoff=max(rule.backoff, _BUSY_DELAY_MAX), jitter="equal"
    )
    return delay(patient, f"{key}|busy", times + 1)


def delay(rule: RetryPolicy, key: str, attempt: int) -> float:
    """Returns the seconds before the attempt after `attempt`, spread by a chance that depends on `key` alone."""
    if min(rule.backoff, rule.max_backoff) <= 0:
        return 0.0
    return max(rule.wait(attempt, share_of(f"{key.lower()}|{attempt}")), 0.001)
