"""Resources as they are stored: their key as one text, and the document as JSON.

A key is kind, namespace and name joined by U+001F. No name may hold a control character, and U+001F sorts before all
others, so the order of the texts is the order of (kind, namespace, name), and a kind or a namespace is a range of keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from foliot.errors import InvalidInput
from foliot.resources.wording import WRITTEN_AS
from foliot.store.base import Document, Filter, Key

LONGEST_NAME = 253
_JOIN, _PAST_JOIN = "\x1f", "\x20"
_PAST_ALL = "\U0010ffff"
# "/" separates the parts of a secret's context; control characters separate the parts of a key.
_FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f\ud800-\udfff]")

# Of a Secret, by key: who set the value. Kept by the store, never shown.
VALUES_BY = "valuesBy"
SYSTEM_METADATA = (
    *("uid", "resourceVersion", "generation", "createdAt", "updatedAt", "declaredBy", "managedFields"),
    WRITTEN_AS,
    VALUES_BY,
)

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def key_text(key: Key) -> str:
    """The key as it is stored. Raises `InvalidInput` when a part of it cannot be a name."""
    return _JOIN.join(
        (check_name(key.kind, "kind"), check_name(key.namespace, "namespace"), check_name(key.name, "name"))
    )


def check_name(value: object, what: str) -> str:
    """`value`, if the store can keep it as a name; what names should look like is for the resources to say."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"a resource needs a {what}")
    if len(value) > LONGEST_NAME or _FORBIDDEN.search(value):
        raise InvalidInput(
            f"{value[:60]!r} cannot be a {what}", hint=f"use at most {LONGEST_NAME} characters, without '/' or controls"
        )
    return value


def key_range(filter: Filter) -> tuple[str, str]:
    """The keys that the filter can let through lie between these two, both left out."""
    if filter.namespace is not None:
        check_name(filter.namespace, "namespace")
    if filter.kind is None:
        return "", _PAST_ALL
    prefix = check_name(filter.kind, "kind")
    if filter.namespace is not None:
        prefix += _JOIN + filter.namespace
    return prefix + _JOIN, prefix + _PAST_JOIN


def key_of(document: Document) -> Key:
    """The key that a document names. Raises `InvalidInput`."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise InvalidInput("a resource needs metadata with a name")
    named = cast("dict[str, Any]", metadata)
    return Key(
        check_name(document.get("kind"), "kind"),
        check_name(named.get("namespace", "default"), "namespace"),
        check_name(named.get("name"), "name"),
    )


def labels_of(document: Document) -> dict[str, str]:
    """The labels of a document, none when it has none."""
    return document["metadata"].get("labels") or {}


def check_labels(document: Document, key: Key) -> None:
    """Raise `InvalidInput` for labels that are not texts by name: both databases index them as such."""
    labels = document["metadata"].get("labels")
    if labels is None:
        return
    if not isinstance(labels, dict):
        raise InvalidInput(f"{key}: labels must be names with texts")
    for name, value in cast("dict[str, object]", labels).items():
        if not name or not isinstance(value, str) or "\x00" in name + value:
            raise InvalidInput(f"{key}: the label {name!r} must be a text", hint="put quotes around its value")


def encode(document: Document) -> str:
    """The JSON text of a document."""
    return _encoder.encode(document)


def decode(text: str) -> Document:
    return json.loads(text)


def decode_all(texts: Sequence[str]) -> list[Document]:
    """Many documents as one text: for small ones, what surrounds the reading of each takes as long as the reading."""
    return json.loads(f"[{','.join(texts)}]")


def plain(document: Document) -> Document:
    """A copy that shares nothing with the given document. Raises `InvalidInput` when it is not plain JSON."""
    try:
        text = encode(document)
        text.encode()
        return decode(text)
    except UnicodeEncodeError:
        problem = "it holds half of a surrogate pair, which is no character"
    except RecursionError:
        problem = "it is nested too deeply"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise InvalidInput(f"the resource cannot be stored as JSON: {problem}")


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; for Python `True == 1 == 1.0`, for the reader of a manifest they differ."""
    return one == other and _canonical.encode(one) == _canonical.encode(other)


def same_spec(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two specs are the same, with the order of names in what their fields hold.

    The order within a schema is what a model sees: whoever puts `reasoning` before `answer` has changed the agent. The
    order of the fields themselves is nobody's wish.
    """
    return one == other and all(_encoder.encode(one[name]) == _encoder.encode(other[name]) for name in one)
