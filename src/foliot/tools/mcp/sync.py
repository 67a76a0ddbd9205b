"""What has to happen so that the Tools of a server are those that it announces. Pure: documents in, a plan out.

Only Tools that were generated for this very server, in its own namespace, are ever touched. What people changed in a
generated Tool (its limits, its risk) stays: a definition that did not change is not written again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from foliot.resources.validate import validate_document
from foliot.tools.mcp.naming import assign_names
from foliot.tools.mcp.pins import PIN, Announced, Pin, in_words, read_pin
from foliot.tools.mcp.server import ServerSpec

Document: TypeAlias = dict[str, Any]

SERVER_LABEL: Final = "foliot.dev/mcp-server"
GENERATED_LABEL: Final = "foliot.dev/mcp-generated"
QUARANTINE: Final = "foliot.dev/mcp-quarantine"
LONGEST_DESCRIPTION: Final = 4096
REMEMBERED: Final = 500
"""How many tools that are gone a server's status remembers, so that none comes back as something else unnoticed."""

_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Tools to store as given and to delete by name, what was found of each, and which are to be kept from use."""

    create: list[Document] = field(default_factory=list[Document])
    update: list[Document] = field(default_factory=list[Document])
    delete: list[str] = field(default_factory=list[str])
    discovered: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    generated: list[str] = field(default_factory=list[str])
    quarantined: dict[str, str] = field(default_factory=dict[str, str])
    """By the Tool's name: what changed, in words."""


def is_generated_for(server: ServerSpec, tool: Mapping[str, Any]) -> bool:
    metadata, spec = tool["metadata"], tool["spec"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    return (
        metadata.get("namespace", "default") == server.namespace
        and labels.get(GENERATED_LABEL) == "true"
        and spec.get("type") == "mcp"
        and spec.get("mcp_server_ref") in (server.name, f"{server.namespace}/{server.name}")
    )


def server_label(name: str) -> str:
    """The server's name as the value of a label, which is shorter than names may be."""
    return name if _LABEL.fullmatch(name) else f"sha256-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def plan_sync(
    server: ServerSpec,
    announced: Mapping[str, Announced],
    tools: Sequence[Document],
    *,
    remembered: Sequence[Any] = (),
    accept: Mapping[str, str] | None = None,
) -> SyncPlan:
    """Compare what `server` announces with the Tools of its namespace.

    `remembered` is `status.discoveredTools` of the last time: the pins of tools that went away. `accept` gives,
    by tool, the digest of the definition that a person agreed to.
    """
    mine = {str(tool["spec"]["mcp_tool_name"]): tool for tool in tools if is_generated_for(server, tool)}
    wanted = [name for name in sorted(announced) if not server.include or name in server.include]
    kept = {name: str(tool["metadata"]["name"]) for name, tool in mine.items()}
    own = set(kept.values())
    taken = {str(tool["metadata"]["name"]) for tool in tools} - own
    names = assign_names(server.name, wanted, kept=kept, taken=taken)
    pins = _remembered_pins(remembered)
    plan = SyncPlan()
    for name in wanted:
        pin = _pin_of(mine.get(name)) or pins.get(name)
        if (accept or {}).get(name) == announced[name].pin.digest:
            pin = None
        _plan_one(plan, server, announced[name], names[name], mine.get(name), pin)
    for name, tool in sorted(mine.items()):
        if name not in names:
            plan.delete.append(str(tool["metadata"]["name"]))
            if (pin := _pin_of(tool)) is not None:
                pins[name] = pin
    _remember_others(plan, announced, wanted, pins)
    return plan


def _plan_one(
    plan: SyncPlan, server: ServerSpec, tool: Announced, name: str, existing: Document | None, pin: Pin | None
) -> None:
    entry: dict[str, Any] = {"name": tool.name, "digest": tool.pin.digest, "state": "ready"}
    plan.discovered.append(entry)
    changed = pin.changed(tool.pin) if pin is not None else []
    if changed:
        entry |= {"state": "quarantined", "changed": changed}
        plan.quarantined[name] = in_words(changed)
    if existing is None and pin is not None and changed:
        entry["pin"] = pin.text()  # it went away and came back as something else: no model is shown that unasked
        return
    document, problems = _generate(server, tool, name, pin or tool.pin, existing, changed)
    if document is None:
        entry |= {"state": "invalid", "problem": problems}
        if existing is None:
            return
        document = existing
    entry["tool"] = name
    plan.generated.append(name)
    if existing is None:
        plan.create.append(document)
    elif document != existing:
        plan.update.append(document)


