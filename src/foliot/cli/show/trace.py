"""A trace as a tree of lines, and as data for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foliot.cli.show.run import SYNTHETIC, cache_read, spent
from foliot.cli.terminal import paint
from foliot.common.durations import duration
from foliot.common.text import counted, lines_of, one_line
from foliot.engine.explain.amounts import arguments, failure, money, tokens
from foliot.engine.explain.prompt_cache import misses
from foliot.engine.explain.trace import Ask, CallTrace, Mark, StepTrace, Trace
from foliot.kernel.run.codec import type_of
from foliot.kernel.run.events import RunCancelled, RunDeadLettered, RunFailed, RunSucceeded

WIDTH = 100
NO_PROGRAMS: Mapping[str, Trace] = {}
GUTTER = "┊ "
"""Stands before each row of a text that is shown whole: a row that looks like a branch of the tree is none."""


@dataclass(slots=True)
class TraceNode:
    """One line of the tree, what stands under it as text, and what hangs below it."""

    label: str
    texts: list[str] = field(default_factory=list[str])
    children: list[TraceNode] = field(default_factory=list["TraceNode"])

    def lines(self, head: str = "", rest: str = "") -> Iterator[str]:
        yield f"{head}{self.label}"
        bar = "│  " if self.children else "   "
        for text in self.texts:
            for row in text.split("\n"):
                yield f"{rest}{bar}{row}".rstrip()
        for number, child in enumerate(self.children):
            last = number == len(self.children) - 1
            yield from child.lines(rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def tree_of(
    trace: Trace, phase: str, *, full: bool, width: int = WIDTH, programs: Mapping[str, Trace] = NO_PROGRAMS
) -> TraceNode:
    """The whole run. `full` shows texts as they are; otherwise each is one line of at most `width` characters.

    `programs` are the runs of programs that it wrote, by the calls that began them. `phase` is how it stands:
    `interrupted` when whoever drove it is gone, `waiting` also when it waits for what it has begun, both of which its
    journal cannot know.
    """
    texts = _Texts(full, max(20, width - 12), programs)
    gone = phase == "interrupted"
    calls = counted(len(trace.calls), "call")
    head = " · ".join((phase, counted(len(trace.steps), "step"), calls, *spent(trace.usage), duration(trace.seconds)))
    root = TraceNode(f"{_bold(trace.agent)}  {trace.run_id}  {_dim(head)}")
    if trace.fork is not None:
        root.texts.append(_dim(f"forked from {trace.fork.run_id} behind event {trace.fork.seq}"))
        for each in trace.fork.effects:
            made = one_line(f"{each.tool} {each.arguments} → {each.words}", 2 * texts.width)
            where = "" if each.run_id == trace.fork.run_id else f" of {each.run_id}"
            root.texts.append(_dim(f"which has made, in step {each.step}{where}: {made}"))
    if trace.identity.by:
        root.texts.append(_dim(f"for {one_line(trace.identity.user)}, asked for by {one_line(trace.identity.by)}"))
    if trace.identity.ordered_by:
        others = " and ".join(map(one_line, trace.identity.ordered_by))
        root.texts.append(_dim(f"for {one_line(trace.identity.user)}, ordered by {others} too"))
    root.texts += texts.of("› ", trace.input)
    root.children += [_mark(mark, texts) for mark in trace.before]
    moved = {miss.step: miss.text for miss in misses(trace)}
    root.children += [_step(step, texts, gone=gone, moved=moved.get(step.number, "")) for step in trace.steps]
    root.children.append(_end(trace, texts, phase))
    return root


@dataclass(frozen=True, slots=True)
class _Texts:
    full: bool
    width: int
    programs: Mapping[str, Trace]

    def of(self, prefix: str, text: str) -> list[str]:
        if not text.strip():
            return []
        return (
            [_dim(f"{prefix}{GUTTER}{row}") for row in lines_of(text.strip())]
            if self.full
            else [_dim(prefix + one_line(text, self.width))]
        )

    def arguments(self, text: str) -> str:
        return one_line(text) if self.full else arguments(text, self.width - 20)


def _step(step: StepTrace, texts: _Texts, *, gone: bool, moved: str = "") -> TraceNode:
    whole = None if step.ended_at is None else step.ended_at - step.at
    node = TraceNode(f"{paint(f'step {step.number}', fg='cyan', bold=True)}  {_dim(duration(whole))}")
    node.children += [_ask(ask) for ask in step.asks if ask.error or ask.lost]
    before = [mark for mark in step.marks if step.answered_at is None or mark.at < step.answered_at]
    node.children += [_mark(mark, texts) for mark in before]
    if step.answered_at is not None:
        took = " · ".join((*spent(step.usage, step.seconds), *cache_read(step.usage), *_wasted(step)))
        answer = TraceNode(f"{one_line(step.model or 'the model', 60)}  {_dim(took)}")
        answer.texts += texts.of("thought: ", step.reasoning)
        answer.texts += texts.of("", step.text)
        if moved:
            answer.texts.append(_dim(moved))
        node.children.append(answer)
    elif step.asks and not step.asks[-1].error and not step.asks[-1].lost:
        said = "whoever asked it is gone" if gone else "there is no answer yet"
        node.children.append(TraceNode(_dim(f"the model was asked; {said}")))
    for item in step.items:
        if isinstance(item, CallTrace):
            node.children.append(_call(item, texts, gone=gone))
        elif item not in before:
            node.children.append(_mark(item, texts))
    return node


def _wasted(step: StepTrace) -> list[str]:
    lost = step.wasted
    if not lost.total_tokens:
        return []
    price = f", {money(lost.cost_usd)}" if lost.cost_usd else ""
    return [f"and {tokens(lost.total_tokens)}{price} without an answer"]


def _ask(ask: Ask) -> TraceNode:
    if ask.lost:
        return TraceNode(f"{_bad('✗')} the model was asked; the answer was lost")
    status = f" (HTTP {ask.status})" if ask.status else ""
    return TraceNode(
        f"{_bad('✗')} {failure([ask.error])}{status}  {_dim(duration(ask.seconds))}",
        [_dim(one_line(ask.message, WIDTH))],
    )


def _call(call: CallTrace, texts: _Texts, *, gone: bool) -> TraceNode:
    mark = _good("✓") if call.ok else _bad("✗") if call.finished_at is not None else paint("…", fg="yellow")
    facts = [duration(call.seconds)] if call.seconds is not None else []
    if call.synthetic in ("decided", "answered"):  # somebody's word is the result
        facts.append(SYNTHETIC[call.synthetic])
    elif call.synthetic:
        facts.append(f"{'given up' if call.starts else 'not run'}: {call.synthetic}")
    if call.blind_starts > 1:
        facts.append(f"started {call.blind_starts} times")
    if call.may_have_acted:
        facts.append("nobody knows whether it took effect")
    elif call.parked and call.finished_at is None:
        facts.append("waits for an answer" if call.question is not None else "waits for an approval")
    elif call.running:
        facts.append("cut off: whoever ran it is gone" if gone else "under way")
    program = texts.programs.get(call.id)
    given = texts.arguments(call.arguments) if program is None else counted(len(program.calls), "call")
    node = TraceNode(f"{mark} {one_line(call.name, 64)} {given}  {_dim(' · '.join((*facts, call.id)))}")
    if program is not None:
        node.texts += texts.of("› ", program.input)
        items = [*program.before, *(item for step in program.steps for item in step.items)]
        node.children += [
            _call(each, texts, gone=gone) if isinstance(each, CallTrace) else _mark(each, texts) for each in items
        ]
    if call.changed_by:
        before = texts.arguments(call.written) or "{}"
        node.texts.append(f"changed by {one_line(call.changed_by, 64)}; the model wrote {before}")
    node.texts += texts.of("", call.error.message if call.error else call.result)
    return node


def _mark(mark: Mark, texts: _Texts) -> TraceNode:
    lasted = "" if mark.seconds is None else f"after {duration(mark.seconds)}"
    by = f"by {mark.by}" if mark.by else ""
    detail = " · ".join(part for part in (by, lasted) if part)
    return TraceNode(f"{paint('!', fg='yellow')} {one_line(mark.text, 2 * texts.width)}  {_dim(detail)}".rstrip())


def _end(trace: Trace, texts: _Texts, phase: str) -> TraceNode:
    match trace.ended:
        case RunSucceeded(output=output):
            return TraceNode(f"{_good('✓')} succeeded", texts.of("", output))
        case RunFailed(code=code, message=message):
            return TraceNode(f"{_bad('✗')} failed: {code}", texts.of("", message))
        case RunCancelled(by=by, reason=reason):
            return TraceNode(f"{_bad('✗')} cancelled{f' by {by}' if by else ''}", texts.of("", reason))
        case RunDeadLettered(reason=reason, message=message):
            return TraceNode(f"{_bad('✗')} given up: {reason}", texts.of("", message))
        case None if trace.waiting is not None:
            return TraceNode(paint(f"… waits: {trace.waiting.reason}", fg="yellow"))
        case None if phase == "interrupted":
            return TraceNode(paint(f"… interrupted: `foliot resume {trace.run_id}` goes on with it", fg="yellow"))
        case None if phase == "waiting":
            names = ", ".join(dict.fromkeys(call.name for call in trace.calls if call.running))
            return TraceNode(paint(f"… waits for its {names}: `foliot why {trace.run_id}` says for whom", fg="yellow"))
        case None:
            return TraceNode(paint("… not ended", fg="yellow"))


def as_data(trace: Trace, phase: str, programs: Mapping[str, Trace] = NO_PROGRAMS) -> dict[str, Any]:
    """The trace for other programs: the same tree, nothing shortened. A call of `code` has its run as `program`."""
    data = msgspec.to_builtins(trace)
    ended = trace.ended
    data["phase"] = phase
    data["ended"] = None if ended is None else {"type": type_of(ended), **_without_type(msgspec.to_builtins(ended))}
    for step, raw in zip(trace.steps, data["steps"], strict=True):
        raw["items"] = [
            {"item": "call" if isinstance(item, CallTrace) else "mark", **msgspec.to_builtins(item)}
            for item in step.items
        ]
        for item in raw["items"]:
            if (program := programs.get(item.get("id", ""))) is not None:
                how = "" if program.ended is None else type_of(program.ended).removeprefix("run.")
                item["program"] = as_data(program, how or ("waiting" if program.waiting is not None else "running"))
    return data


def _without_type(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "type"}


def _bold(text: str) -> str:
    return paint(text, bold=True)


def _dim(text: str) -> str:
    return paint(text, dim=True) if text else ""


def _good(text: str) -> str:
    return paint(text, fg="green")


def _bad(text: str) -> str:
    return paint(text, fg="red")
