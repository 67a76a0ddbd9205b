"""Approvals as people read them: a table of many, and the whole story of one.

Whoever decides must see what is there: every argument whole, or with a word on what is left out and how to see it;
nothing that others wrote can pass for a line of this page. So what is theirs stands behind a bar, each line of it, and
is broken here where a terminal would break it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from foliot.cli.invocation import is_terminal
from foliot.cli.show.tables import since, table
from foliot.cli.terminal import paint
from foliot.common.text import one_line, safe_json
from foliot.engine.approval.documents import CUT, current_digest, decided_arguments, shown, uses_left, verdict
from foliot.engine.explain.amounts import arguments
from foliot.engine.explain.trace import StepTrace, Trace
from foliot.store.base import Document
from foliot.tools.secrets.masking import MASK

LONGEST = 60
STEPS = 5
BAR: Final = "  │ "
_SCRIPTS: Final = (re.compile(r"[A-Za-z]"), re.compile(r"[\u0370-\u03ff]"), re.compile(r"[\u0400-\u052f]"))
_WORD: Final = re.compile(r"\w+")


def approvals_table(documents: Sequence[Document], *, namespaced: bool) -> str:
    now = datetime.now(UTC)
    headings = ["APPROVAL", "TOOL", "ARGUMENTS", "AGENT", "RUN", "PHASE", "EXPIRES", "DECIDED BY"]
    rows = [_row(document, now) for document in documents]
    if namespaced:
        headings.insert(0, "NAMESPACE")
        rows = [[document["metadata"]["namespace"], *row] for document, row in zip(documents, rows, strict=True)]
    return table(headings, rows)


def _row(document: Document, now: datetime) -> list[str]:
    spec, status = document["spec"], document["status"]
    living = status["phase"] == "Pending" or (spec.get("standing") and status["phase"] == "Approved")
    return [
        document["metadata"]["name"],
        one_line(spec["tool"], 40),
        _scope(document) if spec.get("standing") else _arguments_cell(document),
        one_line(spec.get("agent", ""), 40) or ("(any)" if spec.get("standing") else "-"),
        spec.get("run", "-"),
        status["phase"],
        since(status.get("expires_at"), now=now) if living else "-",
        one_line(status.get("decided_by", "") or _voters(status), 40) or "-",
    ]


def _arguments_cell(document: Document) -> str:
    """Shows what the call is made with; edited arguments with those that the model wrote behind them."""
    now, edited = decided_arguments(document)
    written = _pairs(document["spec"].get("arguments", {})) or "-"
    return f"{_pairs(now) or '-'} (edited; was {written})" if edited else written


def _voters(status: dict[str, Any]) -> str:
    return ", ".join(vote["by"] for vote in status.get("votes", ()))


def _scope(document: Document) -> str:
    """Describes the scope of a standing grant, shown in place of arguments."""
    left = uses_left(document)
    uses = "" if left is None else f", {left} of {document['spec']['max_uses']} uses left"
    when = one_line(document["spec"].get("when", ""), LONGEST)
    return f"every call{f' where {when}' if when else ''}{uses}"


def _pairs(values: dict[str, Any]) -> str:
    return arguments(safe_json(values, indent=None, sort_keys=True), LONGEST)


def approval_text(document: Document, trace: Trace | None, original: Trace | None = None) -> str:
    """Formats an approval: the call, the reason, the caller, the decision, and how the run got there."""
    spec, status = document["spec"], document["status"]
    now = datetime.now(UTC)
    head = f"{paint(one_line(spec['tool']), bold=True)}  {paint(document['metadata']['name'], dim=True)}"
    needed = spec.get("required_approvals", 1)
    facts = {
        "phase": status["phase"],
        "agent": spec.get("agent") or ("any" if spec.get("standing") else ""),
        "run": spec.get("run", ""),
        "asked by": spec.get("asked_by", ""),
        "covers": _scope(document) if spec.get("standing") else "",
        "does": spec.get("operation_class", ""),
        "why": spec.get("reason", ""),
        "approvers": ", ".join(spec.get("approvers", ())) or "anybody",
        "four eyes": "who asked may not decide" if spec.get("four_eyes") else "",
        "votes": f"{len(status.get('votes', ()))} of {needed}: {_voters(status) or 'nobody yet'}" if needed > 1 else "",
        "expires": _expires(document, now),
        "decided": verdict(document) if status["phase"] != "Pending" else "",
        "digest": current_digest(document) if status["phase"] == "Pending" else "",
    }
    parts = [head + "\n" + "\n".join(_facts(facts))]
    if "arguments" in spec or not spec.get("standing"):
        parts.append(_arguments("Arguments", spec.get("arguments", {}), spec.get("run", "")))
    now_made_with, edited = decided_arguments(document)
    if edited:
        title = (
            "Approved with these instead" if status["phase"] != "Pending" else "Edited: this is what is decided about"
        )
        parts.append(_arguments(title, now_made_with, spec.get("run", "")))
    if trace is not None:
        parts.append(_section("The run so far", story(trace, original)))
    if status["phase"] == "Pending":
        parts.append("\n".join([paint("What you can do", bold=True), *(f"  {verb}" for verb in _verbs(document))]))
    return "\n\n".join(parts)


def decided_about(document: Document) -> str:
    """The arguments that a decision is about now, as the model wrote them or somebody edited them."""
    spec = document["spec"]
    values, edited = decided_arguments(document)
    title = f"{one_line(spec['tool'])} with these arguments{', edited' if edited else ''}"
    return _arguments(title, values, spec.get("run", ""))


def edited_to(document: Document, arguments: dict[str, Any]) -> str:
    """Shows the change that a decision makes, old and new, and the arguments that the call is made with then."""
    spec = document["spec"]
    before, _ = decided_arguments(document)
    now = shown(arguments)
    changed: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = _old_or_new(before, name), _old_or_new(now, name)
        if old != new:
            changed.append(f"{one_line(name, LONGEST)}: {old} → {new}")
        elif MASK in new and arguments[name] != before[name]:
            changed.append(f"{one_line(name, LONGEST)}: {old} → another value, hidden too")
    tool = one_line(spec["tool"])
    return "\n".join(
        [
            _section(f"{tool}: what you change", changed or ["nothing"]),
            _arguments(f"{tool} with these arguments", now, spec.get("run", "")),
        ]
    )


def _old_or_new(values: dict[str, Any], name: str) -> str:
    return "(not given)" if name not in values else one_line(safe_json(values[name], indent=None, sort_keys=True))


def _arguments(title: str, values: dict[str, Any], run: str) -> str:
    """Formats all arguments, names in order, with notes on what an eye would miss."""
    notes = [f"  {paint('note:', fg='yellow')} {note}" for note in _notes(values, run)]
    return "\n".join([_section(title, safe_json(values, sort_keys=True).split("\n")), *notes])


def _notes(value: Any, run: str, place: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if MASK in value:
            yield f"{place} is hidden in part or whole, as a secret; it is sent as it is"
        if CUT.search(value):
            yield f"{place} is not shown whole; `foliot trace {one_line(run)} --full` shows all of it"
        for word in _WORD.findall(value) if not value.isascii() else ():
            if sum(script.search(word) is not None for script in _SCRIPTS) > 1:
                yield f"{place} mixes alphabets that look alike: {word[:LONGEST]!a}"
                break
    elif isinstance(value, dict):
        for name, item in sorted(cast("dict[str, Any]", value).items()):
            if not name.isascii():
                yield f"the name {name[:LONGEST]!a} is not written in ASCII; another may look the same"
            yield from _notes(item, run, f"{place}/{one_line(name, LONGEST)}")
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _notes(item, run, f"{place}/{number}")


def _expires(document: Document, now: datetime) -> str:
    at = document["status"].get("expires_at")
    return f"{since(at, now=now)} ({at})" if at else "never"


def _facts(facts: dict[str, str]) -> Iterator[str]:
    width = max(map(len, facts))
    for name, value in facts.items():
        first, *rest = _broken(one_line(value), width + 4)
        if first:
            yield f"  {name.ljust(width)}  {first}"
            yield from (f"  {' ' * width}  {row}" for row in rest)


def _section(title: str, lines: Iterable[str]) -> str:
    rows = (row for line in lines for row in _broken(line, len(BAR)))
    return "\n".join([paint(title, bold=True), *(f"{BAR}{row}" for row in rows)])


def _broken(line: str, indent: int) -> list[str]:
    """The line in pieces that fit the terminal, counting each character as two columns wide when it may be."""
    if not is_terminal(sys.stdout):
        return [line]
    width = max(20, shutil.get_terminal_size().columns - indent - 1)
    rows, row, taken = list[str](), "", 0
    for char in line:
        columns = 1 if char.isascii() else 2
        if taken + columns > width:
            rows.append(row)
            row, taken = "", 0
        row, taken = row + char, taken + columns
    return [*rows, row]


def _verbs(document: Document) -> list[str]:
    name, space = document["metadata"]["name"], document["metadata"]["namespace"]
    where = "" if space == "default" else f" -n {one_line(space)}"
    return [f"foliot approvals {verb} {one_line(name)}{where}" for verb in ("approve", "deny", "edit")]


def story(trace: Trace, original: Trace | None = None) -> Iterable[str]:
    """Summarises the input and the steps of the run in a few lines; of a fork also what it shares with its original."""
    if trace.fork is not None:
        yield f"fork of {trace.fork.run_id}, whose past it shares: `foliot trace {trace.fork.run_id}` shows it"
        shared = [step for step in original.steps if step.number < trace.fork.step] if original is not None else []
        for step in shared[-STEPS:]:
            for line in _lines(step):
                yield f"in {trace.fork.run_id}, {line}"
    yield f"told: {one_line(trace.input, 100)}"
    if len(trace.steps) > STEPS:
        yield f"({len(trace.steps) - STEPS} earlier steps are left out; `foliot trace {trace.run_id}`)"
    for step in trace.steps[-STEPS:]:
        yield from _lines(step)


def _lines(step: StepTrace) -> Iterable[str]:
    if step.text.strip():
        yield f"step {step.number}: {one_line(step.text, 100)}"
    for call in step.calls:
        done = one_line(call.error.message if call.error else call.result, 60) if call.finished_at else "waits"
        # Its arguments stand above, masked: here they would be in clear.
        given = "" if call.approval else f" {arguments(call.arguments, 60)}"
        yield f"step {step.number}: {one_line(call.name, 60)}{given} → {done}"
