"""Working out what a batch of changes does, inside its transaction.

`apply_changes` reads what the batch touches in one query, goes through the changes in order as if each were alone, and
writes the outcome with one statement per table: a thousand puts take some ten round trips.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.resources.field_owners import Field, decode_owners, encode_owners, leaves, settle
from foliot.resources.kinds import with_phase
from foliot.resources.names import check_answered, check_asked, keep_reserved
from foliot.resources.powers import IN_A_NAME, acts_for_declarer
from foliot.resources.problems import render_path
from foliot.resources.references import GRANT, TAKEN_NAMES, TAKEN_RULE, Reference, ReferenceGrants, foreign
from foliot.resources.wording import WRITTEN_AS, kept_words
from foliot.store.base import THE_PROCESS, DeclaredBy, Delete, Document, Filter, Key, Put, StaleMerge, Written
from foliot.store.resources.documents import (
    SYSTEM_METADATA,
    VALUES_BY,
    check_labels,
    decode,
    encode,
    key_range,
    key_text,
    labels_of,
    same,
    same_spec,
)
from foliot.store.resources.mcp_pins import KIND as TOOL
from foliot.store.resources.mcp_pins import ToolWrite, check_tools
from foliot.store.secrets.sealing import KIND as SECRET
from foliot.store.secrets.sealing import Sealer, masked, seal_spec, values_by
from foliot.store.secrets.store_key import sealing_key
from foliot.store.transaction import Tx, many, one, rows, run, value

TASK = "Task"
_KEPT_METADATA = ("uid", "generation", "createdAt", "declaredBy", WRITTEN_AS)
_ENVELOPE = ("apiVersion", "kind", "metadata", "spec", "status")


class StoredResource(NamedTuple):
    """A resource as it is in its row: secret values sealed. `owners` is as `encode_owners` writes it."""

    version: int
    document: Document
    owners: str


def shown(stored: Document) -> Document:
    """Returns a stored document as it leaves the store: secret values covered, and with a phase in its status."""
    return with_phase(masked(stored))


@dataclass(frozen=True, slots=True)
class Keyed:
    """A change and the key it concerns. The document of a Put is plain JSON that nobody else holds."""

    key: Key
    text: str
    change: Put | Delete


def apply_changes(
    changes: Sequence[Keyed], now: str, uids: Sequence[str], ring: Sealer | None, by: DeclaredBy = THE_PROCESS
) -> Tx[list[Written]]:
    """The transaction body of `ResourceStore.write`. `uids` has one for each change, used if it creates something."""
    revision: int = yield from value("revision_lock")
    wanted = json.dumps(list({each.text for each in changes}))
    found = yield from rows("resource_get_many", keys=wanted)
    before = {row["key"]: StoredResource(row["version"], decode(row["document"]), row["owners"]) for row in found}
    kid = "" if ring is None else (yield from sealing_key(ring))
    batch = _Batch(revision, now, ring, kid, by, before, dict(before))
    written: list[Written] = []
    tools: list[ToolWrite] = []
    for each, uid in zip(changes, uids, strict=True):
        before_it = batch.after.get(each.text)
        done = batch.apply(each, uid)
        if each.key.kind == TOOL and done.action != "unchanged":
            there, change = batch.after.get(each.text), each.change
            tools.append(
                ToolWrite(
                    None if before_it is None else before_it.document,
                    None if there is None else there.document,
                    judged=is_tool_of_others(each),
                    may_lower=isinstance(change, Put) and change.lowers,
                )
            )
        written.append(done)
    yield from check_tools(tools)
    if batch.feed:
        keys = {each.text: each.key for each in changes}
        yield from _check_pinned(batch, keys)
        yield from _store(batch, keys)
    return written


def _check_pinned(batch: _Batch, keys: dict[str, Key]) -> Tx[None]:
    """Raises `Conflict` when the spec of a Task would change whose work was accepted: it is not done again."""
    for text, key in keys.items():
        old, new = batch.before.get(text), batch.after.get(text)
        if key.kind != TASK or old is None or new is None or same_spec(old.document["spec"], new.document["spec"]):
            continue
        if (yield from one("task_identity", namespace=key.namespace, name=key.name)) is not None:
            raise Conflict(
                f"{key} was accepted: what it asks for cannot be changed, only its labels and annotations",
                hint="give the changed one another name",
                key=str(key),
            )


def is_tool_of_others(each: Keyed) -> bool:
    """Whether somebody other than Foliot itself declares a Tool, which is held against what was agreed to about it."""
    change = each.change
    return each.key.kind == TOOL and isinstance(change, Put) and change.only == "spec" and not change.own


def _store(batch: _Batch, keys: dict[str, Key]) -> Tx[None]:
    """Write how the rows differ from what they were, and the feed."""
    yield from run("revision_set", revision=batch.revision)
    inserts: list[dict[str, Any]] = []
    updates: list[dict[str, Any]] = []
    deletes: list[dict[str, str]] = []
    endings: list[dict[str, str]] = []
    revived: list[dict[str, str]] = []
    dropped: list[dict[str, str]] = []
    added: list[dict[str, str]] = []
    for text, key in keys.items():
        old, new = batch.before.get(text), batch.after.get(text)
        if old is new:
            continue
        if new is None:
            deletes.append({"key": text})
            if key.kind == TASK:
                endings.append({"namespace": key.namespace, "name": key.name, "at": batch.now})
        else:
            row: dict[str, Any] = {"key": text, "version": new.version, "document": encode(new.document)}
            row["owners"] = new.owners
            if old is None:
                inserts.append({**row, "kind": key.kind, "namespace": key.namespace, "name": key.name})
                if key.kind == TASK:
                    revived.append({"namespace": key.namespace, "name": key.name})
            else:
                updates.append(row)
        was = set(labels_of(old.document).items()) if old else set[tuple[str, str]]()
        now = set(labels_of(new.document).items()) if new else set[tuple[str, str]]()
        dropped += ({"label": label, "value": content, "key": text} for label, content in was - now)
        added += ({"label": label, "value": content, "key": text} for label, content in now - was)
    yield from many("label_remove", dropped)
    yield from many("resource_delete", deletes)
    yield from many("task_ending_add", endings)
    yield from many("task_ending_revoke", revived)
    yield from many("resource_insert", inserts)
    yield from many("resource_update", updates)
    yield from many("label_add", added)
    yield from many("change_add", batch.feed)


@dataclass(slots=True)
class _Batch:
    """The state of the touched resources while the changes go by."""

    revision: int
    now: str
    ring: Sealer | None
    kid: str
    by: DeclaredBy
    before: dict[str, StoredResource]
    after: dict[str, StoredResource]
    feed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def apply(self, each: Keyed, uid: str) -> Written:
        stored = self.after.get(each.text)
        change = each.change
        _check_expectation(each.key, change, stored)
        if isinstance(change, Delete):
            return self._delete(each, stored)
        if change.only == "status":
            return self._put_status(each, change, _present(each.key, stored))
        return self._put(each, change, stored, uid)

    def _delete(self, each: Keyed, stored: StoredResource | None) -> Written:
        if stored is None:
            key = each.key
            return Written("unchanged", {"kind": key.kind, "metadata": {"name": key.name, "namespace": key.namespace}})
        if self.by is not THE_PROCESS:
            check_answered(each.key.kind, stored.document, self.now, str(each.key))
        del self.after[each.text]
        return self._changed("deleted", each, stored.version, stored.document)

    def _put_status(self, each: Keyed, change: Put, stored: StoredResource) -> Written:
        status = _object(each.key, change.document, "status")
        if same(status, stored.document["status"]):
            return Written("unchanged", shown(stored.document))
        return self._replace(each, stored, {**stored.document, "status": status}, stored.owners, new_generation=False)

    def _put(self, each: Keyed, change: Put, stored: StoredResource | None, uid: str) -> Written:
        given = change.document if change.merge is None else _merged(each.key, change, _present(each.key, stored))
        document = self._incoming(each.key, given, stored)
        if not change.own and self.by is not THE_PROCESS:
            before = stored.document["metadata"] if stored is not None else None
            document["metadata"] = keep_reserved(document["metadata"], before, str(each.key))
        spec_before = stored.document["spec"] if stored is not None else None
        if not change.own and not same(document["spec"], spec_before):
            check_asked(each.key.kind, spec_before, document["spec"], str(each.key))
        new_spec = stored is None or not same_spec(document["spec"], stored.document["spec"])
        words_before: dict[str, Any] = {} if stored is None else stored.document["metadata"].get(WRITTEN_AS) or {}
        words = kept_words(words_before, change.written, new_spec=new_spec, secret=each.key.kind == SECRET)
        if stored is None:
            if each.key.name in TAKEN_NAMES:
                hint = TAKEN_RULE.format(name=each.key.name)
                raise InvalidInput(f"{each.key}: a new resource cannot be called {each.key.name!r}", hint=hint)
            system = {"uid": uid, "generation": 1, "createdAt": self.now, "declaredBy": self._declarer()}
            system[WRITTEN_AS] = words
            owners = encode_owners(settle({}, {}, leaves(document), change.claim))
            return self._keep(each, "created", 0, document, system, owners)
        declared, kept = self._declares(each.key, change, stored, document, new_spec)
        same_words = same(words, words_before)
        unchanged = not new_spec and not declared and same(_declared(document), _declared(stored.document))
        unchanged = unchanged and same_words
        if unchanged and change.claim.how == "update":
            return Written("unchanged", shown(stored.document))
        owners = _owners(stored, document, change)
        if unchanged and owners == stored.owners:
            return Written("unchanged", shown(stored.document))
        written = self._replace(each, stored, document, owners, new_generation=new_spec, declared=declared, words=words)
        return replace(written, kept=kept and new_spec)

    def _declares(
        self, key: Key, change: Put, stored: StoredResource, document: Document, new_spec: bool
    ) -> tuple[bool, bool]:
        """Whether the writer becomes the declarer, and whether somebody with fewer rights stays it instead.

        A write that leaves standing what somebody else declared does not give it the writer's rights (see
        docs/powers.md). Raises `Conflict` when it would act in the writer's name, or take a secret where another chose.
        """
        before = DeclaredBy.of(stored.document)
        declares = new_spec or (change.takes_over and before != self.by)
        if before.operator or before == self.by or change.own or not acts_for_declarer(key.kind):
            return declares, False
        if change.claim.how == "apply":  # its plan has seen to it that the manifest says all that stays
            return declares or self.by.operator, False
        standing = () if change.takes_over else _standing(change, stored, document)
        if not standing:
            return declares, False
        if key.kind == SECRET and new_spec:
            _check_hosts(key, before, stored.document["spec"], document["spec"], standing)
        if self.by.operator or (key.kind in IN_A_NAME and _only_suspends(stored.document, document)):
            return False, True
        if key.kind in IN_A_NAME and new_spec:
            raise Conflict(
                f"{key}: {before.user} declared the rest of it ({_listed(standing)}), and with this it would act in "
                "your name",
                hint="look at all of it, and make it yours with ?takeOver=true (`foliot edit --take-over`), or apply a "
                "manifest that says all of it",
                key=str(key),
            )
        return declares, False

    def _incoming(self, key: Key, given: Document, stored: StoredResource | None) -> Document:
        """Returns the caller's document with the stored status; the caller's own status is ignored."""
        spec = _object(key, given, "spec")
        if key.kind == SECRET:
            assert self.ring is not None  # the store loads the keyring when a Secret is among the changes
            told = stored is None or self.by.knows(stored.document)
            spec = seal_spec(key, spec, stored.document["spec"] if stored else None, self.ring, self.kid, told=told)
        metadata = {name: content for name, content in given["metadata"].items() if name not in SYSTEM_METADATA}
        extra = {name: content for name, content in given.items() if name not in _ENVELOPE}
        head = {"apiVersion": given["apiVersion"]} if "apiVersion" in given else {}
        return {
            **head,
            "kind": key.kind,
            "metadata": {**metadata, "namespace": key.namespace},
            "spec": spec,
            "status": stored.document["status"] if stored else {},
            **extra,
        }

    def _replace(
        self,
        each: Keyed,
        stored: StoredResource,
        document: Document,
        owners: str,
        *,
        new_generation: bool,
        declared: bool = False,
        words: Mapping[str, Any] | None = None,
    ) -> Written:
        kept = stored.document["metadata"]
        system = {name: kept[name] for name in _KEPT_METADATA if name in kept}
        if words is not None:
            system[WRITTEN_AS] = words
        if new_generation:
            system["generation"] += 1
        if declared:
            system["declaredBy"] = self._declarer()
        return self._keep(each, "updated", stored.version, document, system, owners)

    def _declarer(self) -> dict[str, Any]:
        return {"user": self.by.user, "operator": self.by.operator}

    def _keep(
        self,
        each: Keyed,
        action: Literal["created", "updated"],
        previous: int,
        document: Document,
        system: dict[str, Any],
        owners: str,
    ) -> Written:
        version = self.revision + 1
        metadata = {name: content for name, content in document["metadata"].items() if name not in SYSTEM_METADATA}
        metadata |= {
            "uid": system["uid"],
            "resourceVersion": str(version),
            "generation": system["generation"],
            "createdAt": system["createdAt"],
            "updatedAt": self.now,
            "declaredBy": system["declaredBy"],
        }
        if system.get(WRITTEN_AS):
            metadata[WRITTEN_AS] = system[WRITTEN_AS]
        if each.key.kind == SECRET:
            before = self.after.get(each.text)
            metadata[VALUES_BY] = values_by(document, None if before is None else before.document, self.by)
        stored = self.after[each.text] = StoredResource(version, {**document, "metadata": metadata}, owners)
        return self._changed(action, each, previous, stored.document)

    def _changed(
        self, action: Literal["created", "updated", "deleted"], each: Keyed, previous: int, document: Document
    ) -> Written:
        self.revision += 1
        visible = shown(document)
        self.feed.append(
            {
                "revision": self.revision,
                "previous": previous,
                "action": action,
                "kind": each.key.kind,
                "namespace": each.key.namespace,
                "document": encode(visible),
            }
        )
        return Written(action, visible)


def _check_expectation(key: Key, change: Put | Delete, stored: StoredResource | None) -> None:
    match change.expect:
        case "any":
            return
        case "absent":
            if stored is not None:
                raise Conflict(f"{key} exists already", hint="update it instead, or choose another name", key=str(key))
        case "present":
            _present(key, stored)
        case version:
            current = str(_present(key, stored).version)
            if version != current:
                raise Conflict(
                    f"{key} was changed meanwhile: it is at version {current}, not {version}",
                    hint="read it again and repeat the change",
                    key=str(key),
                    expected=version,
                    current=current,
                )


def _merged(key: Key, change: Put, stored: StoredResource) -> Document:
    """The document of a Put that merges, made anew when the resource is not the one it was made of."""
    assert change.merge is not None, "the caller looked"
    if change.document["metadata"].get("resourceVersion") == str(stored.version):
        return change.document
    document = masked(stored.document)
    fresh = change.merge(document, decode_owners(stored.owners, leaves(document)))
    if not same_spec(fresh["spec"], change.document["spec"]):
        raise StaleMerge(f"{key} is being changed by others at this moment", hint="repeat the request", key=str(key))
    check_labels(fresh, key)
    return fresh


def _standing(change: Put, stored: StoredResource, document: Document) -> tuple[Field, ...]:
    """The fields of the spec that stay as others declared them, and that the writer has not said.

    A patch says what it names. Whoever names the version that they read sends back what they read; a document without
    one is the writer's from beginning to end.
    """
    if change.claim.how == "update" and change.expect in ("any", "present", "absent"):
        return ()
    before, after = leaves(stored.document), leaves(document)
    said = (
        change.claim.fields if change.claim.how == "patch" and change.claim.fields is not None else frozenset[Field]()
    )
    owned = {field for fields in decode_owners(stored.owners, before).values() for field in fields}
    return tuple(
        field
        for field in sorted(owned - said)
        if field[0] == "spec" and field in after and same(before[field], after[field])
    )


def _listed(fields: Sequence[Field]) -> str:
    shown = ", ".join(render_path(field) for field in fields[:5])
    return f"{shown} and {len(fields) - 5} more" if len(fields) > 5 else shown


def _only_suspends(before: Document, after: Document) -> bool:
    """Whether a trigger is stopped or let go on, and nothing else."""
    was, now = ({**document["spec"], "suspend": None} for document in (before, after))
    return same_spec(was, now)


def _check_hosts(
    key: Key, before: DeclaredBy, was: dict[str, Any], now: dict[str, Any], standing: Sequence[Field]
) -> None:
    """Raises `Conflict` when a new value would be sent to hosts that somebody else chose, and nobody said them."""
    old: dict[str, str] = was.get("data") or {}
    new: dict[str, str] = now.get("data") or {}
    if ("spec", "hosts") in standing and any(old.get(name) != content for name, content in new.items()):
        raise Conflict(
            f"{key}: {before.user or 'somebody unknown'} chose where its values go: {', '.join(now['hosts'])}",
            hint="say spec.hosts in the same patch, or agree to them with ?takeOver=true",
            key=str(key),
        )


def _owners(stored: StoredResource, document: Document, change: Put) -> str:
    before = leaves(stored.document)
    owned = decode_owners(stored.owners, before)
    settled = settle(owned, before, leaves(document), change.claim)
    return stored.owners if settled == owned else encode_owners(settled)


def _present(key: Key, stored: StoredResource | None) -> StoredResource:
    if stored is None:
        raise NotFound(f"there is no {key}", key=str(key))
    return stored


def _declared(document: Document) -> Document:
    """Returns the declared parts apart from the spec: they must be equal for a Put to change nothing."""
    rest = {name: content for name, content in document.items() if name not in ("spec", "status", "metadata")}
    metadata = {name: content for name, content in document["metadata"].items() if name not in SYSTEM_METADATA}
    return {**rest, "metadata": metadata}


def _object(key: Key, document: Document, part: str) -> dict[str, Any]:
    content = document.get(part)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidInput(f"{key}: {part} must be an object")
    return cast("dict[str, Any]", content)


def keyed(change: Put | Delete, document: Document | None, key: Key) -> Keyed:
    """A change with its key as text, and with the document that is safe to keep."""
    if isinstance(change, Put) and document is not None:
        change = replace(change, document=document)
    return Keyed(key, key_text(key), change)


# --- crossing --------------------------------------------------------------------------------------------------------

# No resource that names something of another namespace is stored without a grant there.
#
# It is part of the transaction that stores the resource, so that no way of writing goes around it, and a grant that is
# taken back at the same moment is either seen or comes later. Grants that are written together with the resource
# count.

_ROUND = 1000


def crossing(changes: Sequence[Keyed]) -> dict[int, list[Reference]]:
    """The references of each change to other namespaces, by the place of the change; few have any."""
    return {
        index: found
        for index, each in enumerate(changes)
        if isinstance(each.change, Put) and each.change.only == "spec" and (found := _references(each))
    }


def check_crossing(changes: Sequence[Keyed], written: Sequence[Written], found: dict[int, list[Reference]]) -> Tx[None]:
    """Hold the references of what was just written against the grants, in the same transaction. Raises `Denied`."""
    changed = {index: refs for index, refs in found.items() if written[index].action != "unchanged"}
    grants: list[Document] = []
    for namespace in sorted({each.namespace for refs in changed.values() for each in refs}):
        grants += yield from _granted_in(namespace)
    granted = ReferenceGrants(grants)
    for index, refs in changed.items():
        change = changes[index].change
        assert isinstance(change, Put)  # nothing else refers
        granted.check(change.document, refs)


def _granted_in(namespace: str) -> Tx[list[Document]]:
    after, before = key_range(Filter(GRANT, namespace))
    found: list[Document] = []
    while True:
        page = yield from rows("resource_list", after=after, before=before, count=_ROUND)
        found += (decode(row["document"]) for row in page)
        if len(page) < _ROUND:
            return found
        after = page[-1]["key"]


def _references(each: Keyed) -> list[Reference]:
    assert isinstance(each.change, Put)
    document = each.change.document
    try:
        return foreign({**document, "metadata": {**document["metadata"], "namespace": each.key.namespace}})
    except (AttributeError, TypeError):  # what is no resource at all is refused where it is stored
        return []
