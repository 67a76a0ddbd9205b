"""The plan that brings the Tools of a server in line with its announcements. Pure: documents in, a plan out.

Only Tools that were generated for this very server, in its own namespace, are ever touched. What people changed in a
generated Tool (its limits, its risk) stays: a definition that did not change is not written again.

A tool that was never seen is agreed to as it is announced. From then on the server has no say in it: another definition
is kept from use until a person accepts it, the risk of a Tool is never lowered by what the server says of itself, and
the name of a Tool belongs to one tool of one server for ever, whatever goes away and comes back meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from foliot.resources.agreed import LONGEST_NAME, Agreed, Levels, tool_of_server
from foliot.resources.validate import validate_document
from foliot.tools.mcp.pins import Announced, in_words, read_pin
from foliot.tools.mcp.process import ServerSpec

# --- naming ----------------------------------------------------------------------------------------------------------

# Names of generated Tools: `<server>--<tool>`, made of what every model provider accepts.

LONGEST: Final = 64
"""The longest name of a function that the large providers take."""

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9-]+")


def base_name(server: str, tool: str) -> str:
    """The name that a tool would like to have. `_`, `.` and everything unusual turn into `-`; long names are cut."""
    name = f"{_plain(server, 'server')}--{_plain(tool, 'tool')}"
    if len(name) <= LONGEST:
        return name
    mark = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-')}-{mark}"


def assign_names(
    server: str, tools: Iterable[str], *, kept: Mapping[str, str], taken: Collection[str]
) -> dict[str, str]:
    """A name for each tool. `kept` are the names that tools have already; `taken` belong to others.

    Tools that want the same name are numbered in the order of their own names: `a--b`, `a--b-2`. A name once given
    stays with its tool, whatever comes later.
    """
    tools = sorted(set(tools))
    names = {tool: kept[tool] for tool in tools if tool in kept}
    used = {*taken, *kept.values()}
    for tool in tools:
        if tool not in names:
            names[tool] = _free(base_name(server, tool), used)
            used.add(names[tool])
    return names


def _free(wanted: str, used: Collection[str]) -> str:
    name, number = wanted, 1
    while name in used:
        number += 1
        suffix = f"-{number}"
        name = wanted[: LONGEST - len(suffix)].rstrip("-") + suffix
    return name


def _plain(text: str, otherwise: str) -> str:
    return _FOREIGN.sub("-", text.replace("_", "-").replace(".", "-")).strip("-") or otherwise


# --- sync ------------------------------------------------------------------------------------------------------------

Document: TypeAlias = dict[str, Any]

SERVER_LABEL: Final = "foliot.dev/mcp-server"
GENERATED_LABEL: Final = "foliot.dev/mcp-generated"
OLD_ANNOTATIONS: Final = ("foliot.dev/mcp-pin", "foliot.dev/mcp-quarantine")
"""Where pins stood once. They decide nothing any more, and are taken away."""
LONGEST_DESCRIPTION: Final = 4096
MOST_AGREED: Final = 10_000
"""How many tools of one server are ever agreed to by themselves: none is forgotten to make room for others."""
MOST_GONE: Final = 500
"""How many tools that are gone a server's status lists."""
NOBODY_AGREED: Final = "nobody has agreed to its definition in this store"

_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Consent:
    """A person's agreement to the definition of this digest, and to levels by field, which may be lower than before."""

    digest: str
    levels: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Tools to store as given and to delete by name, what was found of each, and which are to be kept from use."""

    create: list[Document] = field(default_factory=list[Document])
    update: list[Document] = field(default_factory=list[Document])
    delete: list[str] = field(default_factory=list[str])
    discovered: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    generated: list[str] = field(default_factory=list[str])
    quarantined: dict[str, str] = field(default_factory=dict[str, str])
    """By the Tool's name: why, in words."""
    agreed: list[Agreed] = field(default_factory=list[Agreed])
    """Return the agreement from now on about the tools of this server."""


def is_generated_for(server: ServerSpec, tool: Mapping[str, Any]) -> bool:
    """Whether a Tool says of itself that it was generated for this server."""
    labels: Mapping[str, str] = tool["metadata"].get("labels") or {}
    return labels.get(GENERATED_LABEL) == "true" and _names(server, tool)


def _names(server: ServerSpec, tool: Mapping[str, Any]) -> bool:
    """Whether it is a Tool beside the server that names a tool of it."""
    named = tool_of_server(tool)
    home: str = tool["metadata"].get("namespace", "default")
    return named is not None and home == server.namespace and named[:2] == server.key


