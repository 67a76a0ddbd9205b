"""Conditions in declarations that can never hold, because of what they ask for; whatever the kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foliot.engine.definition.call_conditions import check_call_fields
from foliot.engine.definition.edge_conditions import check_edge_fields
from foliot.resources.problems import Problem
from foliot.store.base import Document


def check_fields(document: Document, look: Callable[[str, str, str], Document | None]) -> Iterator[Problem]:
    """Yields the fields and values in conditions of a document that what they are about cannot have."""
    if document["kind"] == "AgentSystem":
        yield from check_edge_fields(document, look)
    else:
        yield from check_call_fields(document, look)
