"""Approvals as people read them: a table of many, and the whole story of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from foliot.cli.output import as_json
from foliot.cli.tables import since, table
from foliot.cli.terminal import paint
from foliot.engine.approval.documents import uses_left, verdict
from foliot.engine.story.amounts import arguments
from foliot.engine.story.trace import Trace
from foliot.printable import one_line, visible
from foliot.store.base import Document

LONGEST = 60
STEPS = 5


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
        _scope(document) if spec.get("standing") else one_line(_pairs(spec.get("arguments", {})), LONGEST) or "-",
        one_line(spec.get("agent", ""), 40) or ("(any)" if spec.get("standing") else "-"),
        spec.get("run", "-"),
        status["phase"],
        since(status.get("expires_at"), now=now) if living else "-",
        one_line(status.get("decided_by", ""), 40) or "-",
    ]


def _scope(document: Document) -> str:
    """What a standing grant covers, in the place of arguments."""
    left = uses_left(document)
    uses = "" if left is None else f", {left} of {document['spec']['max_uses']} uses left"
    when = one_line(document["spec"].get("when", ""), LONGEST)
    return f"every call{f' where {when}' if when else ''}{uses}"


def _pairs(values: dict[str, Any]) -> str:
    import json

    return arguments(json.dumps(values, ensure_ascii=False), LONGEST)


def approval_text(document: Document, trace: Trace | None) -> str:
    """What is asked, why, for whom, what was decided, and how the run got there."""
    spec, status = document["spec"], document["status"]
    now = datetime.now(UTC)
    head = f"{paint(spec['tool'], bold=True)}  {paint(document['metadata']['name'], dim=True)}"
    facts = {
        "phase": status["phase"],
        "agent": spec.get("agent") or ("any" if spec.get("standing") else ""),
        "run": spec.get("run", ""),
        "covers": _scope(document) if spec.get("standing") else "",
        "does": spec.get("operation_class", ""),
        "why": spec.get("reason", ""),
        "approvers": ", ".join(spec.get("approvers", ())) or "anybody",
        "expires": _expires(document, now),
        "decided": verdict(document) if status["phase"] != "Pending" else "",
    }
    parts = [head + "\n" + _facts(facts)]
    if "arguments" in spec or not spec.get("standing"):
        parts.append(_section("Arguments", as_json(spec.get("arguments", {})).splitlines()))
    if status.get("edited_arguments"):
        parts.append(_section("Run with these instead", as_json(status["edited_arguments"]).splitlines()))
    if trace is not None:
        parts.append(_section("The run so far", list(story(trace))))
    if status["phase"] == "Pending":
        parts.append(_section("What you can do", _verbs(document)))
    return "\n\n".join(parts)


def _expires(document: Document, now: datetime) -> str:
    at = document["status"].get("expires_at")
    return f"{since(at, now=now)} ({at})" if at else "never"


def _facts(facts: dict[str, str]) -> str:
    width = max(map(len, facts))
    return "\n".join(f"  {name.ljust(width)}  {visible(value)}" for name, value in facts.items() if value)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([paint(title, bold=True), *(f"  {visible(line)}" for line in lines)])


def _verbs(document: Document) -> list[str]:
    name, space = document["metadata"]["name"], document["metadata"]["namespace"]
    where = "" if space == "default" else f" -n {space}"
    return [f"foliot approvals {verb} {name}{where}" for verb in ("approve", "deny", "edit")]


def story(trace: Trace) -> Iterable[str]:
    """What the run was told and what it did, in a few lines."""
    yield f"told: {one_line(trace.input, 100)}"
    if len(trace.steps) > STEPS:
        yield f"({len(trace.steps) - STEPS} earlier steps are left out; `foliot trace {trace.run_id}`)"
    for step in trace.steps[-STEPS:]:
        if step.text.strip():
            yield f"step {step.number}: {one_line(step.text, 100)}"
        for call in step.calls:
            done = one_line(call.error.message if call.error else call.result, 60) if call.finished_at else "waits"
            # Its arguments stand above, masked: here they would be in clear.
            given = "" if call.approval else f" {arguments(call.arguments, 60)}"
            yield f"step {step.number}: {call.name}{given} → {done}"
