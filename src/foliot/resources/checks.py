"""Checks across documents: what they name, and whether it is there.

A reference to something that is not there is an error where it is known what is there: a rule about a tool that does
not exist protects nothing. Without a store it is a warning, because the store may have it. What is wrong inside one
system is an error, and so is a task that could run for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from foliot.common.suggestions import VERY_ALIKE, did_you_mean, suggestion
from foliot.common.versions import parse_version, split_request
from foliot.errors import InvalidInput
from foliot.resources.command_template import ARGUMENT_PLACE
from foliot.resources.graph import CYCLE, check_graph, find_cycle, is_cyclic
from foliot.resources.problems import Path, Problem
from foliot.resources.references import (
    DEFAULT_SECRET_KEY,
    GRANT,
    Reference,
    ReferenceGrants,
    Target,
    references,
)
from foliot.resources.schema_fields import demanded_and_not_there, names_in
from foliot.resources.skill_files import builtin_skills

Document: TypeAlias = dict[str, Any]
Known: TypeAlias = Callable[[str, str, str], bool]
Find: TypeAlias = Callable[[str, str, str], Document | None]
Names: TypeAlias = Callable[[str, str], Collection[str]]
Key: TypeAlias = tuple[str, str, str]

_CALLED_BY_ADDRESS: Final = frozenset({"http", "external", "grpc", "webhook-callback", "queue"})
_CLEAR_KEYS: Final = frozenset({"api_key", "apikey", "api-key", "authorization", "password", "secret", "access_token"})
_CLEAR_HEADERS: Final = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "apikey",
        "x-auth-token",
        "x-access-token",
    }
)

_CLEAR_VARIABLE: Final = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
# How keys begin that are found in manifests most: OpenAI and Anthropic, GitHub, GitLab, Slack, AWS, Google, Groq, xAI.
_KEY_IN_TEXT: Final = re.compile(
    r"\b(?:sk-[\w-]{20,}|gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abprs]-[\w-]{20,}|AKIA[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|gsk_\w{20,}|xai-\w{20,})"
)

__all__ = ["check_graph", "check_references"]


def check_references(
    documents: Sequence[Document],
    known: Known | None,
    find: Find | None = None,
    *,
    names: Names = lambda kind, namespace: (),
    built_in: Callable[[str], bool] = lambda tool: False,
) -> list[tuple[int, Problem]]:
    """Everything that is wrong or doubtful between normalised documents, each with the index of its document.

    `known(kind, namespace, name)` says whether a resource exists beside the documents; None when nobody knows, as in a
    check without a store. `find` gives the stored document, so that a task can be checked against a stored system.
    `names(kind, namespace)` are those that may have been meant by one that is not there, and those from which it may
    come. `built_in` says which tools are there without a declaration. The graph of each AgentSystem is checked too.
    """
    given: dict[Key, Document] = {_key(document): document for document in documents}
    problems: list[tuple[int, Problem]] = []
    for index, document in enumerate(documents):
        found: list[Problem] = []
        if document["kind"] == "AgentSystem":
            found += check_graph(document)
        found += find_missing(document, given, known, find, names, built_in)
        found += _addressed(document, given, find)
        found += _keys(document, given, find)
        found += _doubts(document)
        problems += [(index, problem) for problem in found]
    problems += _tool_order(documents)
    return problems


def _key(document: Mapping[str, Any]) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", "default"), metadata["name"]


def find_missing(
    document: Document,
    given: Mapping[Key, Document],
    known: Known | None,
    find: Find | None,
    names: Names,
    built_in: Callable[[str], bool],
    *,
    suggest: bool = True,
) -> Iterator[Problem]:
    """Yields a problem for everything that a document names and that is not there; see `check_references`.

    Only with `suggest` it says what was probably meant: that is looked for among all names.
    """

    def there(kind: str, namespace: str, name: str) -> bool:
        return (kind, namespace, name) in given or (known is not None and known(kind, namespace, name))

    def look(kind: str, namespace: str, name: str) -> Document | None:
        return given.get((kind, namespace, name)) or (find(kind, namespace, name) if find is not None else None)

    def among(kind: str, namespace: str) -> list[str]:
        return [*(name for each, space, name in given if (each, space) == (kind, namespace)), *names(kind, namespace)]

    def judge(reference: Reference) -> Problem | None:
        key = (reference.kind, reference.namespace, reference.name)
        if there(*key) or _comes_by_itself(reference, among, look, built_in):
            # The tool is looked into only for a version that is asked for: its other changes do not matter here.
            other = _other_version(reference, look(*key)) if "@" in reference.said else None
            return _misspelt(reference) or other
        # What is in another namespace is not told. What is asked for is not there, whoever says so: it may just have
        # come, or be about to go.
        own = reference.namespace == _key(document)[1]
        alike = [name for name in among(*key[:2]) if name != reference.name] if own else []
        if reference.plain is not str and reference.plain(reference.name) in _plain(reference.plain, tuple(alike)):
            return _misspelt(reference)
        if reference.form == "misspelt" or (document["kind"] == "AgentRole" and lent()):
            return None
        message, hint = _said(document, reference)
        if known is None:
            hint = "; ".join(filter(None, (hint, "not among these manifests")))
            return Problem(reference.path, message, hint, severity="warning", missing=True)
        if suggest:
            hint = suggestion(reference.name, alike, hint, alike=VERY_ALIKE)
        return Problem(reference.path, message, hint, missing=True)

    def lent() -> bool:
        """Whether agents of another namespace may have the role: what it allows may be theirs."""
        grants = (look(GRANT, _key(document)[1], name) for name in among(GRANT, _key(document)[1]))
        return ReferenceGrants(filter(None, grants)).gives_away(Target(*_key(document)))

    yield from _never_given(document)
    yield from _never_asked(document)
    seen: set[tuple[str, str, str, str]] = set()
    for reference in references(document):
        if document["kind"] == "ToolApproval" and reference.kind in ("Task", "Agent") and not _stands(document):
            continue  # work that no resource declares has approvals too
        if (problem := judge(reference)) is None:
            continue
        # A tool is often named in several lists; one problem is enough.
        mention = (reference.kind, reference.namespace, reference.name, problem.message)
        if mention not in seen:
            seen.add(mention)
            yield problem


def _other_version(reference: Reference, found: Document | None) -> Problem | None:
    """Says that a tool is there in another version than the one that is asked for, or that none is asked for."""
    version = (found or {}).get("spec", {}).get("version")
    if reference.kind != "Tool" or not isinstance(version, str):
        return None
    try:
        if split_request(reference.said)[1].allows(parse_version(version)):
            return None
    except InvalidInput as error:
        return Problem(reference.path, error.message, error.hint, missing=True)
    message = f'tool "{reference.name}" has version {version}, and "{reference.said}" asks for another one'
    return Problem(reference.path, message, f'name "{reference.name}" for any version', missing=True)


def _stands(document: Document) -> bool:
    return bool(document.get("spec", {}).get("standing"))


def _misspelt(reference: Reference) -> Problem | None:
    """Says that a permission was meant to be one that Foliot demands: as it is, it allows nothing."""
    if reference.form != "misspelt":
        return None
    word, _, rest = reference.said.partition(":")
    message = f'permission "{reference.said[:80]}": no permission for a tool begins with {word.strip()[:40]!r}'
    return Problem(reference.path, message, did_you_mean(f"tool:{rest}"), missing=True)


def _never_given(document: Document) -> Iterator[Problem]:
    """Fields that a schema demands and does not have. What an MCP server says of its tools is not ours to judge."""
    spec = document.get("spec", {})
    field = {"Agent": "output_schema", "Tool": "input_schema"}.get(document["kind"], "")
    if field and spec.get("type") != "mcp":
        for place, name, names in demanded_and_not_there(spec.get(field)):
            hint = suggestion(name, names, f"it has {', '.join(names)}")
            message = f"the schema demands {name!r}, which is not among its properties"
            yield Problem(("spec", field, *place), message, hint, missing=True)


def _never_asked(document: Document) -> Iterator[Problem]:
    """Arguments that a request names and its tool does not have. An address may hold a password."""
    spec: Document = document.get("spec", {})
    known = names_in(spec.get("input_schema"))
    if document["kind"] != "Tool" or spec.get("type") != "http" or known is None:
        return
    http: dict[str, dict[str, str]] = spec.get("http", {})
    templates: dict[Path, str] = {("endpoint",): spec.get("endpoint", "")}
    for part in ("headers", "query"):
        templates |= {("http", part, name): text for name, text in http.get(part, {}).items()}
    for path, text in templates.items():
        for name in dict.fromkeys(ARGUMENT_PLACE.findall(text)):
            if name not in known:
                hint = suggestion(name, known, f"it has {', '.join(known)}" if known else "it has no arguments")
                message = f"the request names the argument {name!r}, which is not in spec.input_schema"
                yield Problem(("spec", *path), message, hint, missing=True)


@lru_cache(maxsize=16)
def _plain(plain: Callable[[str], str], names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(plain, names))


def _comes_by_itself(reference: Reference, among: Names, look: Find, built_in: Callable[[str], bool]) -> bool:
    """Whether something is there without a declaration: built-in, or a tool that a sync with an MCP server will make.

    A server that was synced has made its tools, so that what is not among them is missing.
    """
    if reference.kind == "Skill":
        return reference.name in builtin_skills()
    if reference.kind == "ModelEndpoint":
        return ":" in reference.said  # provider:model
    if reference.kind != "Tool":
        return False
    if built_in(reference.name):
        return True
    plain = reference.plain
    for server in among("McpServer", reference.namespace):
        if not plain(reference.name).startswith(plain(f"{server}--.")[:-1]):
            continue
        status: Mapping[str, Any] = (look("McpServer", reference.namespace, server) or {}).get("status") or {}
        offered: list[dict[str, Any]] = status.get("discoveredTools") or []  # one that waits to be accepted has no Tool
        if not status.get("lastSyncedAt") or plain(reference.name) in {plain(each.get("tool", "")) for each in offered}:
            return True
    return False


def _said(document: Document, reference: Reference) -> tuple[str, str | None]:
    owner, name, said = document["kind"].lower(), document["metadata"]["name"], reference.said
    match document["kind"], reference.kind:
        case "Agent", "ModelEndpoint":
            return f'agent "{name}" model resolution failed: model endpoint "{said}" not found', None
        case "AgentSystem" | "Task", "Agent":
            return f'agent "{said}" not found', None
        case "Task", "AgentSystem":
            return f'agentsystem "{said}" not found', None
        case "TaskSchedule" | "TaskWebhook" | "TaskHook", "Task":
            return f'task template "{said}" not found', None
        case _, "Secret":
            # What was pasted in the place of a name may be the secret, and of other namespaces no name is told.
            other = reference.namespace != _key(document)[1] or _KEY_IN_TEXT.search(said) is not None
            hint = "the environment may provide it"
            return f'{owner} "{name}" references missing secret' + ("" if other else f' "{reference.name}"'), hint
        case _, kind:
            return f'{owner} "{name}" references missing {_LOWER.get(kind, kind.lower())} "{said}"', None


_LOWER: Final = {"AgentRole": "role", "McpServer": "MCP server", "ModelEndpoint": "model endpoint"}


def _addressed(document: Document, given: Mapping[Key, Document], find: Find | None) -> Iterator[Problem]:
    """Checks that the target of a task, a schedule or a webhook can do its part."""

    def look(reference: Reference) -> Document | None:
        key = (reference.kind, reference.namespace, reference.name)
        return given.get(key) or (find(*key) if find is not None else None)

    for reference in references(document):
        match document["kind"], reference.kind:
            case "Task", "AgentSystem":
                system = look(reference)
                turns = document.get("spec", {}).get("max_turns")
                if (
                    system is not None
                    and not turns
                    and not system.get("spec", {}).get("max_turns")
                    and is_cyclic(system)
                ):
                    hint = f'or set spec.max_turns of the AgentSystem "{reference.name}"'
                    yield Problem(("spec", "max_turns"), CYCLE, hint, expected="a number above 0")
            case "TaskSchedule" | "TaskWebhook" | "TaskHook", "Task":
                template = look(reference)
                if template is not None and template.get("spec", {}).get("mode") != "template":
                    message = f'task template "{reference.said}" must set spec.mode=template'
                    yield Problem(reference.path, message, severity="warning")
            case _:
                pass


def _keys(document: Document, given: Mapping[Key, Document], find: Find | None) -> Iterator[Problem]:
    """A Secret that is there, and has not the key that is meant. A webhook that names no key takes the first."""
    for reference in references(document):
        namespace = document["metadata"].get("namespace", "default")
        if reference.kind != "Secret" or reference.namespace != namespace:
            continue
        place = (reference.kind, reference.namespace, reference.name)
        secret = given.get(place) or (find(*place) if find is not None else None)
        key = reference.said.rpartition(":")[2].strip() if ":" in reference.said else ""
        if secret is None or (document["kind"] == "TaskWebhook" and not key):
            continue
        spec = secret.get("spec", {})
        keys = sorted({*(spec.get("data") or ()), *(spec.get("stringData") or ())})
        key = key or DEFAULT_SECRET_KEY
        if key not in keys:
            has = ", ".join(f"`{each}`" for each in keys) or "none"
            hint = f"write {reference.name}:KEY, or store the value under `{key}`"
            message = f"Secret/{reference.name} has no key `{key}`; it has {has}"
            yield Problem(reference.path, message, hint, severity="warning")


def _doubts(document: Document) -> Iterator[Problem]:
    """Yields warnings about values that are allowed but hardly meant. No value that may be secret is repeated."""
    spec = document.get("spec", {})
    for field in ("endpoint", "base_url"):
        if _has_password(spec.get(field, "")):
            message = f"spec.{field} holds a password in clear"
            yield Problem(("spec", field), message, "name a Secret in auth.secretRef instead", severity="warning")
    for key in spec.get("options", {}) if document["kind"] == "ModelEndpoint" else ():
        if key in _CLEAR_KEYS:
            message = f"spec.options.{key} holds a key in clear"
            yield Problem(
                ("spec", "options", key), message, "name a Secret in auth.secretRef instead", severity="warning"
            )
    for name in spec.get("http", {}).get("headers", {}) if document["kind"] == "Tool" else ():
        if name.lower() in _CLEAR_HEADERS:
            message = f"spec.http.headers.{name} holds a key in clear"
            place = ("spec", "http", "headers", name)
            yield Problem(place, message, "name a Secret in auth.secretRef instead", severity="warning")
    if document["kind"] != "Secret":
        yield from _keys_in_texts(spec, ("spec",))
    if (
        document["kind"] == "AgentPolicy"
        and spec.get("apply_mode", "scoped") == "scoped"
        and not (spec.get("target_systems") or spec.get("target_tasks"))
    ):
        hint = "set apply_mode: global, or name target_systems or target_tasks"
        yield Problem(("spec",), "a scoped policy without targets holds for nothing", hint, severity="warning")
    if document["kind"] == "Tool" and spec.get("type") == "wasm" and not spec.get("wasm"):
        message = "a tool of type wasm without spec.wasm cannot be called"
        hint = "set spec.wasm.module to the file of its module, and spec.wasm.digest to sha256:… of that"
        yield Problem(("spec", "type"), message, hint, severity="warning")
    elif document["kind"] == "Tool" and spec.get("type") in _CALLED_BY_ADDRESS and not spec.get("endpoint"):
        message = f"a tool of type {spec['type']} without spec.endpoint cannot be called"
        yield Problem(("spec", "endpoint"), message, severity="warning")


def _keys_in_texts(value: object, place: tuple[str | int, ...]) -> Iterator[Problem]:
    """Texts anywhere below that begin like a provider's key, and variables that are named like one."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        named = place[1:2] == ("env",) and fields.get("value") and _CLEAR_VARIABLE.search(str(fields.get("name", "")))
        if named:
            message = f"the variable {fields['name']} holds a key in clear"
            yield Problem((*place, "value"), message, "name a Secret in secretRef instead", severity="warning")
            return
        for key, each in fields.items():
            yield from _keys_in_texts(each, (*place, key))
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[object]", value)):
            yield from _keys_in_texts(each, (*place, index))
    elif isinstance(value, str) and _KEY_IN_TEXT.search(value):
        hint = "keep it in a Secret, and name that where a field takes a secretRef"
        yield Problem(
            place, f"{'.'.join(map(str, place))} holds what looks like a key in clear", hint, severity="warning"
        )


def _has_password(address: str) -> bool:
    try:
        return bool(urlsplit(address).password)
    except ValueError:
        return False


def _tool_order(documents: Sequence[Document]) -> Iterator[tuple[int, Problem]]:
    """Tools that wait for each other would wait for ever."""
    for field in ("after", "requires_prior"):
        places: dict[str, int] = {}
        waits: dict[str, list[str]] = {}
        for index, document in enumerate(documents):
            if document["kind"] == "Tool":
                namespace, name = _key(document)[1:]
                places[f"{namespace}/{name}"] = index
                waits[f"{namespace}/{name}"] = [
                    f"{namespace}/{other}" for other in document.get("spec", {}).get(field, ())
                ]
        if (cycle := find_cycle(waits)) is not None:
            names = " -> ".join(name.rpartition("/")[2] for name in cycle)
            yield places[cycle[0]], Problem(("spec", field), f"these tools wait for each other: {names}")
