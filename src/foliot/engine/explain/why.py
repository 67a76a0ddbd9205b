"""Why a run waits, failed, or cost what it cost, in plain words from its journal.

    explanation = explain(trace_of(run_id, facts), Standing("waiting"), spec, now)

Every sentence is drawn from recorded facts; nothing is guessed. The chain starts with what is the case now and goes
back, cause by cause, to the first one that the journal knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from foliot.common.durations import duration
from foliot.common.process import in_words, is_gone
from foliot.common.text import counted, one_line
from foliot.engine.definition.skills import misnamed_in, quarantined_in
from foliot.engine.explain.amounts import arguments, failure, money, times, tokens
from foliot.engine.explain.prompt_cache import cached
from foliot.engine.explain.trace import CallTrace, StepTrace, Trace, total
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import (
    ApprovalDecided,
    Event,
    QuestionAnswered,
    RunCancelled,
    RunDeadLettered,
    RunFailed,
    RunSucceeded,
    RunWaiting,
    Terminal,
    UnknownDecided,
    describe_made,
)
from foliot.kernel.run.spec import RunSpec
from foliot.resources.skill_files import NAME_RULE
from foliot.store.journal.base import Phase
from foliot.tools.pipeline.attempt import GOES_ON

# --- causes ----------------------------------------------------------------------------------------------------------

# The chain behind a failure: from the verdict of the journal back to what led to it.

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
    "overloaded": "the provider was overloaded, or could not be reached, all the time: check its address; "
    "a fallback endpoint would have been asked",
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


# --- explain ---------------------------------------------------------------------------------------------------------

Decision: TypeAlias = ApprovalDecided | QuestionAnswered | UnknownDecided
Holder: TypeAlias = Literal["alive", "gone", "nobody"]
SHOWN_STEPS = 3


class RunLiveness(Struct, frozen=True):
    """How the run stands outside of its journal: its row's phase, and whether its holder is alive.

    `signals` are what people have decided since and the run has not heard yet. `below`: all that it does is to wait for
    runs that it has started, and they wait for people or a budget. `lacks` is the Python type of its answers, if
    that is not here: then nothing but the program that declares it goes on with the run.
    """

    phase: Phase
    holder: Holder = "nobody"
    signals: tuple[Event, ...] = ()
    below: bool = False
    lacks: str = ""


class Hint(Struct, frozen=True):
    """A suggested command, and its effect."""

    command: str
    effect: str


class Explanation(Struct):
    """`chain` goes from the effect to the first cause; `way` is what else happened, in order."""

    headline: str
    chain: list[str] = field(default_factory=list[str])
    cost: list[str] = field(default_factory=list[str])
    time: str = ""
    way: list[str] = field(default_factory=list[str])
    next: list[Hint] = field(default_factory=list[Hint])


def explain(trace: Trace, standing: RunLiveness, spec: RunSpec, now: float) -> Explanation:
    """The whole story of a run in a few sentences."""
    explanation = _situation(trace, standing, spec, now)
    explanation.cost = cost_of(trace)
    explanation.time = time_of(trace, now)
    explanation.way = way_of(trace)
    if trace.missing:
        explanation.next.append(Hint("foliot doctor", "shows everything that is named and not there"))
    if held := quarantined_in(spec):
        explanation.chain.append(f"it worked without skills that were in quarantine: {', '.join(held)}")
        explanation.next.append(Hint("foliot skills list", "shows their digests, to be read and allowed"))
    if misnamed := misnamed_in(spec):
        explanation.chain.append(f"it worked without skills whose names no skill can have: {', '.join(misnamed)}")
        explanation.next.append(Hint("foliot skills list", f"shows them; a name has {NAME_RULE}"))
    return explanation


# --- how it stands -----------------------------------------------------------------------------------------------


def _situation(trace: Trace, standing: RunLiveness, spec: RunSpec, now: float) -> Explanation:
    run = trace.run_id
    match trace.ended:
        case None if trace.waiting is not None and trace.waiting_since is not None:
            decided = {each.call_id: each for each in standing.signals if isinstance(each, Decision)}
            if not decided.keys().isdisjoint(trace.waiting.calls):
                return _decided(trace, trace.waiting, decided)
            return _waiting(trace, trace.waiting, trace.waiting_since, now)
        case None if standing.below and standing.holder != "gone":
            return _waiting_below(trace, standing, now)
        case None if standing.holder == "alive":
            return Explanation(f"It is at work: {_doing(trace, now)}.", [f"held by {in_words(trace.worker)}"])
        case None:
            return _interrupted(trace, standing, spec, now)
        case RunSucceeded():
            answer = one_line(trace.ended.output, WIDTH) or "(empty)"
            asked = counted(len(trace.steps), "step")
            return Explanation(
                f"It succeeded after {asked} and {counted(len(trace.calls), 'tool call')}.",
                [f"it answered: {answer}"],
                next=[Hint(f"foliot trace {run}", "shows every step with its timing")],
            )
        case RunCancelled(by=by, reason=reason):
            who = f" by {by}" if by else ""
            chain = [f"cancelled{who}{f': {reason}' if reason else ''}", *_cut_off(trace)]
            return Explanation("It was cancelled.", chain, next=_after_end(trace, standing))
        case failed:
            return Explanation(
                "It failed.", causes_of_failure(trace, failed, spec.limits), next=_after_end(trace, standing)
            )


def _after_end(trace: Trace, standing: RunLiveness) -> list[Hint]:
    hints = [Hint(f"foliot trace {trace.run_id}", "shows every step with its timing")]
    if trace.steps and not standing.lacks:
        last = trace.steps[-1].number
        hints.append(Hint(f"foliot fork {trace.run_id} --at {last}", f"tries again from step {last}, as a new run"))
    return hints


def _decided(trace: Trace, waiting: RunWaiting, decided: Mapping[str, Decision]) -> Explanation:
    """Explains a run that waits no longer for people, but for a process that takes it up."""
    told = Explanation("It has been decided about, and goes on when a process takes it up.")
    for call in trace.named(waiting.calls):
        if (event := decided.get(call.id)) is None:
            told.chain.append(f"{call.name} {arguments(call.arguments, WIDTH)} is not decided about yet")
            told.next += _answers(call, trace.namespace)
            continue
        what = "answered" if isinstance(event, QuestionAnswered) else event.decision
        told.chain.append(
            f"{call.name} {arguments(call.arguments, WIDTH)}: {what}{f', by {event.by}' if event.by else ''}"
        )
    told.next.append(Hint(f"foliot resume {trace.run_id}", "goes on with it here"))
    return told


def _waiting(trace: Trace, waiting: RunWaiting, since: float, now: float) -> Explanation:
    run, ago = trace.run_id, duration(max(0.0, now - since))
    calls = trace.named(waiting.calls)
    match waiting.reason:
        case "unknown_effect":
            chain, hints = _ambiguous(trace, [call for call in calls if call.unknown] or calls)
            return Explanation(f"It waits for a person to decide, since {ago} ago.", chain, next=hints)
        case "approval":
            names = ", ".join(call.name for call in calls) or "a call"
            chain = [f"{call.name} {arguments(call.arguments, WIDTH)}" for call in calls] or [waiting.message]
            chain += filter(None, (describe_made(trace.past, call.name, call.arguments) for call in calls))
            if waiting.until is not None:
                chain.append(_expiry(waiting.until - now))
            hints = [hint for call in calls for hint in _answers(call, trace.namespace)]
            return Explanation(f"It waits for an approval of {names}, since {ago} ago.", chain, next=hints)
        case "input" if any(call.question is not None for call in calls):
            return _asking(trace, [call for call in calls if call.question is not None], since, now)
        case "budget":
            return _paused(trace, waiting, since, now)
        case "model_limit":
            left = duration(max(0.0, (waiting.until or now) - now))
            held = "nothing is held meanwhile, and its place in the line is kept"
            return Explanation(f"It waits for its turn at the model, in about {left}.", [waiting.message, held])
        case "collecting":
            left = duration(max(0.0, (waiting.until or now) - now))
            return Explanation(f"It answers what was said to it in {left}, unless more is said.", [waiting.message])
        case "model_retry":
            left = duration(max(0.0, (waiting.until or now) - now))
            failures = trace.steps[-1].failures if trace.steps else []
            chain = [waiting.message, *(f"{ask.error}: {one_line(ask.message, WIDTH)}" for ask in failures[-2:])]
            hint = Hint(f"foliot resume {run}", "drives it, if the process that did is gone")
            return Explanation(f"It waits for the model; it is asked again in {left}.", chain, next=[hint])
        case _:
            what = "something to be said to it" if waiting.owner == "input" else waiting.owner
            return Explanation(f"It waits for {what}, since {ago} ago.", [waiting.message] if waiting.message else [])


def _expiry(left: float) -> str:
    return f"the request expires in {duration(left)}" if left > 0 else "the request has expired"


def _paused(trace: Trace, waiting: RunWaiting, since: float, now: float) -> Explanation:
    run, name = trace.run_id, trace.short.budget if trace.short is not None else ""
    ago = duration(max(0.0, now - since))
    held = "the model was not asked" if not waiting.calls else f"{_called(trace, waiting)} was not started"
    chain = [waiting.message, held]
    raising, again = "raises its limit; runs that wait look again", "looks again now"
    if not trace.task:
        # Nobody holds it, and workers take up runs of tasks only.
        chain.append("once there is room, whoever stays with it goes on, or a server (`foliot up`) takes it up")
        chain.append(f"where there is neither, `foliot resume {run}` goes on with it")
        raising, again = "raises its limit", "looks again, and goes on if there is room"
    elif waiting.until is not None:
        chain.append(f"it looks again in {duration(max(0.0, waiting.until - now))}, or when the limit is raised")
    else:
        chain.append("it goes on when the limit is raised")
    space = "" if trace.namespace == "default" else f" -n {trace.namespace}"
    return Explanation(
        f"It waits for room in budget {name}, since {ago} ago.",
        chain,
        next=[
            Hint(f"foliot budgets show {name}{space}", "who spent it, and what is reserved"),
            Hint(f"foliot edit budget {name}{space}", raising),
            Hint(f"foliot resume {run}", again),
        ],
    )


def _called(trace: Trace, waiting: RunWaiting) -> str:
    return ", ".join(call.name for call in trace.named(waiting.calls)) or "a call"


def _asking(trace: Trace, calls: Sequence[CallTrace], since: float, now: float) -> Explanation:
    told = Explanation(f"It waits for an answer, since {duration(max(0.0, now - since))} ago.")
    for call in calls:
        asked = call.question
        assert asked is not None, "chosen by it"
        told.chain.append(one_line(asked.question, 4 * WIDTH))
        if asked.choices:
            told.chain.append("one of: " + " | ".join(one_line(choice, WIDTH) for choice in asked.choices))
        if asked.expires_at is not None:
            left = duration(max(0.0, asked.expires_at - now))
            then = "the call fails" if asked.default is None else f"it is {one_line(asked.default, WIDTH)!r}"
            told.chain.append(f"without an answer in {left}, {then}")
        which = f" {call.id}" if len(calls) > 1 else ""
        told.next.append(Hint(f'foliot answer {trace.run_id}{which} "…"', "answers it, and goes on with the run"))
    return told


def _answers(call: CallTrace, namespace: str) -> list[Hint]:
    if not call.approval:
        return []
    space = "" if namespace == "default" else f" -n {namespace}"
    return [
        Hint(f"foliot approvals show {call.approval}{space}", f"what {call.name} would do, and why that is asked"),
        Hint(f"foliot approvals approve {call.approval}{space}", "lets it, and goes on with the run"),
        Hint(f"foliot approvals deny {call.approval}{space}", "does not"),
    ]


def _ambiguous(trace: Trace, calls: Sequence[CallTrace]) -> tuple[list[str], list[Hint]]:
    run = trace.run_id
    chain: list[str] = []
    hints: list[Hint] = []
    for call in calls:
        chain.append(f"nobody knows whether {call.name} took effect: {arguments(call.arguments, WIDTH)}")
        if made := describe_made(trace.past, call.name, call.arguments):
            chain.append(made)
        known = _what_is_known(call)
        if call.starts and call.begun_by and is_gone(call.begun_by):
            chain.append(known.replace(GOES_ON, " and went on when it was told to stop"))
            chain.append(f"{in_words(call.begun_by)} made the call and has ended: nothing of it can act any more")
        else:
            chain.append(known)
            if call.until is not None:
                chain.append("what made the call has ended; only what it had sent by then can still take effect")
            elif call.begun_by and call.seconds is None:  # nobody has seen how the call ended, or that it did not
                chain.append(_until_when(call.begun_by, again=call.begun_by == trace.worker))
            elif call.starts:
                chain.append("nobody can say until when it might still act")
        again = any(mark.kind == "decided" and mark.call_id == call.id for mark in trace.marks)
        attempt = f" --attempt {len(call.starts)}" if again else ""
        hints += [
            Hint(f"foliot settle {run} {call.id} happened{attempt}", "it did take effect (--result: what it returned)"),
            Hint(f"foliot settle {run} {call.id} run{attempt}", "it did not: run it now"),
            Hint(f"foliot settle {run} {call.id} fail{attempt}", "end the run here"),
        ]
    chain.append("a tool with the effect `once` is never repeated silently")
    return chain, hints


def _what_is_known(call: CallTrace) -> str:
    if call.lost:
        return one_line(call.lost, 2 * WIDTH)
    if not call.starts:
        return "the same call was made before and may have taken effect; this one was not made"
    return "the worker died after the call had been started and before its result was recorded"


def _until_when(worker: str, *, again: bool) -> str:
    """Describes how long a call may still act that a worker had in progress as it lost the run.

    One that only slept goes on with a plain function where it was, before it can learn that the run is lost.
    """
    if again:
        return f"{in_words(worker)} made the call, told it to stop and goes on: its log names calls that did not end"
    return f"{in_words(worker)} made the call and is not known to have ended: it may still act until that process does"


def _interrupted(trace: Trace, standing: RunLiveness, spec: RunSpec, now: float) -> Explanation:
    hint = Hint(f"foliot resume {trace.run_id}", "goes on where it was")
    if standing.lacks:
        where = f"in the program that declares {standing.lacks}"
        hint = Hint(f'rt.resume("{trace.run_id}", agent=…)', f"goes on where it was, {where}")
    since = duration(max(0.0, now - trace.last_at))
    if standing.holder == "gone":
        chain = [f"{in_words(trace.worker)} is gone; it was {_doing(trace, trace.last_at)}"]
    else:
        chain = [f"the process that drove it let it go; it was {_doing(trace, trace.last_at)}"]
    kept = counted(len([step for step in trace.steps if step.answered_at is not None]), "answer")
    chain.append(f"everything up to then is kept: {kept}, {counted(sum(c.ok for c in trace.calls), 'tool result')}")
    once = {rule.name for rule in spec.tools if rule.effect == "once" and rule.on_unknown == "ask"}
    asked = [call.name for call in trace.calls if call.running and call.name in once]
    chain += [f"{name} must happen only once: you will be asked whether it took effect" for name in asked]
    return Explanation(f"It was interrupted {since} ago, and nobody drives it now.", chain, next=[hint])


def _waiting_below(trace: Trace, standing: RunLiveness, now: float) -> Explanation:
    names = ", ".join(dict.fromkeys(call.name for call in trace.calls if call.running))
    stays = [f"{in_words(trace.worker)} stays with it"] if standing.holder == "alive" and trace.worker else []
    return Explanation(f"It waits for its {names}.", stays)


def _doing(trace: Trace, now: float) -> str:
    """Describes what the run is doing, by its journal."""
    running = [call for call in trace.calls if call.running]
    if running:
        return "calling " + ", ".join(f"{call.name} ({duration(max(0.0, now - call.starts[-1]))})" for call in running)
    if trace.steps and trace.steps[-1].answered_at is None and trace.steps[-1].asks:
        step = trace.steps[-1]
        return f"asking the model for step {step.number} ({duration(max(0.0, now - step.asks[-1].at))})"
    return "between two steps" if trace.steps else "about to start"


def _cut_off(trace: Trace) -> list[str]:
    cut = [call for call in trace.calls if call.synthetic == "cancelled"]
    return [f"{call.name}: {one_line(call.error.message, 2 * WIDTH)}" for call in cut if call.error]


# --- what it cost ------------------------------------------------------------------------------------------------


def cost_of(trace: Trace) -> list[str]:
    """Describes the usage of tokens and money: the sum, the dearest steps, and why the input grows."""
    usage = trace.usage
    if not usage.total_tokens:
        return []
    estimated = ", estimated" if usage.source == "estimated" else ""
    price = money(usage.cost_usd) if usage.cost_usd is not None else "no price is known"
    lines = [
        f"{tokens(usage.total_tokens)} ({usage.input_tokens:,} in, {usage.output_tokens:,} out{estimated}), {price}"
    ]
    if wasted := sum(step.wasted.total_tokens for step in trace.steps):
        lost = total(step.wasted for step in trace.steps)
        price = f", {money(lost.cost_usd)}" if lost.cost_usd else ""
        about = " (estimated)" if lost.source == "estimated" else ""
        lines.append(f"{tokens(wasted)} of it{price} went into attempts that gave no answer{about}")
    dear = sorted(
        (step for step in trace.steps if step.spent.total_tokens), key=lambda s: s.spent.total_tokens, reverse=True
    )
    if len(dear) > 1:
        lines += [_share(step, usage.total_tokens) for step in dear[:SHOWN_STEPS]]
    by_model: dict[str, int] = {}
    for step in trace.steps:
        if step.answered_at is None and not step.spent.total_tokens:
            continue  # nobody has answered yet, and nobody failed at a price
        by_model[step.model] = by_model.get(step.model, 0) + step.spent.total_tokens
    if len(by_model) > 1:
        lines.append("by model: " + ", ".join(f"{name or '?'} {count:,}" for name, count in by_model.items()))
    if len(dear) > 2:
        first, last = trace.steps[0].usage.input_tokens, trace.steps[-1].usage.input_tokens
        if first and last > 2 * first:
            lines.append(f"each step sends the conversation again: {first:,} tokens at the first, {last:,} at the last")
    return [*lines, *cached(trace)]


def _share(step: StepTrace, whole: int) -> str:
    usage = step.spent
    price = f", {money(usage.cost_usd)}" if usage.cost_usd is not None else ""
    return f"step {step.number}: {tokens(usage.total_tokens)} ({usage.total_tokens * 100 // whole} %){price}"


def time_of(trace: Trace, now: float) -> str:
    """Describes the time: how much of it the model, tools and waits took."""
    model = sum(ask.seconds or 0.0 for step in trace.steps for ask in step.asks)
    tools = sum(call.seconds or 0.0 for call in trace.calls)
    waited = trace.waited
    if trace.waiting_since is not None and trace.ended is None:
        waited += max(0.0, now - trace.waiting_since)
    parts = [("the model", model), ("tools", tools), ("waiting", waited), ("nobody at work", trace.idle)]
    told = ", ".join(f"{duration(seconds)} {name}" for name, seconds in parts if seconds >= 0.001)
    if trace.ended is not None:
        whole = f"{duration(trace.seconds)} from start to end"
    else:
        whole = f"{duration(max(0.0, now - trace.created_at))} so far"
    return f"{whole}: {told}" if told else whole


# --- what happened on the way ------------------------------------------------------------------------------------


def way_of(trace: Trace) -> list[str]:
    """Crashes, retries, refused and failed calls, repairs, decisions: what a smooth run would not have."""
    acted = trace.identity
    told = [f"it acts for {acted.user}, and {acted.by} asked for it"] if acted.by else []
    if acted.ordered_by:
        told.append(f"it acts for {acted.user}, and {' and '.join(acted.ordered_by)} ordered it too")
    told += [_mark(mark.text, mark.seconds, mark.by) for mark in trace.before if mark.kind != "waiting" or mark.seconds]
    for step in trace.steps:
        here = f"step {step.number}: "
        lost = sum(ask.lost for ask in step.asks)
        if lost:
            told.append(f"{here}the question was asked again, the first answer was lost")
        if step.failures:
            told.append(here + _failures(step))
        for item in step.items:
            if isinstance(item, CallTrace):
                told += [here + line for line in _call(item)]
            elif item.kind != "waiting" or item.seconds is not None:
                told.append(here + _mark(item.text, item.seconds, item.by))
    return told


def _mark(text: str, seconds: float | None, by: str) -> str:
    lasted = f" (after {duration(seconds)})" if seconds is not None else ""
    return f"{one_line(text, 2 * WIDTH)}{f', by {by}' if by else ''}{lasted}"


def _failures(step: StepTrace) -> str:
    kinds = [ask.error for ask in step.failures]
    went = "then it answered" if step.answered_at is not None else "and it never answered"
    return f"{failure(kinds, times(len(step.failures)))}, {went}"


def _call(call: CallTrace) -> list[str]:
    lines: list[str] = []
    if call.blind_starts > 1:
        lines.append(f"{call.name} was started {times(call.blind_starts)}: nobody knew how it had ended")
    if call.synthetic == "duplicate":
        lines.append(f"{call.name} was asked for again with the same arguments; the earlier result was given")
    elif call.error is not None and call.synthetic:
        went = "was given up" if call.starts else "was not run"
        lines.append(f"{call.name} {went} ({call.synthetic}): {one_line(call.error.message, WIDTH)}")
    elif call.error is not None:
        lines.append(f"{call.name} failed ({call.error.code}): {one_line(call.error.message, WIDTH)}")
    return lines
