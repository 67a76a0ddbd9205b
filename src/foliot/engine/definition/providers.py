"""The provider of a ModelEndpoint: one that Foliot has, or a plug-in of this process brings."""

from __future__ import annotations

from collections.abc import Iterator

from foliot.errors import FoliotError
from foliot.resources.problems import Problem
from foliot.store.base import Document


def check_provider(document: Document) -> Iterator[Problem]:
    """Yields a problem when nobody here knows the provider of a ModelEndpoint: no question could be asked of it."""
    from foliot.models.registry import default_registry  # slow to load

    try:
        default_registry().find(document["spec"].get("provider", ""))
    except FoliotError as error:
        yield Problem(("spec", "provider"), error.message, error.hint, missing=True)
