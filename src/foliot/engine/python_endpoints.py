"""A model's endpoint declared in Python. It is the same thing as a ModelEndpoint manifest, and needs no store."""

from __future__ import annotations

from typing import Any, Final

from foliot.common.plugins import ENABLED, installed
from foliot.engine.definition.providers import check_provider
from foliot.errors import UsageError
from foliot.resources.digest import definition_digest
from foliot.resources.problems import Finding, ManifestError
from foliot.resources.validate import validate_document
from foliot.store.base import Document

# What other frameworks call what has another name here.
_ELSEWHERE: Final = {"model": "default_model", "model_name": "default_model", "url": "base_url", "key": "api_key"}


class ModelEndpoint:
    """A model endpoint declared in Python: provider, key, limits and prices.

    The arguments are the fields of a ModelEndpoint's `spec`: `default_model`, `base_url`, `options`, `rate_limit`,
    `timeouts`, `pricing`, `fallbacks`, `auth`. `api_key` is the key itself; without it and without `auth` it is looked
    for in the environment, where the provider's own tools look. Raises `ManifestError` as a manifest would.
    """

    def __init__(
        self,
        provider: str,
        default_model: str = "",
        *,
        name: str = "",
        namespace: str = "default",
        api_key: str = "",
        **spec: Any,
    ) -> None:
        for word, here in _ELSEWHERE.items():
            if word in spec:
                raise UsageError(f"ModelEndpoint has no {word!r}", hint=f"it is called {here!r} here")
        raw = {
            "kind": "ModelEndpoint",
            "metadata": {"name": name or "endpoint", "namespace": namespace},
            "spec": {"provider": provider, "default_model": default_model, **spec},
        }
        document, problems = validate_document(raw)
        if document is None or (problems := [] if _may_be_brought() else list(check_provider(document))):
            raise ManifestError([Finding(problem, f"ModelEndpoint({provider!r})") for problem in problems])
        self.document: Document = document
        self.api_key = api_key
        self._name = name

    @property
    def ref(self) -> str:
        """The name that runs have it by. No two that differ share one, and it names no resource."""
        called = self._name or definition_digest(self.document).rpartition(":")[2][:12]
        return f"python:{self.document['metadata']['namespace']}/{called}"

    def __repr__(self) -> str:
        return f"ModelEndpoint({self.document['spec']['provider']!r}, {self.document['spec'].get('default_model')!r})"


def _may_be_brought() -> bool:
    """Whether a plug-in is installed that a Runtime may still enable: then its first run tells what is unknown."""
    return any("models" in each.kinds and each.name not in ENABLED for each in installed())
