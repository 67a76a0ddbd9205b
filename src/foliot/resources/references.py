"""References between documents: which field of which kind names what, and which namespaces may refer to others.

A reference is `name`, which is in the namespace of whoever refers, or `namespace/name`. To name something of another
namespace is to read it, to spend with it, or to have it work: it needs a ReferenceGrant there
(`ReferenceGrants`). The same rule holds for a document when it is declared, and for each use of what it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from foliot.common.suggestions import VERY_ALIKE, nearest
from foliot.errors import Denied, InvalidInput
from foliot.resources.names import tool_token
from foliot.resources.problems import Path, render_path

Form: TypeAlias = Literal["name", "ref", "secret", "tool", "rule", "pattern", "placed", "misspelt"]

NAME_MAX: Final = 253
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
NAME_RULE: Final = "1 to 253 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
GRANT: Final = "ReferenceGrant"
# The key of a Secret that a reference without one means.
DEFAULT_SECRET_KEY: Final = "value"
EVERY_NAMESPACE: Final = "*"


@dataclass(frozen=True, slots=True)
class Reference:
    """One mention of another resource. `said` is how it is written; `path` where; `form` says how it is compared."""

    path: Path
    kind: str
    namespace: str
    name: str
    said: str
    form: Form = "name"

    @property
    def plain(self) -> Callable[[str], str]:
        """The form in which it is compared with the names of what there is."""
        return _PLAIN.get(self.form, str)


class Origin(NamedTuple):
    """The referring side: a resource of this kind, in this namespace."""

    kind: str
    namespace: str


class Target(NamedTuple):
    """The resource that is referred to."""

    kind: str
    namespace: str
    name: str


class ReferenceCheck(Protocol):
    """Whether a reference may be followed now."""

    async def __call__(self, origin: Origin, target: Target) -> None:
        """Raises `Denied` when `target` is in another namespace that has not granted it."""
        ...


# (field, kind it names, how). `name` is in the same namespace; `ref` is [namespace/]name; `secret` may add :key,
# `tool` @version; `rule` is a tool by its token; `pattern` too, and may have * for anything, and names nothing then;
# `placed` may say its own namespace, in any case. A dot goes into a part, and through lists and the values of `*`.
# `misspelt` stands in no field: the text is taken, unless what it names exists.
_SECRET: Final = ("auth.secretRef", "Secret", "secret")
_FENCED: Final = ("sandbox.secrets.secretRef", "Secret", "secret")
FIELDS: Final[Mapping[str, tuple[tuple[str, str, Form], ...]]] = {
    "Agent": (
        ("model_ref", "ModelEndpoint", "ref"),
        ("fallbacks", "ModelEndpoint", "ref"),
        ("delegation.models", "ModelEndpoint", "ref"),
        ("delegation.presets.model", "ModelEndpoint", "ref"),
        ("delegation.presets.tools", "Tool", "tool"),
        ("compaction.model", "ModelEndpoint", "ref"),
        ("tools", "Tool", "tool"),
        ("allowed_tools", "Tool", "rule"),
        ("execution.tool_sequence", "Tool", "tool"),
        ("roles", "AgentRole", "ref"),
        ("memory.ref", "Memory", "name"),
        ("skills", "Skill", "name"),
        _FENCED,
        ("runner.sandbox.secrets.secretRef", "Secret", "secret"),
        ("hooks.http.secretRef", "Secret", "secret"),
    ),
    "AgentSystem": (("agents", "Agent", "name"),),
    "ModelEndpoint": (("fallbacks", "ModelEndpoint", "ref"), _SECRET),
    "Tool": (
        ("mcp_server_ref", "McpServer", "ref"),
        ("requires", "Tool", "name"),
        ("requires_prior", "Tool", "name"),
        ("after", "Tool", "name"),
        ("replaced_by", "Tool", "name"),
        _FENCED,
        _SECRET,
    ),
    "Memory": (("embedding_model", "ModelEndpoint", "ref"), _SECRET),
    "McpServer": (
        ("env.secretRef", "Secret", "secret"),
        _FENCED,
        _SECRET,
    ),
    "AgentPolicy": (
        ("target_systems", "AgentSystem", "placed"),
        ("blocked_tools", "Tool", "pattern"),
        ("allowed_tools", "Tool", "pattern"),
    ),
    "Budget": (("scope.agent", "Agent", "name"),),
    "ToolPermission": (("tool_ref", "Tool", "rule"), ("target_agents", "Agent", "placed")),
    "ToolApproval": (("task_ref", "Task", "ref"), ("tool", "Tool", "rule"), ("agent", "Agent", "placed")),
    "Task": (("system", "AgentSystem", "name"), ("agent", "Agent", "name")),
    "TaskSchedule": (
        ("task_ref", "Task", "ref"),
        ("session.agent", "Agent", "name"),
        ("session.deliver.channel", "Channel", "name"),
    ),
    "TaskWebhook": (
        ("task_ref", "Task", "ref"),
        ("auth.secret_ref", "Secret", "secret"),
        ("auth.secret_refs", "Secret", "secret"),
    ),
    "TaskHook": (
        ("task_ref", "Task", "ref"),
        ("session.agent", "Agent", "name"),
        ("session.deliver.channel", "Channel", "name"),
    ),
    "Channel": (
        ("agent", "Agent", "name"),
        ("agents", "Agent", "name"),
        ("users.agent", "Agent", "name"),
        ("groups.agent", "Agent", "name"),
        ("models", "ModelEndpoint", "name"),
        _SECRET,
    ),
}

# How rules compare names at run time, by the form of their fields (tools/governance/reader.py); all others exactly.
_PLAIN: Final[Mapping[str, Callable[[str], str]]] = {
    "rule": tool_token,
    "pattern": tool_token,
    "misspelt": tool_token,
    "placed": str.lower,
}

# Words that are held against the names of what is at work in the same namespace. Nothing is looked up by them, so that
# they reach nothing elsewhere, and need not exist.
WORDS: Final[Mapping[str, Collection[str]]] = {
    "AgentSystem": ("graph.*.next", "graph.*.edges.to"),
    "TaskHook": ("source",),
    "AgentPolicy": ("allowed_models", "target_tasks"),
    "ToolApproval": ("run",),
}

# Fields that name something in words of their own: a permission, an expression, a kind beside a name.
SPOKEN: Final[Mapping[str, Collection[str]]] = {
    "AgentRole": ("permissions",),
    "ToolPermission": ("required_permissions", "conditions.when"),
    "ToolApproval": ("when",),
    "ReferenceGrant": ("to.name",),
}

# The kinds that can be named from another namespace, and the kinds that can name them: what grants speak of.
_CROSSING: Final = frozenset({"ref", "secret"})
_VERSIONED: Final = frozenset({"tool", "rule"})
TARGETS: Final = tuple(
    sorted({"Secret", *(kind for rows in FIELDS.values() for _, kind, form in rows if form in _CROSSING)})
)
ORIGINS: Final = tuple(sorted(kind for kind, rows in FIELDS.items() if any(form in _CROSSING for _, _, form in rows)))


# Words that stand in the place of a name in paths of the HTTP API: nobody could read what is called so. What an older
# version stored under one stays, and can be changed and deleted.
TAKEN_NAMES: Final = frozenset({"watch", "defaults"})
TAKEN_RULE: Final = "the HTTP API has something else at /v1/…/{name}: choose another name"


def is_name(value: str) -> bool:
    """Whether a resource or a task may be called so; see `NAME_RULE`."""
    return len(value) <= NAME_MAX and _NAME.fullmatch(value) is not None


def qualified(ref: str, namespace: str) -> str:
    """A reference with its namespace, so that it means the same wherever it is read. `provider:model` has none."""
    return ref if "/" in ref or ":" in ref else f"{namespace}/{ref}"


def target_of(kind: str, text: str, namespace: str) -> Target:
    """Parses `name` or `namespace/name` as seen from a namespace. Raises `InvalidInput` for every other spelling."""
    where, slash, name = text.partition("/")
    if not slash:
        where, name = namespace, where
    if not is_name(name) or (slash and not is_name(where)):
        raise InvalidInput(f"a reference to a resource of kind {kind} is malformed", hint="expected [namespace/]name")
    return Target(kind, where, name)


def references(document: Mapping[str, Any]) -> Iterator[Reference]:
    """Every mention of another resource in a normalised document."""
    namespace = document["metadata"].get("namespace", "default")
    for field, kind, form in FIELDS.get(document["kind"], ()):
        for path, said in _values(document.get("spec", {}), field.split("."), ("spec",)):
            yield from _reference(path, kind, form, namespace, said)
    yield from _in_conditions(document, namespace)
    yield from _in_permissions(document, namespace)
    if document["kind"] == GRANT:
        for index, each in enumerate(_entries(document.get("spec"), "to")):
            if each.get("name") and each.get("kind"):
                yield Reference(("spec", "to", index, "name"), each["kind"], namespace, each["name"], each["name"])


def permissions_in(document: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The permissions that a role holds, or that a rule demands, each with its place."""
    field = {"AgentRole": "permissions", "ToolPermission": "required_permissions"}.get(document["kind"], "")
    if field:
        yield from _values(document.get("spec", {}).get(field), (), ("spec", field))


