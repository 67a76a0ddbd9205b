"""Every check of documents that needs more than one manifest, or more than the words in it.

References and graphs are the resources' own business; whether a provider exists, what its options are and whether a
script can be played only the models know, whether a condition on a call can be evaluated only the tools, and one on an
edge, or whether a runner exists, only the engine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foliot.catalog.declared import key_of
from foliot.engine.definition.conditions import check_fields
from foliot.engine.definition.missing import Brings, Lookups, Parts, StoreAfter, is_built_in, look_up, named
from foliot.engine.definition.providers import check_provider
from foliot.errors import FoliotError, InvalidInput
from foliot.resources.checks import check_references
from foliot.resources.definitions.agent_system import OTHERWISE
from foliot.resources.problems import Path, Problem
from foliot.resources.references import CONDITIONAL, call_conditions, references, target_of
from foliot.store.base import Document, Key


def check_documents(documents: Sequence[Document], parts: Parts | None) -> list[tuple[int, Problem]]:
    """Returns problems and warnings, each with the index of its document.

    Without `parts`, nothing is known to be stored.
    """
    known, find, names = (None, None, Parts().names) if parts is None else (parts.has, parts.find, parts.names)
    problems = list(check_references(documents, known, find, names=names, built_in=is_built_in))
    given = {key_of(document): document for document in documents}

    def look(kind: str, namespace: str, name: str) -> Document | None:
        return given.get(Key(kind, namespace, name)) or (find(kind, namespace, name) if find is not None else None)

    for index, document in enumerate(documents):
        if document["kind"] == "ModelEndpoint":
            problems.extend((index, problem) for problem in _check_endpoint(document))
        elif document["kind"] == "Agent":
            problems.extend((index, problem) for problem in _check_runner(document))
        elif document["kind"] in ("ToolPermission", "ToolApproval"):
            problems.extend((index, problem) for problem in _check_conditions(document))
        elif document["kind"] == "AgentSystem":
            problems.extend((index, problem) for problem in _check_edges(document))
        if document["kind"] in CONDITIONAL:
            problems.extend((index, problem) for problem in check_fields(document, look))
    return problems


def _check_runner(document: Document) -> Iterator[Problem]:
    if (runner := document["spec"].get("runner")) is None:
        return
    from foliot.engine.runners.adapters import adapter_of

    try:
        adapter_of(runner)
    except InvalidInput as error:
        yield Problem(tuple(str(error.details["field"]).split(".")), error.message, error.hint)


def _check_endpoint(document: Document) -> Iterator[Problem]:
    spec = document["spec"]
    unknown = list(check_provider(document))
    yield from unknown or _check_options(spec)
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
    for path, text in call_conditions(document):
        from foliot.tools.governance.cel import Expression

        try:
            Expression(text)
        except FoliotError as error:
            yield Problem(path, error.message, error.hint)


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

    seen: set[Key] = set()
    for reference in references(document):
        key = Key(reference.kind, reference.namespace, reference.name)
        if key not in seen:
            seen.add(key)
            yield key, render_path(reference.path)


ALLOW_MISSING: Final = (
    "declare it in the same bundle, or take it as it is with `foliot apply --allow-missing` (over HTTP "
    "?allowMissing=true, in Python allow_missing=True)"
)


async def check_against_store(
    store: Lookups,
    documents: Sequence[Document],
    *,
    allow_missing: bool = False,
    before: Mapping[Key, Document] | None = None,
    brings: Brings | None = None,
    operator: bool | None = None,
    gone: Collection[Key] = (),
) -> list[str]:
    """Warnings about references, in sentences. Raises `ManifestError` when one of them cannot be, or names something
    that is not there, and `Denied` when one needs a grant of another namespace: what is there is not told to whoever
    may not name it.

    `allow_missing` takes what names something that is not there, with a warning. So does a change of what was stored
    `before` where it leaves the name as it is. `brings` is what this process has without a declaration; `operator`:
    whoever declares them is the operator, to whom variables of the environment are Secrets. The resources of `gone` are
    deleted together with the write: grants and parts among them are not there any more.

    Its findings carry `handle_of` as their file: whoever knows the files puts them there.
    """
    from foliot.engine.definition.references import check_declared
    from foliot.resources.problems import Finding, ManifestError

    if gone:
        store = StoreAfter(store, gone)
    await check_declared(store, documents)
    parts = await look_up(store, documents, brings, operator=operator)
    findings: list[Finding] = []
    for index, problem in check_documents(documents, parts):
        document, key = documents[index], key_of(documents[index])
        old = (before or {}).get(key)
        if problem.missing and (allow_missing or (old is not None and _at(old, problem) == _at(document, problem))):
            problem = replace(problem, severity="warning")
        if problem.missing and gone and _named_at(document, problem.path) in gone:
            problem = replace(problem, hint="prune deletes it: keep it among the manifests, or do not name it")
        findings.append(Finding(problem, handle_of(document), kind=key.kind, name=key.name))
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise ManifestError(findings, hint=ALLOW_MISSING if all(each.problem.missing for each in errors) else None)
    return [f"{finding.file}: {finding.problem}" for finding in findings]


def _named_at(document: Document, path: Path) -> Key | None:
    return next((named(each) for each in references(document) if each.path == path), None)


def _at(document: Document, problem: Problem) -> Any:
    """Returns what stands at the place of a problem."""
    value: Any = document
    for step in problem.path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value
