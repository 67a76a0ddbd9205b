"""The agreement about one tool of an MCP server: its definition, and the least that a Tool may say of its risk.

The store keeps it in a table of its own, because what people apply can be anything: a file that was written before the
server changed its mind, or one without labels and annotations. Every Tool that names the same tool of the same server
is held against it, whatever the Tool is called, when it is declared and when it is called.

Written by:  catalog/mcp.py, when a tool is first seen, and when a person accepts.
Read by:     tools/mcp (sync and calls), store/resources/changes.py (what may be declared).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from foliot.errors import Denied, InvalidInput
from foliot.resources.references import target_of

# From what lets most pass to what lets least; what is not given is the first.
RISKS: Final = ("low", "medium", "high", "critical")
DANGEROUS: Final = ("high", "critical")
EFFECTS: Final = ("read", "idempotent", "once")
ISOLATIONS: Final = ("none", "sandboxed", "container", "wasm")
_ORDERS: Final = {"risk_level": RISKS, "effect": EFFECTS, "isolation_mode": ISOLATIONS}
LONGEST_NAME: Final = 253
# What people set in a generated Tool, and its server has no say in. Not `auth`: whose secrets a Tool uses is decided by
# the rights of whoever declares it, and the next Tool is declared by whoever declared the server.
_SET_BY_PEOPLE: Final = (
    "version", "category", "on_unknown", "capabilities", "requires", "requires_prior", "after", "resource_keys",
    "on_dependency_failure", "deprecated_since", "replaced_by", "record", "rate_limit", "price_usd", "runtime",
)  # fmt: skip


def operation_classes(effect: str, risk: str) -> tuple[Literal["read", "write"], ...]:
    """Returns the classes of a tool that does not say them: `read` when it changes nothing and little can go wrong."""
    return ("read",) if effect == "read" and risk not in DANGEROUS else ("write",)


@dataclass(frozen=True, slots=True)
class Levels:
    """The fields of a Tool of an MCP server by which rules decide."""

    risk_level: str = "low"
    effect: str = "read"
    isolation_mode: str = "none"
    operation_classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Levels:
        """Read the levels of a normalised Tool."""
        runtime: Mapping[str, Any] = spec.get("runtime") or {}
        return cls(
            _known(spec.get("risk_level"), RISKS),
            _known(spec.get("effect"), EFFECTS),
            _known(runtime.get("isolation_mode"), ISOLATIONS),
            tuple(spec.get("operation_classes") or ()),
        )

    def into(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The spec with these levels."""
        before: Mapping[str, Any] = spec.get("runtime") or {}
        runtime = {**before, "isolation_mode": self.isolation_mode}
        said = {"risk_level": self.risk_level, "effect": self.effect, "operation_classes": [*self.operation_classes]}
        return {**spec, **said, "runtime": runtime}

    def below(self, floor: Levels) -> list[str]:
        """The fields in which these say less than `floor`; empty when they are as strict or stricter."""
        found = [field for field, order in _ORDERS.items() if _place(self, field, order) < _place(floor, field, order)]
        return found + ["operation_classes"] * (not set(floor.operation_classes) <= set(self.operation_classes))

    def stricter(self, other: Levels) -> Levels:
        """Returns the stricter level of each field."""
        chosen = {
            field: max(getattr(self, field), getattr(other, field), key=order.index) for field, order in _ORDERS.items()
        }
        more = tuple(word for word in other.operation_classes if word not in self.operation_classes)
        return Levels(**chosen, operation_classes=self.operation_classes + more)

    def text(self, kept: str = "") -> str:
        """Give the form that is stored, beside what people set (see `Agreed.kept`)."""
        said = {"operation_classes": self.operation_classes, **{f: getattr(self, f) for f in _ORDERS}}
        return json.dumps({**said, "kept": json.loads(kept)} if kept else said)

    @classmethod
    def read(cls, text: str) -> Levels:
        """From what is stored. What cannot be read is the strictest there is: what is damaged refuses."""
        try:
            fields = json.loads(text)
            words = {field: order[order.index(fields[field])] for field, order in _ORDERS.items()}
            levels = cls(**words, operation_classes=tuple(str(word) for word in fields["operation_classes"] or ()))
        except (ValueError, KeyError, TypeError):
            return cls(RISKS[-1], EFFECTS[-1], ISOLATIONS[-1])
        return levels