def _generate(
    server: ServerSpec, tool: Announced, name: str, pin: Pin, existing: Document | None, changed: Sequence[str]
) -> tuple[Document | None, str]:
    """The Tool as it should be stored, or None and why there can be none."""
    annotations = {PIN: pin.text()}
    if changed:
        annotations[QUARANTINE] = json.dumps({"digest": tool.pin.digest, "changed": list(changed)})
    if existing is not None and (changed or _pin_of(existing) == tool.pin):
        return _annotated(existing, annotations), ""  # the definition that was agreed to stays as it is
    before: dict[str, Any] = existing["spec"] if existing else {}
    spec = {**before, **_spec(server, tool)}
    if "runtime" in before:
        spec["runtime"] = before["runtime"]
    metadata = {
        "name": name,
        "namespace": server.namespace,
        "labels": {SERVER_LABEL: server_label(server.name), GENERATED_LABEL: "true"},
        "annotations": annotations,
    }
    document, problems = validate_document({"kind": "Tool", "metadata": metadata, "spec": spec})
    if document is None:
        return None, "; ".join(str(problem) for problem in problems)[:1000]
    if existing is not None:
        return {**_annotated(existing, annotations), "spec": document["spec"]}, ""
    return document, ""


def _spec(server: ServerSpec, tool: Announced) -> dict[str, Any]:
    """Hints decide what a repeated call would do. Without any, a tool is taken for one that changes things."""
    hints = tool.hints
    spec: dict[str, Any] = {
        "type": "mcp",
        "mcp_server_ref": server.name,
        "mcp_tool_name": tool.name,
        "description": tool.description[:LONGEST_DESCRIPTION],
        "input_schema": dict(tool.input_schema),
        # The call leaves for another process, which is what would have to be contained; nothing of it runs here.
        "runtime": {"isolation_mode": "none"},
    }
    if hints.get("read_only_hint"):
        return spec | {"effect": "read", "operation_classes": ["read"], "risk_level": "low"}
    spec["effect"] = "idempotent" if hints.get("idempotent_hint") else "once"
    match hints.get("destructive_hint"):
        case True:
            return spec | {"operation_classes": ["write", "delete"], "risk_level": "high"}
        case False:
            return spec | {"operation_classes": ["write"], "risk_level": "low"}
        case None:
            return spec | {"operation_classes": ["write"], "risk_level": "medium"}


def _annotated(tool: Document, annotations: Mapping[str, str]) -> Document:
    metadata = tool["metadata"]
    given: dict[str, str] = metadata.get("annotations") or {}
    others = {key: text for key, text in given.items() if key not in (PIN, QUARANTINE)}
    return {**tool, "metadata": {**metadata, "annotations": {**others, **annotations}}}


def _pin_of(tool: Document | None) -> Pin | None:
    if tool is None:
        return None
    annotations: dict[str, str] = tool["metadata"].get("annotations") or {}
    return read_pin(annotations[PIN]) if PIN in annotations else None


def _remembered_pins(entries: Sequence[Any]) -> dict[str, Pin]:
    found: dict[str, Pin] = {}
    for entry in entries:
        match entry:
            case {"name": str() as name, "pin": str() as pin}:
                found[name] = read_pin(pin)
            case _:
                continue
    return found


def _remember_others(
    plan: SyncPlan, announced: Mapping[str, Announced], wanted: Collection[str], pins: Mapping[str, Pin]
) -> None:
    """Tools that are filtered out or gone stay in the status, with the pin that they had."""
    for name in sorted(announced.keys() - set(wanted)):
        pin = {"pin": pins[name].text()} if name in pins else {}
        plan.discovered.append({"name": name, "digest": announced[name].pin.digest, "state": "filtered", **pin})
    gone = sorted(pins.keys() - announced.keys())[:REMEMBERED]
    plan.discovered.extend({"name": name, "state": "gone", "pin": pins[name].text()} for name in gone)