def _in_permissions(document: Mapping[str, Any], namespace: str) -> Iterator[Reference]:
    """The tools in permissions: `tool:NAME:invoke`. Blanks and case do not matter to them.

    Foliot demands no others, so they are words of people's own, but for `tol:NAME:invoke` where there is such a tool.
    """
    for path, text in permissions_in(document):
        what, _, rest = text.strip().partition(":")
        name, colon, action = rest.rpartition(":")
        word, name = what.strip().lower(), name.strip()
        if word == "tool" and colon and name:
            yield from _reference(path, "Tool", "rule", namespace, name)
        elif action.strip().lower() == "invoke" and name and nearest(word, ("tool",), alike=VERY_ALIKE):
            yield Reference(path, "Tool", namespace, name, text, "misspelt")


# The kinds with conditions that are held against what they are about.
CONDITIONAL: Final = ("AgentSystem", "ToolPermission", "ToolApproval")
# What is compared in a condition on a call names something: (variable, its fields), and the kind that it is of.
_COMPARED: Final[Mapping[tuple[str, ...], str]] = {
    ("agent",): "Agent",
    ("caller", "agent"): "Agent",
    ("caller", "ancestors"): "Agent",
    ("caller", "roles"): "AgentRole",
    ("caller", "system"): "AgentSystem",
    ("tool",): "Tool",
}


