"""Every check of documents that needs more than one manifest, or more than the words in it.

References and graphs are the resources' own business; whether a provider exists, what its options are and whether a
script can be played only the models know, whether a condition on a call can be evaluated only the tools, and one on an
edge only the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from foliot.errors import FoliotError
from foliot.resources.checks import check_references
from foliot.resources.definitions.agent_system import OTHERWISE
from foliot.resources.problems import Path, Problem
from foliot.resources.references import target_of
from foliot.store.base import Document

Find = Callable[[str, str, str], Document | None]


def check_documents(documents: Sequence[Document], find: Find | None) -> list[tuple[int, Problem]]:
    """What is wrong or doubtful, each with the index of its document. Without `find`, nothing is known to be stored."""

    def known(kind: str, namespace: str, name: str) -> bool:
        return find is not None and find(kind, namespace, name) is not None

    problems = list(check_references(documents, None if find is None else known, find, built_in=_built_in))
    for index, document in enumerate(documents):
        if document["kind"] == "ModelEndpoint":
            problems.extend((index, problem) for problem in _check_endpoint(document))
        elif document["kind"] == "ToolPermission":
            problems.extend((index, problem) for problem in _check_conditions(document))
        elif document["kind"] == "AgentSystem":
            problems.extend((index, problem) for problem in _check_edges(document))
    return problems


def _built_in(name: str) -> bool:
    from foliot.tools.builtin.catalogue import NAMES

    return name in NAMES


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
        from foliot.models.scripted import NAMED

        if script not in NAMED:
            yield Problem(("spec", "script"), f"there is no script named {script!r}", expected=" or ".join(NAMED))
    elif script is not None:
        from foliot.models.script_reader import validate_script

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
    from foliot.tools.conditions import Expression

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
            from foliot.engine.edge_conditions import EdgeCondition

            try:
                EdgeCondition(when)
            except FoliotError as error:
                yield Problem(("spec", "graph", name, "edges", index, "when"), error.message, error.hint)


def _path(place: str) -> Path:
    """`script[2].call` as steps."""
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", place))