@dataclass(frozen=True, slots=True)
class Agreed:
    """One tool of a server. `name` is the Tool that was generated for it, for ever: no other tool ever gets the name.

    `pin` is the digest of the definition that was agreed to, with those of its parts; blank when nobody has agreed.
    `definition` is its text. `held` says why the tool is kept from use until somebody accepts; blank when it is not.
    `kept` is JSON: what people had set in its Tool (a category, a price, limits) when that went away; blank before.
    """

    namespace: str
    server: str
    tool: str
    name: str
    pin: str
    definition: str
    levels: Levels
    held: str = ""
    kept: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.server, self.tool

    def with_levels(self, levels: Levels) -> Agreed:
        return replace(self, levels=levels)

    def keeping(self, tool: Mapping[str, Any]) -> Agreed:
        """The record with what people set in `tool`, which goes away."""
        spec: Mapping[str, Any] = tool.get("spec") or {}
        kept = {field: spec[field] for field in _SET_BY_PEOPLE if field in spec}
        return replace(self, kept=json.dumps(kept) if kept else "")

    def settings(self) -> dict[str, Any]:
        """Return the settings that people had made in the Tool that went away."""
        return json.loads(self.kept) if self.kept else {}

    def way(self) -> str:
        """The command by which somebody agrees."""
        return f"`foliot mcp accept {self.server} {self.tool} -n {self.namespace}`"


def read_kept(text: str) -> str:
    """Read `Agreed.kept` beside levels that are stored; blank when there is none."""
    try:
        kept: dict[str, Any] = json.loads(text)["kept"]
        known = {field: value for field, value in kept.items() if field in _SET_BY_PEOPLE}
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return json.dumps(known) if known else ""


def tool_of_server(document: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The namespace, server and tool that a Tool of the type `mcp` names; None for every other Tool."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    ref, tool = spec.get("mcp_server_ref"), spec.get("mcp_tool_name")
    if spec.get("type") != "mcp" or not isinstance(ref, str) or not isinstance(tool, str) or not ref or not tool:
        return None
    metadata = cast("Mapping[str, Any]", document["metadata"])
    try:
        _, namespace, name = target_of("McpServer", ref, metadata.get("namespace") or "default")
    except InvalidInput:
        return None
    return namespace, name, tool


def check_declared(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], agreed: Sequence[Agreed], *, may_lower: bool
) -> Agreed | None:
    """Hold a Tool that somebody writes over `before` against what was agreed to about it.

    `agreed` is what is kept about the tool that it names, and about the Tool of its name. Whoever `may_lower` lowers
    what was agreed to with the Tool that was generated for it: then that is returned as it is from now on. Raises
    `Denied`.
    """
    metadata: Mapping[str, Any] = after["metadata"]
    home, name = metadata.get("namespace") or "default", metadata["name"]
    levels, named = Levels.of(after.get("spec") or {}), tool_of_server(after)
    now: Agreed | None = None
    for each in agreed:
        own = (each.namespace, each.name) == (home, name)
        if not own and each.place != named:
            continue
        floor = each.levels
        if own and before is not None:
            floor = floor.stricter(Levels.of(before.get("spec") or {}))
        if not (less := levels.below(floor)):
            continue
        if not own or not may_lower:
            raise lowered(f"Tool/{name} in namespace {home!r}", each, less, floor)
        if named == each.place:
            now = each.with_levels(levels)
    return now


def lowered(which: str, agreed: Agreed, less: Sequence[str], floor: Levels) -> Denied:
    """The refusal of a Tool that says less than what was agreed to."""
    said = ", ".join(f"{field} {_words(getattr(floor, field))}" for field in less)
    options = " ".join(f"{OPTIONS[field]} …" for field in less)
    return Denied(
        f"{which} would lower what was agreed to for {agreed.tool!r} of MCP server {agreed.server!r}: {said}",
        hint=f"keep it, or lower it with {agreed.way()[:-1]} {options}`; over HTTP the role admin lowers it in the "
        f"Tool {agreed.name or 'that was generated'}",
        layer="pin",
        fields=",".join(less),
    )


OPTIONS: Final = {
    "risk_level": "--risk",
    "effect": "--effect",
    "isolation_mode": "--isolation",
    "operation_classes": "--operation",
}


def _words(value: Any) -> str:
    return "+".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def _known(word: Any, order: Sequence[str]) -> str:
    return word if word in order else order[0]


def _place(levels: Levels, field: str, order: Sequence[str]) -> int:
    return order.index(getattr(levels, field))
