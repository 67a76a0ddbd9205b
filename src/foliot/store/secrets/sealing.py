"""Secret values inside documents: sealed on their way in, masked on their way out.

Only resources of kind Secret are touched, and of them only `spec.data`. In the table of resources each value is a
sealed text; everything else, the feed of changes included, has `***` in its place.

Invariant: no clear value is in a row, an error or a document that is handed out; only `reveal` opens them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Protocol, cast

from foliot.errors import InvalidInput, SecretError
from foliot.store.base import DeclaredBy, Document, Filter, Key, Revealed
from foliot.store.resources.documents import VALUES_BY, decode, encode, key_range
from foliot.store.transaction import Tx, many, rows, value

KIND = "Secret"
MASK = "***"


class Sealer(Protocol):
    """The part of a keyring that sealing needs."""

    @property
    def active_id(self) -> str: ...
    @property
    def key_ids(self) -> tuple[str, ...]: ...
    def seal(self, value: bytes, *, context: str, kid: str = "") -> str: ...
    def open(self, sealed: str, *, context: str) -> bytes: ...
    def key_id_of(self, sealed: str) -> str: ...
    def rotate(self) -> Sealer: ...
    def retire(self, key_ids: Any) -> None: ...


def masked(document: Document) -> Document:
    """The document with every secret value covered; other kinds as they are. The given document is not changed."""
    if document["kind"] != KIND:
        return document
    metadata = {name: content for name, content in document["metadata"].items() if name != VALUES_BY}
    data = document["spec"].get("data")
    spec = {**document["spec"], "data": dict.fromkeys(data, MASK)} if data else document["spec"]
    return {**document, "metadata": metadata, "spec": spec}


def context(key: Key, name: str) -> str:
    """Returns the context that a sealed value is bound to: copied elsewhere it does not open."""
    return f"{key.namespace}/{key.name}/{name}"


def seal_spec(
    key: Key, spec: dict[str, Any], stored: dict[str, Any] | None, ring: Sealer, kid: str, *, told: bool = True
) -> dict[str, Any]:
    """The spec of a Secret with its values sealed by the key `kid`. What did not change keeps its stored, sealed text.

    `***` stands for the stored value. Unless the writer may be `told` that a value is the stored one, every value that
    they give counts as another. Raises `InvalidInput` when there is none, or a value is not base64.
    """
    before = _values(stored.get("data"), key) if stored else {}
    data: dict[str, str] = {}
    for name, given in _given(key, spec):
        if given is None:
            if name not in before:
                raise InvalidInput(
                    f"{key}: the value of {name!r} is masked, and none is stored that it could stand for",
                    hint="give the value itself",
                )
            data[name] = before[name]
        else:
            kept = before.get(name)
            if not kept or not told or not _opens_to(given, kept, key, name, ring):
                kept = ring.seal(given, context=context(key, name), kid=kid)
            data[name] = kept
    rest = {field: content for field, content in spec.items() if field not in ("data", "stringData")}
    return {**rest, "data": data}


def _given(key: Key, spec: dict[str, Any]) -> Iterator[tuple[str, bytes | None]]:
    """Names with their clear values, None for a mask. `stringData` goes before `data` of the same name."""
    texts = _values(spec.get("stringData"), key)
    for name, content in _values(spec.get("data"), key).items():
        if name in texts:
            continue
        if content == MASK:
            yield name, None
            continue
        try:
            yield name, base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput(
                f"{key}: the value of {name!r} is not base64", hint="give plain text under stringData instead"
            ) from None
    for name, content in texts.items():
        yield name, content.encode()


def _values(data: object, key: Key) -> dict[str, str]:
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in cast("dict[str, object]", data).values()):
        raise InvalidInput(f"{key}: the data of a Secret must be names with texts")
    return cast("dict[str, str]", data)


def _opens_to(given: bytes, sealed: str, key: Key, name: str, ring: Sealer) -> bool:
    try:
        return ring.open(sealed, context=context(key, name)) == given
    except SecretError:
        return False  # its key is lost: storing the value again is the way out, so it must not be refused


def reveal(key: Key, document: Document, ring: Sealer) -> Revealed:
    """The clear values, and where they may be sent. Raises `SecretError`."""
    data = _values(document["spec"].get("data"), key)
    opened = {name: ring.open(sealed, context=context(key, name)) for name, sealed in data.items()}
    return Revealed(opened, document["spec"].get("hosts") or (), set_by=setters(document))


def setters(document: Document) -> dict[str, DeclaredBy]:
    """Returns who set each value of a stored Secret. Before that was kept, its declarer counts."""
    kept: dict[str, dict[str, Any]] = document["metadata"].get(VALUES_BY) or {}
    declarer = DeclaredBy.of(document)
    return {
        name: DeclaredBy(str(kept[name].get("user", "")), kept[name].get("operator") is True)
        if name in kept
        else declarer
        for name in cast("dict[str, str]", document["spec"].get("data") or {})
    }


def values_by(document: Document, stored: Document | None, by: DeclaredBy) -> dict[str, Any]:
    """Returns what is kept of who set the values: a sealed text that stayed was not set anew."""
    data: dict[str, str] = document["spec"].get("data") or {}
    before: dict[str, str] = (stored["spec"].get("data") or {}) if stored else {}
    known = setters(stored) if stored else {}
    now = {name: known[name] if before.get(name) == sealed else by for name, sealed in data.items()}
    return {name: {"user": each.user, "operator": each.operator} for name, each in now.items()}


def reseal_page(ring: Sealer, after: str, count: int) -> Tx[tuple[str | None, int, int, frozenset[str]]]:
    """Seal the next `count` secrets with the active key: (last key or None at the end, secrets, values, old key ids).

    A transaction body. It holds the lock of every resource write, so a value sealed with the old key before the new
    one became active is committed by now and is found here.
    """
    yield from value("revision_lock")
    start, end = key_range(Filter(kind=KIND))
    page = yield from rows("resource_list", after=after or start, before=end, count=count)
    updates: list[dict[str, str]] = []
    values = 0
    old: set[str] = set()
    for row in page:
        document = decode(row["document"])
        metadata = document["metadata"]
        key = Key(KIND, metadata["namespace"], metadata["name"])
        data = _values(document["spec"].get("data"), key)
        stale = {name: sealed for name, sealed in data.items() if ring.key_id_of(sealed) != ring.active_id}
        for name, sealed in stale.items():
            place = context(key, name)
            data[name] = ring.seal(ring.open(sealed, context=place), context=place)
        if stale:
            updates.append({"key": row["key"], "document": encode(document)})
            values += len(stale)
            old.update(map(ring.key_id_of, stale.values()))
    yield from many("reseal_resource", updates)
    return (page[-1]["key"] if len(page) == count else None), len(updates), values, frozenset(old)
