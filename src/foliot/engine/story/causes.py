"""The chain behind a failure: from the verdict of the journal back to what led to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from foliot.engine.story.amounts import arguments, counted, duration, money, times, tokens
from foliot.engine.story.trace import CallTrace, Trace
from foliot.kernel.budget import Limits
from foliot.kernel.events import RunDeadLettered, RunFailed, Terminal
from foliot.printable import one_line

WIDTH = 100
MOST = 3


def causes_of_failure(trace: Trace, ended: Terminal, limits: Limits) -> list[str]:
    """The verdict first, then what led to it, each line because of the next."""
    match ended:
        case RunFailed(code=code, message=message):
            behind = _BEHIND.get(code)
            return [f"{code}: {message}", *(behind(trace, ended, limits) if behind else _last_acts(trace))]
        case RunDeadLettered(reason=reason, message=message):
            broken = [mark.text for mark in trace.marks if mark.kind == "retried"]
            return [f"given up after {counted(trace.attempts, 'attempt')}: {message or reason}", *broken[-MOST:]]
        case _:
            return []


def _budget(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    if trace.short is not None and trace.short.budget:
        return [f"Budget/{trace.short.budget} is shared: `foliot budgets show {trace.short.budget}` says who spent it"]
    match failed.reason:
        case "steps":
            last = trace.steps[-1] if trace.steps else None
            wanted = _names(last.calls) if last else ""
            asked = f"step {last.number} of {limits.max_steps} still asked for {wanted}" if last and wanted else ""
            return [line for line in (asked, *_habits(trace)) if line]
        case "tokens":
            dear = sorted(trace.steps, key=lambda step: step.spent.total_tokens, reverse=True)[:MOST]
            took = ", ".join(f"step {step.number} took {step.spent.total_tokens:,}" for step in dear)
            return [
                f"{tokens(trace.usage.total_tokens)} in {counted(len(trace.steps), 'step')}: {took}",
                *_habits(trace),
            ]
        case "cost_usd":
            unpriced = [step for step in trace.steps if step.spent.cost_usd is None and step.spent.total_tokens]
            if unpriced:
                model = unpriced[0].model or "the model"
                return [f"no price is known for {model}: give the endpoint a `pricing`, or take the limit away"]
            return [f"{money(trace.usage.cost_usd)} in {counted(len(trace.steps), 'step')}", *_habits(trace)]
        case "seconds":
            return [_slowest(trace), *_habits(trace)]
        case _:
            return _habits(trace)


def _model_failed(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    if not trace.steps:
        return []
    step = trace.steps[-1]
    lines: list[str] = []
    asks = step.failures
    if asks:
        last = asks[-1]
        status = f" (HTTP {last.status})" if last.status else ""
        where = f" by {last.provider}" if last.provider else ""
        kinds = ", ".join(f"{kind} {times(count)}" for kind, count in Counter(ask.error for ask in asks).items())
        lines.append(f"step {step.number} was asked {times(len(asks))}{where}: {kinds}{status}")
    advice = _ADVICE.get(failed.reason)
    return [*lines, advice] if advice else lines


def _rejected(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    sent_back = [(step.number, mark) for step in trace.steps for mark in step.marks if mark.kind == "rejected"]
    lines = [f"step {number}: {one_line(mark.text, 2 * WIDTH)}" for number, mark in reversed(sent_back)]
    answer = trace.steps[-1].text if trace.steps else ""
    return [*lines[:MOST], *([f"the last answer was: {one_line(answer, WIDTH)}"] if answer else [])]


def _bad_calls(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    bad = [call for call in trace.calls if call.error is not None and call.error.kind in _MISTAKES]
    return [f"{call.name}: {one_line(call.error.message, WIDTH)}" for call in reversed(bad[-MOST:]) if call.error]


def _unknown(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    lost = [call for call in trace.calls if call.starts and call.synthetic]
    told = [f"{call.name} {arguments(call.arguments, WIDTH)}" for call in lost]
    decided = [f"{mark.text}, by {mark.by or 'somebody'}" for mark in trace.marks if mark.kind == "decided"]
    crashes = [mark.text for mark in trace.marks if mark.kind == "interrupted"]
    return [*decided[-1:], *told, *crashes[-1:]]


def _contract(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    broken = [mark.text for mark in trace.marks if mark.kind == "violation"]
    return [*(text for text in broken if text != failed.message), *_rejected(trace, failed, limits)]


def _refused(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    return [f"the model itself would not answer, at step {trace.steps[-1].number}"] if trace.steps else []


def _denied(trace: Trace, failed: RunFailed, limits: Limits) -> list[str]:
    return [f"{mark.text}{f', by {mark.by}' if mark.by else ''}" for mark in trace.marks if mark.kind == "approval"]


# --- what the model did ------------------------------------------------------------------------------------------


def _habits(trace: Trace) -> list[str]:
    """How often which tool was called, and whether that was the same call over and over."""
    lines: list[str] = []
    for name, count in Counter(call.name for call in trace.calls).most_common(MOST):
        calls = [call for call in trace.calls if call.name == name]
        lines.append(f"the model called {name} {times(count)}{_sameness(calls)}{_failing(calls)}")
    return lines or ["the model called no tool"]


def _sameness(calls: list[CallTrace]) -> str:
    if len(calls) < 2:
        return ""
    text, most = Counter(call.arguments for call in calls).most_common(1)[0]
    if most == len(calls):
        return f", always with {arguments(text, 60) or 'no arguments'}"
    return f", {times(most)} of them with {arguments(text, 60)}" if most > 1 else ""


def _failing(calls: list[CallTrace]) -> str:
    failed = [call for call in calls if call.error is not None]
    if not failed:
        return ""
    last = failed[-1].error
    assert last is not None
    return f"; {len(failed)} failed, the last one with: {one_line(last.message, 60)}"


def _slowest(trace: Trace) -> str:
    spent = [(call.seconds or 0.0, call.name) for call in trace.calls]
    spent += [(ask.seconds or 0.0, f"the model at step {step.number}") for step in trace.steps for ask in step.asks]
    worst = sorted(spent, reverse=True)[:MOST]
    return "the time went to " + ", ".join(f"{name} ({duration(seconds)})" for seconds, name in worst)


def _last_acts(trace: Trace) -> list[str]:
    failed = [call for call in trace.calls if call.error is not None]
    return [f"{call.name} failed: {one_line(call.error.message, WIDTH)}" for call in failed[-MOST:] if call.error]


def _names(calls: list[CallTrace]) -> str:
    return ", ".join(dict.fromkeys(call.name for call in calls))


_MISTAKES: Final = frozenset({"invalid_arguments", "unknown_tool"})
_ADVICE: Final[Mapping[str, str]] = {
    "auth": "the provider does not accept the key: look at the secret that the ModelEndpoint names",
    "request": "the provider refuses the request itself: asking again would not help",
    "rate_limit": "the provider limits how often it is asked: give the endpoint a `rate_limit`, or add fallbacks",
    "overloaded": "the provider was overloaded all the time: a fallback endpoint would have been asked",
    "timeout": "the provider did not answer in time: see `timeouts` of the ModelEndpoint",
    "context_overflow": "the conversation is longer than the model can read",
    "request_too_large": "the request is larger than the provider takes",
    "content_filter": "the provider's own rules forbid the content",
    "quota": "the account at the provider has no credit left",
}
_BEHIND: Final[Mapping[str, Callable[[Trace, RunFailed, Limits], list[str]]]] = {
    "budget_exceeded": _budget,
    "model_failed": _model_failed,
    "schema_mismatch": _rejected,
    "empty_answer": _rejected,
    "truncated": _rejected,
    "contract_violation": _contract,
    "invalid_tool_calls": _bad_calls,
    "unknown_effect": _unknown,
    "refused": _refused,
    "denied": _denied,
}
