"""From declared documents to the rules of a namespace.

A document that cannot be read is not left out. It is remembered as broken, and what it may have governed is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

from foliot.common.durations import seconds
from foliot.errors import FoliotError
from foliot.resources.references import Origin, ReferenceGrants, Target
from foliot.tools.declared_fences import ceiling_of
from foliot.tools.governance.cel import Expression
from foliot.tools.governance.rules import (
    ASK_SECONDS,
    EVERY_TOOL,
    OUTCOMES,
    STRICTNESS,
    Access,
    Outcome,
    Permission,
    Policy,
    Role,
    RuleCondition,
    Rules,
    StandingGrant,
    permission_token,
    placed,
    tool_token,
)

Document: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

KINDS: Final = ("AgentRole", "ToolPermission", "AgentPolicy")


class ReadDocuments:
    """Keeps what was read from documents, by the version of each: one that has not changed is not read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Any] = {}
        self._used: dict[tuple[str, ...], Any] = {}

    def once(self, document: Document, read: Callable[[Document], T]) -> T:
        """Returns what `read` makes of the spec of a document. Raises what it raises, each time."""
        metadata: Document = document["metadata"]
        version = metadata.get("resourceVersion")
        if version is None:
            return read(document["spec"])
        place = document["kind"], metadata.get("namespace", "default"), metadata["name"], version
        known = self._known
        found = known[place] if place in known else read(document["spec"])
        self._used[place] = found
        return found

    def forget_others(self) -> None:
        """Keep what was asked for since the last time."""
        self._known, self._used = self._used, {}


def read_rules(
    namespace: str,
    documents: Iterable[Document],
    *,
    grants: Iterable[StandingGrant] = (),
    default_access: Access = "allow",
    read: ReadDocuments | None = None,
) -> Rules:
    """Rules from AgentRole, ToolPermission and AgentPolicy documents; other kinds are passed over.

    Permissions and policies count only in their own namespace. A role of another one can be named in full where a
    ReferenceGrant among the documents allows it. Never raises for a document: one that cannot be read makes what it
    governs refused. `read` keeps what was understood, for the next time that the rules of this namespace are read.
    """
    documents, read = [*documents], read or ReadDocuments()
    shared = ReferenceGrants(documents)
    agents = Origin("Agent", namespace)
    roles: dict[str, Role] = {}
    permissions: dict[str, list[Permission]] = {}
    policies: list[Policy] = []
    broken: dict[str, str] = {}
    for document in documents:
        kind: str = document.get("kind", "")
        metadata: Document = document.get("metadata") or {}
        home: str = metadata.get("namespace", "default")
        name: str = metadata.get("name", "")
        if kind not in KINDS or (kind != "AgentRole" and home != namespace):
            continue
        if kind == "AgentRole" and not shared.allow(agents, Target(kind, home, name)):
            continue
        try:
            if kind == "AgentRole":
                roles[f"{home}/{name}"] = read.once(document, lambda spec, name=name: _role(name, spec))
            elif kind == "ToolPermission":
                permission = read.once(document, lambda spec, name=name: _permission(namespace, name, spec))
                permissions.setdefault(permission.tool, []).append(permission)
            else:
                policies.append(read.once(document, lambda spec, name=name: _policy(namespace, name, spec)))
        except (FoliotError, ValueError, KeyError, TypeError, AttributeError) as error:
            # A role that cannot be read is a role that is missing, which refuses whoever has it.
            if kind != "AgentRole":
                said = f"{error!s}" if isinstance(error, FoliotError) else f"{type(error).__name__}: {error}"
                broken.setdefault(_governed(kind, name, document), f"{kind}/{name}: {said}")
    read.forget_others()
    return Rules(
        namespace=namespace,
        roles=roles,
        permissions={tool: tuple(sorted(found, key=lambda rule: rule.name)) for tool, found in permissions.items()},
        policies=tuple(sorted(policies, key=lambda policy: policy.name)),
        grants=tuple(grants),
        default_access=default_access,
        broken=broken,
    )