def call_conditions(document: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The conditions on calls of a document, each with its place."""
    spec: Mapping[str, Any] = document.get("spec", {})
    match document["kind"]:
        case "ToolPermission":
            for index, each in enumerate(spec.get("conditions") or ()):
                yield ("spec", "conditions", index, "when"), each["when"]
        case "ToolApproval" if spec.get("standing") and spec.get("when"):
            yield ("spec", "when"), spec["when"]
        case _:
            pass


def _in_conditions(document: Mapping[str, Any], namespace: str) -> Iterator[Reference]:
    """The names that conditions on calls compare with: always something of the same namespace, by its exact name."""
    for path, text in call_conditions(document):
        from foliot.resources.expressions import EACH, reads_of  # few documents have conditions

        for read in reads_of(text):
            kind = _COMPARED.get((read.root, *(step for step in read.steps if step != EACH)))
            for said in (*read.wanted, *read.holding) if kind is not None else ():
                if said and (kind == "Tool" or "/" not in said):
                    yield from _reference(path, str(kind), "name", namespace, said)


def foreign(document: Mapping[str, Any]) -> list[Reference]:
    """The references of a document to other namespaces."""
    namespace = document["metadata"].get("namespace", "default")
    return [each for each in references(document) if each.namespace != namespace]


class ReferenceGrants:
    """The grants between namespaces, from ReferenceGrant documents.

    One that cannot be read grants nothing.
    """

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self._by_namespace: dict[str, list[tuple[list[dict[str, str]], list[dict[str, str]]]]] = {}
        for document in documents:
            if document.get("kind") != GRANT:
                continue
            given_to, given = (_entries(document.get("spec"), side) for side in ("from", "to"))
            home: str = document["metadata"].get("namespace", "default")
            self._by_namespace.setdefault(home, []).append((given_to, given))

    def allow(self, origin: Origin, target: Target) -> bool:
        """Whether `origin` may name `target`: it is in its own namespace, or in one that has granted it."""
        if origin.namespace == target.namespace:
            return True
        return any(
            any(_is_from(each, origin) for each in given_to) and any(_is_to(each, target) for each in given)
            for given_to, given in self._by_namespace.get(target.namespace, ())
        )

    def gives_away(self, target: Target) -> bool:
        """Whether another namespace may name `target`."""
        grants = self._by_namespace.get(target.namespace, ())
        return any(_is_to(each, target) for _, given in grants for each in given)

    def origins(self, namespace: str, target: str, kind: str) -> set[str]:
        """Other namespaces (`*` for all) whose resources of a kind may name some `target`, which is a kind, of one."""
        return {
            entry.get("namespace", "")
            for given_to, given in self._by_namespace.get(namespace, ())
            if any(each.get("kind") == target for each in given)
            for entry in given_to
            if entry.get("kind") in (None, kind) and entry.get("namespace") != namespace
        }

    def namespaces(self, origin: Origin, kind: str) -> list[str]:
        """Other namespaces that have granted `origin` something of this kind."""
        return sorted(
            home
            for home, grants in self._by_namespace.items()
            if home != origin.namespace
            and any(
                any(_is_from(each, origin) for each in given_to) and any(each.get("kind") == kind for each in given)
                for given_to, given in grants
            )
        )

    def check(self, document: Mapping[str, Any], crossing: Iterable[Reference]) -> None:
        """Hold the references of a document against the grants. Raises `Denied` for the first that is not granted."""
        origin = Origin(document["kind"], document["metadata"].get("namespace", "default"))
        for each in crossing:
            target = Target(each.kind, each.namespace, each.name)
            if not self.allow(origin, target):
                raise refused(origin, target, f"{document['kind']}/{document['metadata']['name']}", each.path)


def refused(origin: Origin, target: Target, whose: str = "", path: Path = ()) -> Denied:
    """Builds the refusal of a reference without a grant, the same whether or not a resource of that name exists.

    The name of a Secret is left out: a value that was pasted in its place may look like one.
    """
    place = f"{whose}: {render_path(path)}: " if whose else ""
    named = "" if target.kind == "Secret" else f", name: {target.name}"
    what = f"a {target.kind}" if target.kind == "Secret" else f"{target.kind}/{target.name}"
    return Denied(
        f"{place}namespace {origin.namespace!r} may not refer to {what} of namespace {target.namespace!r}:"
        " there is no ReferenceGrant for it",
        hint=f"an admin of {target.namespace!r} can declare a ReferenceGrant there, with"
        f" from: [{{namespace: {origin.namespace}, kind: {origin.kind}}}]"
        f" and to: [{{kind: {target.kind}{named}}}]",
        namespace=target.namespace,
    )


def _entries(spec: Any, side: str) -> list[dict[str, str]]:
    found: Any = cast("dict[str, Any]", spec).get(side) if isinstance(spec, dict) else None
    if not isinstance(found, list):
        return []
    return [cast("dict[str, str]", each) for each in cast("list[Any]", found) if isinstance(each, dict)]


def _is_from(entry: Mapping[str, str], origin: Origin) -> bool:
    return entry.get("namespace") in (origin.namespace, EVERY_NAMESPACE) and entry.get("kind") in (None, origin.kind)


def _is_to(entry: Mapping[str, str], target: Target) -> bool:
    return entry.get("kind") == target.kind and entry.get("name") in (None, target.name)


def _reference(path: Path, kind: str, form: Form, namespace: str, said: str) -> Iterator[Reference]:
    if path[1] == "requires":
        what, colon, name = said.partition(":")
        if colon and what == "capability":
            return
        kind, said = ("Secret", name) if what == "secret" and colon else ("Tool", name if colon else said)
        form = "secret" if kind == "Secret" else "name"
    if said == "*" or (form == "pattern" and "*" in said):  # each of them, and none by its name
        return
    what, colon, name = said.partition(":")
    if kind == "Tool" and colon and _PLAIN.get(form, str)(what) == "agent":  # an agent that this one may call
        yield Reference(path, "Agent", namespace, name, said, form)
        return
    if form == "placed" and said.lower().startswith(f"{namespace.lower()}/"):
        said = said[len(namespace) + 1 :]
    bare = said.partition(":")[0] if form == "secret" else said.partition("@")[0] if form in _VERSIONED else said
    where, slash, name = bare.partition("/") if form in _CROSSING else (bare, "", "")
    yield Reference(path, kind, where if slash else namespace, name if slash else bare, said, form)


def _values(value: Any, steps: Sequence[str], path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _values(item, steps, (*path, index))
    elif not steps:
        if isinstance(value, str):
            yield path, value
    elif isinstance(value, dict):
        inner = cast("dict[str, Any]", value).get(steps[0])
        yield from _values(inner, steps[1:], (*path, steps[0]))
