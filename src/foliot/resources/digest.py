"""The digest of a definition: the same for the same wish, however it was written down.

Computed over apiVersion, kind and the normalised spec. Names, labels and status are no part of it, so a run that was
pinned to a digest can tell whether what it ran has changed. Neither is the order of names: that of a schema is kept
wherever the definition itself is kept, and is part of the name of a run's frozen spec (kernel/run/spec.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def definition_digest(document: Mapping[str, Any]) -> str:
    """`sha256:<hex>` of a normalised document (see `validate_document`)."""
    wish = {"apiVersion": document.get("apiVersion"), "kind": document.get("kind"), "spec": document.get("spec", {})}
    return f"sha256:{hashlib.sha256(canonical_json(wish)).hexdigest()}"


def canonical_json(value: Any) -> bytes:
    """One UTF-8 text per value: keys sorted, no spaces, and numbers that are equal written alike (`1.0` as `1`).

    A database may give back `1` for `1.0`; the digest must not notice.
    """
    return _encode(_plain(value)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