def _governed(kind: str, name: str, document: Document) -> str:
    """Which tool a broken document is about; every tool when it does not say so beyond doubt."""
    spec = document.get("spec")
    if kind != "ToolPermission" or not isinstance(spec, Mapping):
        return EVERY_TOOL
    tool: Any = cast("Document", spec).get("tool_ref") or name
    return tool_token(tool.partition("@")[0]) if isinstance(tool, str) and "*" not in tool else EVERY_TOOL


def _role(name: str, spec: Document) -> Role:
    return Role(name, frozenset(permission_token(text) for text in _words(spec, "permissions")))


def _permission(namespace: str, name: str, spec: Document) -> Permission:
    scoped = _word(spec, "apply_mode", ("global", "scoped"))
    here = f"{namespace.lower()}/"
    agents = frozenset(agent.strip().lower().removeprefix(here) for agent in _words(spec, "target_agents"))
    return Permission(
        name=name,
        tool=_one_tool(spec.get("tool_ref") or name),
        action=tool_token(spec.get("action") or "invoke"),
        required=tuple(permission_token(text) for text in _words(spec, "required_permissions")),
        any_of=_word(spec, "match_mode", ("all", "any")) == "any",
        agents=agents if scoped == "scoped" else None,
        operations=_operations(spec.get("operation_rules") or ()),
        conditions=tuple(
            RuleCondition(Expression(each["when"]), OUTCOMES[each["verdict"]], each.get("reason", ""))
            for each in spec.get("conditions") or ()
        ),
        approvers=_words(spec, "approvers"),
        ask_seconds=seconds(spec["approval_ttl"]) if spec.get("approval_ttl") else ASK_SECONDS,
        required_approvals=int(spec.get("required_approvals") or 1),
        four_eyes=bool(spec.get("four_eyes")),
    )


def _operations(rules: Iterable[Document]) -> dict[str, Outcome]:
    """The strictest of several rules for one class."""
    found: dict[str, Outcome] = {}
    for rule in rules:
        name, outcome = (rule.get("operation_class") or "*").strip().lower(), OUTCOMES[rule.get("verdict") or "allow"]
        found[name] = max(found.get(name, outcome), outcome, key=STRICTNESS.__getitem__)
    return found


def _policy(namespace: str, name: str, spec: Document) -> Policy:
    ask: Any = _word(spec, "ask", ("off", "on-miss", "always"))
    return Policy(
        name=name,
        everywhere=_word(spec, "apply_mode", ("scoped", "global")) == "global",
        systems=frozenset(placed(word, namespace) for word in _words(spec, "target_systems")),
        tasks=frozenset(placed(word, namespace) for word in _words(spec, "target_tasks")),
        max_tokens=int(spec.get("max_tokens_per_run") or 0),
        models=frozenset(word.lower() for word in _words(spec, "allowed_models")),
        blocked=_tools(spec, "blocked_tools"),
        tools=_tools(spec, "allowed_tools"),
        categories=frozenset(word.lower() for word in _words(spec, "allowed_categories")),
        read_only=bool(spec.get("read_only")),
        ask=ask,
        ceiling=ceiling_of(spec["sandbox"], f"AgentPolicy/{name}") if spec.get("sandbox") else None,
    )


def _tools(spec: Document, field: str) -> frozenset[str]:
    """Raises `ValueError` for a version: a rule is about a tool, whichever version of it there is."""
    words = _words(spec, field)
    if versions := [word for word in words if "@" in word]:
        raise ValueError(f"spec.{field} names a version: {', '.join(versions)}")
    return frozenset(map(tool_token, words))


def _one_tool(ref: str) -> str:
    if "@" in ref or "*" in ref:
        raise ValueError(f"spec.tool_ref is {ref!r}, expected the name of one tool")
    return tool_token(ref)


def _word(spec: Document, field: str, known: tuple[str, ...]) -> str:
    """One of `known`, the first when nothing is said. Raises `ValueError`: an unknown mode is not a mode to guess."""
    word = spec.get(field) or known[0]
    if word not in known:
        raise ValueError(f"spec.{field} is {word!r}, expected {' or '.join(known)}")
    return word


def _words(spec: Document, field: str) -> tuple[str, ...]:
    words: Any = spec.get(field) or ()
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"spec.{field} is not a list of words")
    return tuple(words)
