"""Every check of documents that needs more than one manifest, or more than the words in it.

References and graphs are the resources' own business; whether a provider exists, what its options are and whether a
script can be played only the models know, whether a condition on a call can be evaluated only the tools, and one on an
edge, or whether a runner exists, only the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from foliot.catalog.declared import key_of
from foliot.errors import FoliotError, InvalidInput, NotFound
from foliot.resources.checks import check_references
from foliot.resources.definitions.agent_system import OTHERWISE
from foliot.resources.problems import Path, Problem
from foliot.resources.references import target_of
from foliot.store.base import Document, Key, ResourceStore

Find = Callable[[str, str, str], Document | None]


def check_documents(documents: Sequence[Document], find: Find | None) -> list[tuple[int, Problem]]:
    """Returns problems and warnings, each with the index of its document.

    Without `find`, nothing is known to be stored.
    """

    def known(kind: str, namespace: str, name: str) -> bool:
        return find is not None and find(kind, namespace, name) is not None

    problems = list(check_references(documents, None if find is None else known, find, built_in=_built_in))
    for index, document in enumerate(documents):
        if document["kind"] == "ModelEndpoint":
            problems.extend((index, problem) for problem in _check_endpoint(document))
        elif document["kind"] == "Agent":
            problems.extend((index, problem) for problem in _check_runner(document))
        elif document["kind"] == "ToolPermission":
            problems.extend((index, problem) for problem in _check_conditions(document))
        elif document["kind"] == "AgentSystem":
            problems.extend((index, problem) for problem in _check_edges(document))
    return problems


def _built_in(name: str) -> bool:
    from foliot.tools.builtin.catalogue import NAMES

    return name in NAMES


def _check_runner(document: Document) -> Iterator[Problem]:
    if (runner := document["spec"].get("runner")) is None:
        return
    from foliot.engine.runners.adapters import adapter_of

    try:
        adapter_of(runner)
    except InvalidInput as error:
        yield Problem(tuple(str(error.details["field"]).split(".")), error.message, error.hint)


def _check_endpoint(document: Document) -> Iterator[Problem]:
    from foliot.models.registry import default_registry

    spec = document["spec"]
    try:
        default_registry().find(spec["provider"])
    except FoliotError as error:
        # A warning, because the plug-in may be installed where the endpoint is used and not here.
        yield Problem(("spec", "provider"), error.message, error.hint, severity="warning")
    else:
        yield from _check_options(spec)
    own = (document["metadata"].get("namespace", "default"), document["metadata"]["name"])
    for index, ref in enumerate(spec.get("fallbacks", ())):
        if target_of("ModelEndpoint", ref, own[0])[1:] == own:
            hint = "name another endpoint: one that fails is asked again anyway"
            yield Problem(("spec", "fallbacks", index), "an endpoint is no fallback of itself", hint)
    script = spec.get("script")
    if isinstance(script, str):
        from foliot.models.scripted.model import NAMED

        if script not in NAMED:
            yield Problem(("spec", "script"), f"there is no script named {script!r}", expected=" or ".join(NAMED))
    elif script is not None:
        from foliot.models.scripted.script import validate_script

        for place, message in validate_script(script):
            yield Problem(("spec", *_path(place)), message)


def _check_options(spec: Document) -> Iterator[Problem]:
    """An address or an option that cannot be used would fail every call; a misspelt option would just do nothing."""
    from foliot.models.config import GatewayConfig
    from foliot.models.registry import default_registry

    place = "base_url"
    try:
        config = GatewayConfig(spec["provider"], base_url=spec.get("base_url", ""), options=spec.get("options", {}))
        place = "options"
        unknown = default_registry().unknown_options(config) if config.options else {}
    except FoliotError as error:
        yield Problem(("spec", place), error.message, error.hint)
        return
    for name, hint in unknown.items():
        message = f"provider {spec['provider']!r} has no option {name!r}"
        yield Problem(("spec", "options", name), message, hint, severity="warning", at="key")


def _check_conditions(document: Document) -> Iterator[Problem]:
    """An expression that cannot be compiled would refuse every call of its tool: better said now."""
    conditions = document.get("spec", {}).get("conditions", ())
    if not conditions:
        return
    from foliot.tools.governance.cel import Expression

    for index, condition in enumerate(conditions):
        try:
            Expression(condition["when"])
        except FoliotError as error:
            yield Problem(("spec", "conditions", index, "when"), error.message, error.hint)


def _check_edges(document: Document) -> Iterator[Problem]:
    """An edge whose expression cannot be compiled would never fire."""
    for name, node in document.get("spec", {}).get("graph", {}).items():
        for index, edge in enumerate(node.get("edges", ())):
            when = edge.get("when")
            if not isinstance(when, str) or when == OTHERWISE:
                continue
            from foliot.engine.definition.edge_conditions import EdgeCondition

            try:
                EdgeCondition(when)
            except FoliotError as error:
                yield Problem(("spec", "graph", name, "edges", index, "when"), error.message, error.hint)


def _path(place: str) -> Path:
    """`script[2].call` as steps."""
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", place))


# --- references ------------------------------------------------------------------------------------------------------

# What documents name, held against the store.


def handle_of(document: Document) -> str:
    """Return the name of one resource, shown in findings in place of a file where no file is known."""
    key = key_of(document)
    return f"{key.kind}/{key.name} in {key.namespace}"


def uses(document: Document) -> Iterator[tuple[Key, str]]:
    """Everything that a normalised document refers to, each once, with the field that does."""
    from foliot.resources.problems import render_path
    from foliot.resources.references import references

    seen: set[Key] = set()
    for reference in references(document):
        key = Key(reference.kind, reference.namespace, reference.name)
        if key not in seen:
            seen.add(key)
            yield key, render_path(reference.path)


async def check_against_store(store: ResourceStore, documents: Sequence[Document]) -> list[str]:
    """Warnings about references, in sentences. Raises `ManifestError` when one of them cannot be, and `Denied` when
    one needs a grant of another namespace: what is there is not told to whoever may not name it.

    Its findings carry `handle_of` as their file: whoever knows the files puts them there.
    """
    from foliot.engine.definition.references import check_declared
    from foliot.resources.problems import Finding, ManifestError

    await check_declared(store, documents)
    stored = await _referenced(store, documents)

    def find(kind: str, namespace: str, name: str) -> Document | None:
        return stored.get(Key(kind, namespace, name))

    findings = [
        Finding(problem, handle_of(documents[index]), kind=documents[index]["kind"], name=key_of(documents[index]).name)
        for index, problem in check_documents(documents, find)
    ]
    if any(finding.severity == "error" for finding in findings):
        raise ManifestError(findings)
    return [f"{finding.file}: {finding.problem}" for finding in findings]


async def _referenced(store: ResourceStore, documents: Sequence[Document]) -> dict[Key, Document]:
    """The stored resources that the documents name and do not bring along."""
    given = {key_of(document) for document in documents}
    wanted = {key for document in documents for key, _ in uses(document)} - given
    # A tool named server--tool may come from the MCP server, which is therefore looked for as well.
    servers = {Key("McpServer", key.namespace, key.name.partition("--")[0]) for key in wanted if "--" in key.name}
    found: dict[Key, Document] = {}
    for key in sorted(wanted | servers - given):
        try:
            found[key] = await store.get(key)
        except (NotFound, InvalidInput):  # what cannot be a name is nobody's
            continue
    return found
