"""The words in which an author wrote a document of an older version of this format, kept beside its normal form.

Clients of `orloj.dev/v1` compare what they post with what they read back, member by member, except for the status and
for `resourceVersion`, `generation` and `createdAt`. A default that was filled in, a duration in another spelling, an
empty object that was left out or a `uid` would be a difference to them, at every look. So a document of that version is
shown exactly as it was written, for as long as nobody changes what it says; whatever acts, goes by the normal form.

Used by the reader (`written_as`), the store (`kept_words`), and by whatever shows a stored document (`as_written`).
No pydantic is loaded for it: the command line reads stores without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foliot.resources.names import MANAGED_BY

API_VERSION: Final = "foliot.dev/v1"
API_VERSION_ALIASES: Final = frozenset({"orloj.dev/v1"})
# The member of a stored document's metadata that holds the words: {"apiVersion": …, "spec": …}.
WRITTEN_AS: Final = "writtenAs"

# The metadata of the older version, and what is shown only to those who ask for it.
_METADATA: Final = frozenset(
    {"name", "namespace", "labels", "annotations", "resourceVersion", "generation", "createdAt", "managedFields"}
)


def written_as(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is kept of a document in its author's words; nothing for one of the present version.

    Of a Secret it is only the version: values are kept sealed, and nowhere else.
    """
    version = raw.get("apiVersion", raw.get("api_version"))
    if not isinstance(version, str) or version.strip() not in API_VERSION_ALIASES:
        return {}
    head = {"apiVersion": version.strip()}
    spec: Any = raw.get("spec")
    is_secret = str(raw.get("kind", "")).strip().lower() == "secret"
    return head if is_secret or not isinstance(spec, dict) else {**head, "spec": spec}


def kept_words(
    before: Mapping[str, Any], written: Mapping[str, Any] | None, *, new_spec: bool, secret: bool
) -> dict[str, Any]:
    """Returns the words that a write leaves behind. `before` are those of what it writes over.

    Who does not say how it was `written` changes a part of it, or is Foliot itself: the words stay, unless they say
    something else than the new spec; then only the version does, and the spec is shown in normal form.
    """
    if written is None:
        written = {name: value for name, value in before.items() if name != "spec" or not new_spec}
    return {name: value for name, value in written.items() if name == "apiVersion" or not secret}


def as_written(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a stored document as it is shown: in its author's words where these are kept, as it is otherwise."""
    stored: dict[str, Any] = document["metadata"]
    words: dict[str, Any] | None = stored.get(WRITTEN_AS)
    if not words:
        return document
    metadata = {name: value for name, value in stored.items() if name in _METADATA}
    annotations: dict[str, Any] = metadata.get("annotations") or {}
    if MANAGED_BY in annotations:  # a mark of `apply`, not of the author
        metadata["annotations"] = {name: text for name, text in annotations.items() if name != MANAGED_BY}
    metadata = {name: value for name, value in metadata.items() if value not in (None, {}, [])}
    return {**document, **words, "metadata": metadata}