def server_label(name: str) -> str:
    """The server's name as the value of a label, which is shorter than names may be."""
    return name if _LABEL.fullmatch(name) else f"sha256-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def plan_sync(
    server: ServerSpec,
    announced: Mapping[str, Announced],
    tools: Sequence[Document],
    agreed: Sequence[Agreed] = (),
    *,
    accept: Mapping[str, Consent] | None = None,
) -> SyncPlan:
    """Compare what `server` announces with the Tools of its namespace, and with what was agreed to in the namespace.

    `accept` says, by tool, what a person agreed to just now.
    """
    rows = {row.tool: row for row in agreed if (row.namespace, row.server) == server.key}
    mine = _own_tools(server, tools, rows)
    wanted = [name for name in sorted(announced) if not server.include or name in server.include]
    names = _names_for(server, [name for name in wanted if _fit(name)], mine, tools, agreed)
    plan = SyncPlan()
    for name in wanted:
        tool, consent = announced[name], (accept or {}).get(name)
        entry: dict[str, Any] = {"name": name, "digest": tool.pin.digest, "state": "ready"}
        plan.discovered.append(entry)
        if not _fit(name):
            entry |= {"state": "invalid", "problem": "its name is too long, or has characters that are none"}
        elif name not in rows and len(rows) >= MOST_AGREED and consent is None:
            entry |= {"state": "invalid", "problem": f"the server has had {MOST_AGREED} other tools: accept it first"}
        else:
            consent = consent if consent is not None and consent.digest == tool.pin.digest else None
            _plan_one(plan, entry, server, tool, names[name], mine.get(name), rows.get(name), consent)
    for name, document in sorted(mine.items()):
        if name not in wanted:
            plan.delete.append(str(document["metadata"]["name"]))
            row, left = rows.get(name), _unknown(server, name, document)
            if row is None and _fit(name):
                plan.agreed.append(left.keeping(document))
            elif row is not None and not row.name:  # of others the store keeps it, whoever deletes them
                plan.agreed.append(replace(row, name=left.name, levels=left.levels).keeping(document))
    for name in sorted(announced.keys() - set(wanted)):
        plan.discovered.append({"name": name, "digest": announced[name].pin.digest, "state": "filtered"})
    gone = sorted((rows.keys() | mine.keys()) - announced.keys())[:MOST_GONE]
    plan.discovered.extend({"name": name, "state": "gone"} for name in gone)
    return plan


def _own_tools(server: ServerSpec, tools: Sequence[Document], rows: Mapping[str, Agreed]) -> dict[str, Document]:
    """The generated Tools by the tool that they name.

    The table says which they are. One that only says so itself came from a store of another installation, or was there
    before the table and had lost its pin: it is looked after as well, and nobody has agreed to it.
    """
    found: dict[str, Document] = {}
    for document in tools:
        if not _names(server, document):
            continue
        tool = str(document["spec"]["mcp_tool_name"])
        known = rows[tool].name if tool in rows else ""
        if document["metadata"]["name"] == known or (not known and is_generated_for(server, document)):
            found[tool] = document
    return found


def _names_for(
    server: ServerSpec,
    wanted: Sequence[str],
    mine: Mapping[str, Document],
    tools: Sequence[Document],
    agreed: Sequence[Agreed],
) -> dict[str, str]:
    """The names that Tools have had stay theirs; one that people gave to something else meanwhile is lost."""
    own = {name: str(document["metadata"]["name"]) for name, document in mine.items()}
    others = {str(document["metadata"]["name"]) for document in tools} - set(own.values())
    ours = {row.tool: row.name for row in agreed if row.name and (row.namespace, row.server) == server.key}
    kept = {tool: name for tool, name in {**ours, **own}.items() if name not in others}
    taken = {*others, *(row.name for row in agreed if row.name)}
    return assign_names(server.name, wanted, kept=kept, taken=taken)


def _plan_one(
    plan: SyncPlan,
    entry: dict[str, Any],
    server: ServerSpec,
    tool: Announced,
    name: str,
    existing: Document | None,
    row: Agreed | None,
    consent: Consent | None,
) -> None:
    fresh = Agreed(server.namespace, server.name, tool.name, name, tool.pin.text(), tool.text(), _levels_said(tool))
    before = row or (fresh if existing is None else _unknown(server, tool.name, existing))
    if not before.name:  # known only as one that went away, before levels were kept
        before = replace(before, levels=fresh.levels)
    same = read_pin(before.pin).digest == tool.pin.digest
    if not same and consent is None:
        changed = read_pin(before.pin).changed(tool.pin) if before.pin else []
        why = f"the server changed {in_words(changed)}" if changed else NOBODY_AGREED
        entry |= {"state": "quarantined", "changed": changed, "why": why}
        plan.quarantined[name] = why
        plan.agreed.append(replace(before, held=why))
        if existing is not None:
            # The definition that was agreed to stays as it is. One that came back as another is shown to no model.
            _put(plan, entry, name, _marked(server, existing), existing)
        return
    levels = _levels(before, fresh.levels, existing, consent, same=same)
    if existing is not None and same:
        spec = existing["spec"] if consent is None else levels.into(existing["spec"])
        document, problems = _marked(server, {**existing, "spec": _raised(spec, levels)}), ""
    else:
        document, problems = _generate(server, tool, name, existing, levels, before.settings())
    if document is None:
        entry |= {"state": "invalid", "problem": problems}
        if existing is None:
            return
        _put(plan, entry, name, existing, existing)
        return
    plan.agreed.append(replace(before, name=name, pin=fresh.pin, definition=fresh.definition, levels=levels, held=""))
    _put(plan, entry, name, document, existing)


def _put(plan: SyncPlan, entry: dict[str, Any], name: str, document: Document, existing: Document | None) -> None:
    entry["tool"] = name
    plan.generated.append(name)
    if existing is None:
        plan.create.append(document)
    elif document != existing:
        plan.update.append(document)


def _levels(before: Agreed, said: Levels, existing: Document | None, consent: Consent | None, *, same: bool) -> Levels:
    """The least that a Tool may say from now on. What the server says of itself only ever raises it."""
    if consent is None:
        return before.levels
    raised = before.levels if same else before.levels.stricter(said)
    if existing is not None:
        raised = raised.stricter(Levels.of(existing["spec"]))
    return replace(raised, **consent.levels)


def _raised(spec: Mapping[str, Any], levels: Levels) -> Mapping[str, Any]:
    """The spec of a Tool that is there, with at least these levels."""
    now = Levels.of(spec)
    return now.stricter(levels).into(spec) if now.below(levels) else spec


def _levels_said(tool: Announced) -> Levels:
    return Levels.of(_hinted(tool))


def _unknown(server: ServerSpec, tool: str, existing: Document) -> Agreed:
    """Make the record of a generated Tool that nobody has agreed to: its name, and its levels."""
    name = str(existing["metadata"]["name"])
    levels = Levels.of(existing["spec"])
    return Agreed(server.namespace, server.name, tool, name, "", "", levels, held=NOBODY_AGREED)


def _generate(
    server: ServerSpec,
    tool: Announced,
    name: str,
    existing: Document | None,
    levels: Levels,
    settings: Mapping[str, Any],
) -> tuple[Document | None, str]:
    """The Tool as it should be stored, or None and why there can be none. `settings`: of an earlier one of its name."""
    before: Mapping[str, Any] = existing["spec"] if existing else settings
    spec = {**before, **_spec(server, tool)}
    if "runtime" in before:
        spec["runtime"] = before["runtime"]
    metadata = {"name": name, "namespace": server.namespace, "labels": _labels(server)}
    document, problems = validate_document({"kind": "Tool", "metadata": metadata, "spec": levels.into(spec)})
    if document is None:
        return None, "; ".join(str(problem) for problem in problems)[:1000]
    if existing is not None:
        return {**_marked(server, existing), "spec": document["spec"]}, ""
    return document, ""


def _spec(server: ServerSpec, tool: Announced) -> dict[str, Any]:
    return {
        "type": "mcp",
        "mcp_server_ref": server.name,
        "mcp_tool_name": tool.name,
        "description": tool.description[:LONGEST_DESCRIPTION],
        "input_schema": dict(tool.input_schema),
        # The call leaves for another process, which is what would have to be contained; nothing of it runs here.
        "runtime": {"isolation_mode": "none"},
        **_hinted(tool),
    }


def _hinted(tool: Announced) -> dict[str, Any]:
    """Hints decide what a repeated call would do. Without any, a tool is taken for one that changes things."""
    hints = tool.hints
    if hints.get("read_only_hint"):
        return {"effect": "read", "operation_classes": ["read"], "risk_level": "low"}
    effect = "idempotent" if hints.get("idempotent_hint") else "once"
    match hints.get("destructive_hint"):
        case True:
            return {"effect": effect, "operation_classes": ["write", "delete"], "risk_level": "high"}
        case False:
            return {"effect": effect, "operation_classes": ["write"], "risk_level": "low"}
        case None:
            return {"effect": effect, "operation_classes": ["write"], "risk_level": "medium"}


def _labels(server: ServerSpec) -> dict[str, str]:
    return {SERVER_LABEL: server_label(server.name), GENERATED_LABEL: "true"}


def _marked(server: ServerSpec, tool: Document) -> Document:
    """The Tool with the labels that say where it comes from, and without the annotations that once held its pin."""
    given: dict[str, Any] = tool["metadata"]
    metadata = {name: value for name, value in given.items() if name not in ("labels", "annotations")}
    labels: dict[str, str] = given.get("labels") or {}
    annotations: dict[str, str] = given.get("annotations") or {}
    metadata["labels"] = {**labels, **_labels(server)}
    if others := {key: text for key, text in annotations.items() if key not in OLD_ANNOTATIONS}:
        metadata["annotations"] = others
    return {**tool, "metadata": metadata}


def _fit(name: str) -> bool:
    """Whether the store can keep the name of a tool."""
    return 0 < len(name) <= LONGEST_NAME and not _UNFIT.search(name)
