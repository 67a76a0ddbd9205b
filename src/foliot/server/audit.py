"""Every write through the server, in the audit log: who, what, to which resource, by which request.

A resource and the record of who wrote it are stored in one transaction, and so is what is asked of tasks, runs and
approvals (`ActRecord`). The record of what is done elsewhere, such as a call of a tool, follows at once, before the
answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from foliot.catalog.apply import find, list_all
from foliot.catalog.declared import key_of
from foliot.channels.base import read_channel
from foliot.engine.audit.entry import act_entry
from foliot.engine.audit.words import Act
from foliot.engine.definition.endpoints import undeclared_hosts
from foliot.engine.definition.references import check_declared
from foliot.errors import Conflict, Denied, FoliotError, InvalidInput, NotFound, Unavailable
from foliot.resources.agreed import Agreed
from foliot.resources.names import check_asked
from foliot.resources.powers import (
    LOOKED_AT,
    RULE_KINDS,
    Need,
    needs,
    needs_around,
    secret_values,
    secrets_of,
    signed_with,
    spec_of,
    value_at,
    with_linked,
)
from foliot.resources.references import EVERY_NAMESPACE, GRANT, Origin, ReferenceGrants
from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import EVERYWHERE, HIDDEN, Caller, role_named
from foliot.store.audit.log import AuditRecord, append_records
from foliot.store.base import (
    Change,
    ChangedSince,
    DeclaredBy,
    Delete,
    Document,
    Filter,
    Key,
    Owned,
    Page,
    Put,
    ResourceStore,
    Revealed,
    Rotation,
    WriteBody,
    Written,
)
from foliot.store.channel_links import ChannelLinks
from foliot.store.resources.documents import decode
from foliot.store.transaction import Alone, Row, Tx, one, rows
from foliot.tools.secrets.secrets import SecretRef

log = logging.getLogger(__name__)

CHANNEL: Final = "Channel"
SECRET: Final = "Secret"
LONGEST: Final = 500
# Of refused fields and resources, so many are named in one answer.
MOST_SAID: Final = 20
# How often a write is judged when others keep changing what it depends on.
ATTEMPTS: Final = 5


def entry_of(
    caller: Caller | None, verb: Act, kind: str, namespace: str, name: str, *, request: str = "", **more: Any
) -> dict[str, Any]:
    """The members of the record of one act. `verb` is in the past tense, and becomes the outcome."""
    who = (caller.name, caller.known_by) if caller else ("", "store")
    return act_entry(*who, verb, kind, namespace, name, request=request, **more)


class TakenBack(Exception):
    """Ends the transaction of a dry run, when all of it was done: it is undone."""


class ActRecord:
    """The record of one act, stored in the transaction of the act or not at all: hand `record` or `record_task` to
    whoever does it, and call `tell` when it is done. With `dry`, the act ends in `TakenBack`."""

    def __init__(
        self,
        runtime: Runtime,
        caller: Caller,
        verb: Act,
        kind: str,
        namespace: str,
        name: str,
        *,
        request: str = "",
        dry: bool = False,
        **more: Any,
    ) -> None:
        self._audit = runtime.inside.audit
        self._dry = dry
        self._entry = partial(entry_of, caller, verb, kind, namespace, request=request)
        self._name = name
        self._more = more
        self._kept: list[AuditRecord] = []

    def record(self) -> Tx[None]:
        """Writes the record inside a transaction. Raises `Unavailable` when it cannot: then the act is not done."""
        yield from self._store(self._entry(self._name, **self._more))

    def record_task(self, name: str, uid: str) -> Tx[None]:
        """Writes the record of an act on a task whose name is known only now."""
        yield from self._store(self._entry(name, **self._more, uid=uid))

    @property
    def part(self) -> Callable[[str, str], Tx[None]]:
        """`record_task`; of a dry run, alone."""
        return Alone(self.record_task) if self._dry else self.record_task

    def record_for(self, name: str, uid: str) -> Tx[None]:
        """Writes the record of an act that is not about the task it makes."""
        return self.record()

    def _store(self, entry: dict[str, Any]) -> Tx[None]:
        kept = yield from _appended([entry], told=self._audit.fed)
        if self._dry:
            raise TakenBack
        self._kept = kept

    def tell(self) -> None:
        """Notifies the listeners of the log."""
        if self._kept:
            self._audit.appended(self._kept)


class AcceptedTasks:
    """The records of tasks that are accepted one after the other: called with the namespace of each."""

    def __init__(self, runtime: Runtime, caller: Caller, verb: Act, request: str) -> None:
        self._new = partial(ActRecord, runtime, caller, verb, "Task", name="", request=request)
        self._acts: list[ActRecord] = []

    def __call__(self, namespace: str) -> Callable[[str, str], Tx[None]]:
        self._acts.append(act := self._new(namespace))
        return act.record_task

    def tell(self) -> None:
        for act in self._acts:
            act.tell()


def _appended(entries: list[dict[str, Any]], *, told: bool) -> Tx[list[AuditRecord]]:
    try:
        return (yield from append_records(entries, told=told))
    except InvalidInput as error:
        raise Unavailable(f"it cannot be recorded, and was not done: {error.message}", hint=error.hint) from None


async def record(
    runtime: Runtime,
    caller: Caller,
    verb: Act,
    kind: str,
    namespace: str,
    name: str,
    *,
    request: str = "",
    **more: Any,
) -> None:
    """Keep the record of an act that has happened. It cannot be undone for want of a record, so this never raises."""
    try:
        await runtime.inside.audit.act(entry_of(caller, verb, kind, namespace, name, request=request, **more))
    except FoliotError as error:
        log.error("an act is not in the audit log: %s %s/%s by %s: %s", verb, kind, name, caller.name, error.message)


@dataclass(frozen=True, slots=True)
class AllowedWrite:
    """A write that the caller may do. `lifted` are fields by which it may lift a rule: what was, and what will be."""

    change: Put | Delete
    before: Document | None = None
    after: Document | None = None
    lifted: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def same(self) -> bool:
        return self.before is not None and self.after is not None and spec_of(self.before) == spec_of(self.after)


class StaleFacts(Conflict):
    """A fact that a write was judged by has changed before it was stored."""


class WriteFacts:
    """Everything that was read to judge one write, each once: what is judged is what is stored, or it is judged anew.

    Whatever is added to a judgement is read through here, so nothing that it goes by can change unseen.
    """

    def __init__(self, store: ResourceStore, revision: int) -> None:
        self._store = store
        self._revision = revision  # as it was before anything was read
        self._found: dict[Key, Document | None] = {}
        self._lists: dict[Filter, list[Document]] = {}

    @classmethod
    async def at(cls, store: ResourceStore) -> WriteFacts:
        return cls(store, await store.revision())

    async def find(self, key: Key) -> Document | None:
        if key not in self._found:
            self._found[key] = await find(self._store, key)
        return self._found[key]

    async def list(self, filter: Filter, *, cursor: str | None = None) -> Page:
        """Lists all matching resources, as one page."""
        if filter not in self._lists:
            self._lists[filter] = await list_all(self._store, filter)
        return Page(self._lists[filter], None, self._revision)

    def hold(self, written: Sequence[Written]) -> Tx[None]:
        """Checks, inside the writing transaction, that what was looked at is unchanged; raises `StaleFacts` if not."""
        bounds = yield from one("feed_bounds")
        assert bounds is not None, "the first migration made the row"
        upto = bounds["revision"] - sum(each.action != "unchanged" for each in written)  # the last ones are its own
        if upto <= self._revision:
            return
        changes = yield from rows("change_list", after=self._revision, upto=upto)
        if bounds["compacted"] > self._revision or any(map(self._differs, changes)):
            raise StaleFacts(
                "what this depends on is being changed by others at this moment", hint="repeat the request"
            )

    def _differs(self, change: Row) -> bool:
        """Whether what was looked at says something else by this change. What only has another status says the same."""
        document = decode(change["document"])
        key = key_of(document)
        seen = [self._found[key]] if key in self._found else []
        for filter, documents in self._lists.items():
            if filter.kind in (None, key.kind) and filter.namespace in (None, key.namespace):
                seen.append(next((each for each in documents if key_of(each) == key), None))
        gone = change["action"] == "deleted"
        return any(each is None or gone or spec_of(each) != spec_of(document) for each in seen)


@dataclass(frozen=True, slots=True)
class MissingRole:
    """A role that the caller has not in a namespace, and the sentence that says for what."""

    role: str
    namespace: str
    said: str


def _lacking(key: Key, needed: Sequence[Need], missing: Sequence[Need]) -> list[MissingRole]:
    """One for the resource as a whole, with every role that it takes, and one for each field."""
    place = f"{key.kind}/{key.name} in namespace {key.namespace!r}"
    plain = [need.role for need in missing if not need.field and not need.when]
    found: list[MissingRole] = []
    if plain:
        roles = list(dict.fromkeys(need.role for need in needed if not need.field and not need.when))
        said = f"{place} needs the role{'s' if len(roles) > 1 else ''} {' and '.join(roles)}"
        had_some = f", of which you lack {' and '.join(plain)}" if len(roles) > len(plain) else ""
        found.append(MissingRole(plain[0], key.namespace, said + had_some))
    for need in missing:
        if need.field or need.when:
            what = f"{need.field} of {place}" if need.field else place
            when = f" when {need.when}" if need.when else ""
            there = f" in namespace {need.namespace!r}" if need.namespace not in ("", key.namespace) else ""
            said = f"{what} needs the role {need.role}{there}{when}"
            found.append(MissingRole(need.role, need.namespace or key.namespace, said))
    return found


def _all_of(lacking: Sequence[MissingRole]) -> Denied:
    """Everything that somebody has to be given before the same writes can be done, at once."""
    said = [each.said for each in lacking]
    more = f"; and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
    first = lacking[0]
    return Denied(
        "; ".join(said[:MOST_SAID]) + more,
        hint="ask whoever gave you your token",
        role=first.role,
        namespace=first.namespace,
    )


async def _check_keys(look: WriteFacts, brought: Mapping[Key, Document]) -> None:
    """Raises `Conflict` for a channel whose key another one has, of whatever namespace: a message signed for one would
    be taken by the other. Two Secrets with one value are found when they are used.
    """
    channels = {key: document for key, document in brought.items() if key.kind == CHANNEL}
    if not channels:
        return
    there = {key_of(each): each for each in (await look.list(Filter(CHANNEL))).items}
    used: dict[SecretRef, Key] = {}
    for key, document in {**{k: d for k, d in there.items() if k not in channels}, **channels}.items():
        ref = SecretRef.parse(value_at(document, "auth.secretRef"), key.namespace)
        if used.setdefault(ref, key) != key and key in channels:
            raise Conflict(
                f"{key}: another channel is signed with the same Secret",
                hint="give each channel a key of its own",
                field="spec.auth.secretRef",
            )


class RecordedStore:
    """The `ResourceStore` of one caller in one request: each write is in the audit log, or has not happened.

    Every way to declare something over HTTP writes through it, so it is also where `judge` decides who may.
    """

    def __init__(self, runtime: Runtime, caller: Caller, request: str) -> None:
        self._runtime = runtime
        self._store: ResourceStore = runtime.inside.resources
        self._audit = runtime.inside.audit
        self._caller = caller
        self._request = request

    @property
    def declarer(self) -> DeclaredBy:
        return DeclaredBy(self._caller.name, operator=self._caller.may("admin", EVERYWHERE))

    async def write(
        self,
        changes: Sequence[Put | Delete],
        *,
        in_transaction: WriteBody | None = None,
        by: DeclaredBy | None = None,
        dry: bool = False,
    ) -> list[Written]:
        """Writes as `ResourceStore` does.

        The declarer is the caller, except where the server hands on what `by` declared.
        """
        for _ in range(1, ATTEMPTS):
            try:
                return await self._write(changes, in_transaction, by, dry)
            except StaleFacts:
                continue
        return await self._write(changes, in_transaction, by, dry)

    async def _write(
        self, changes: Sequence[Put | Delete], in_transaction: WriteBody | None, by: DeclaredBy | None, dry: bool
    ) -> list[Written]:
        kept: list[AuditRecord] = []
        look = await WriteFacts.at(self._store)
        judged = await self.judge(changes, look)

        def recorded(written: Sequence[Written]) -> Tx[None]:
            yield from look.hold(written)
            if in_transaction is not None:
                yield from in_transaction(written)
            done = [pair for pair in zip(judged, written, strict=True) if pair[1].action != "unchanged"]
            if not done:
                return
            # Whoever runs this again begins anew: only the records of the run that was stored are told.
            kept[:] = yield from _appended([self._entry(*pair) for pair in done], told=self._audit.fed)

        declarer = by or self.declarer
        allowed = [self._with_rights(each) for each in changes]
        written = await self._store.write(allowed, in_transaction=recorded, by=declarer, dry=dry)
        if kept and not dry:
            self._audit.appended(kept)
        return written

    def _with_rights(self, change: Put | Delete) -> Put | Delete:
        """The change with what the caller may do besides: admins lower what was agreed to about MCP tools."""
        if isinstance(change, Delete) or change.document["kind"] != "Tool":
            return change
        return replace(change, lowers=self._caller.may("admin", key_of(change.document).namespace))

    async def judge(self, changes: Sequence[Put | Delete], look: WriteFacts | None = None) -> list[AllowedWrite]:
        """Judges each write by `resources/powers.py`, whatever the route was, and checks that the caller may do all of
        them.

        It goes by what `look` finds, and holds for as long as that is so.

        Raises `NotFound` and `Denied` as `Caller.require`, and `Denied` for what the operator has not granted.
        """
        look = look or await WriteFacts.at(self._store)
        lacking: list[MissingRole] = []
        judged = [await self._judged(change, look, lacking) for change in changes]
        if lacking:
            raise _all_of(lacking)
        brought = {key_of(each.after): each.after for each in judged if each.after is not None}
        await check_declared(look, brought.values())  # before anything is told of what others have

        async def secret_hosts(reference: str, namespace: str) -> Sequence[str] | None:
            ref = SecretRef.parse(reference, namespace)
            key = Key("Secret", ref.namespace, ref.name)
            secret = brought.get(key) or await look.find(key)
            return undeclared_hosts(ref) if secret is None else spec_of(secret).get("hosts", ())

        await _check_keys(look, brought)
        for each in judged:
            # What stays as it is stays declared by whoever declared it.
            if each.after is not None and not each.same and not self._caller.may("admin", EVERYWHERE):
                by = {"declaredBy": {"user": self._caller.name, "operator": False}}
                document = {**each.after, "metadata": {**each.after["metadata"], **by}}
                await self._runtime.inside.grants.check(document, secret_hosts)
        return judged

    async def _judged(self, change: Put | Delete, look: WriteFacts, lacking: list[MissingRole]) -> AllowedWrite:
        """Judges one write. Roles that the caller lacks are added to `lacking`."""
        if isinstance(change, Put) and change.only == "status":
            return AllowedWrite(change)
        key = change.key if isinstance(change, Delete) else key_of(change.document)
        before = await look.find(key)
        after = change.document if isinstance(change, Put) else None
        if before is None and after is None:
            return AllowedWrite(change)  # the store says that there is nothing
        operator = self._caller.may("admin", EVERYWHERE)
        needed = [*needs(before, after, by=None if operator else self._caller.name)]
        if not operator:
            around = await self._around(key, before, after, look)
            needed += needs_around(before, after, around, by=self._caller.name)
        missing = [
            need for need in needed if not self._caller.may(role_named(need.role), need.namespace or key.namespace)
        ]
        if missing and not self._caller.sees(key.namespace):
            raise NotFound(HIDDEN)
        lacking += _lacking(key, needed, [self._told(need, key) for need in missing])
        if not missing and after is not None and (before is None or spec_of(before) != spec_of(after)):
            check_asked(key.kind, None if before is None else spec_of(before), spec_of(after), str(key))
        lifted = {
            need.field: [value_at(before, path), value_at(after, path)]
            for need in needed
            if (path := need.field.removeprefix("spec.")) not in ("", "data")
        }
        if before is not None and key.kind in RULE_KINDS:
            lifted = {"spec": [spec_of(before), None if after is None else spec_of(after)]}
        return AllowedWrite(change, before, after, lifted)

    async def _around(
        self, key: Key, before: Document | None, after: Document | None, look: WriteFacts
    ) -> list[Document]:
        """The resources that say something about a write; channels with those who have linked their accounts there.

        A link is no fact that the write is held to: one that is made meanwhile is bound to who set the value by then.
        """
        looked = LOOKED_AT.get(key.kind)
        if looked is None or (not looked.granted and self._caller.may("admin", key.namespace)):
            return []
        found: list[Document] = []
        if looked.granted:
            if after is None or (key.kind == SECRET and not secret_values(after)):
                return []
            found = await self._granted(key, after, looked.kinds, look)
        if key.kind != GRANT:
            found += [each for kind in looked.kinds for each in (await look.list(Filter(kind, key.namespace))).items]
        return [
            await self._with_linked(each)
            if each["kind"] == CHANNEL and signed_with(each, key.namespace, key.name)
            else each
            for each in found
        ]

    async def _granted(self, key: Key, after: Document, kinds: Sequence[str], look: WriteFacts) -> list[Document]:
        """The resources of other namespaces that may name a Secret now, or that a grant lets name one anew.

        Only namespaces are looked at that a grant names: what has lost its grant is signed with nothing.
        """
        standing = (await look.list(Filter(GRANT, key.namespace))).items
        now = ReferenceGrants(standing)
        then = ReferenceGrants([after]) if key.kind == GRANT else now
        found: list[Document] = []
        for kind in kinds:
            spaces = then.origins(key.namespace, SECRET, kind)
            for space in [None] if EVERY_NAMESPACE in spaces else sorted(spaces):
                for each in (await look.list(Filter(kind, space))).items:
                    origin = Origin(kind, key_of(each).namespace)
                    named = [ref for ref in secrets_of(each) if ref.namespace == key.namespace != origin.namespace]
                    if any(then.allow(origin, ref) and (then is now or not now.allow(origin, ref)) for ref in named):
                        found.append(each)
        return found

    async def _with_linked(self, channel: Document) -> Document:
        links = ChannelLinks(self._runtime.inside.database)
        return with_linked(channel, await links.vouched_by_others(read_channel(channel).place, self._caller.name))

    def _told(self, need: Need, key: Key) -> Need:
        """A need as the caller may be told of it: not what others declare where they see nothing."""
        if need.namespace in ("", key.namespace) or self._caller.sees(need.namespace):
            return need
        return Need(need.role, need.field, "what another namespace declares is signed with it: there")

    def _entry(self, judged: AllowedWrite, written: Written) -> dict[str, Any]:
        change = judged.change
        verb = "status_written" if isinstance(change, Put) and change.only == "status" else written.action
        metadata = written.document["metadata"]
        return entry_of(
            self._caller,
            verb,
            written.document["kind"],
            metadata["namespace"],
            metadata["name"],
            request=self._request,
            version=str(metadata.get("resourceVersion", "")),
            **({"lifted": judged.lifted} if judged.lifted else {}),
        )

    # --- what changes nothing, or is not a caller's ------------------------------------------------------------------

    async def get(self, key: Key) -> Document:
        return await self._store.get(key)

    async def owned(self, keys: Sequence[Key]) -> dict[Key, Owned]:
        return await self._store.owned(keys)

    async def list(self, filter: Filter, *, limit: int = 500, cursor: str | None = None) -> Page:
        return await self._store.list(filter, limit=limit, cursor=cursor)

    def watch(self, filter: Filter, *, after: int) -> AsyncIterator[Change]:
        return self._store.watch(filter, after=after)

    async def revision(self) -> int:
        return await self._store.revision()

    async def changed(self, after: int, kinds: Sequence[str]) -> ChangedSince | None:
        return await self._store.changed(after, kinds)

    def revision_at_hand(self) -> int | None:
        return self._store.revision_at_hand()

    async def reveal(self, key: Key) -> Revealed:
        return await self._store.reveal(key)

    async def agreed(self, namespace: str, server: str = "", tool: str = "") -> list[Agreed]:
        return await self._store.agreed(namespace, server, tool)

    async def rotate_key(self, *, forget: bool = False) -> Rotation:
        return await self._store.rotate_key(forget=forget)

    async def compact(self, *, keep: int) -> int:
        return await self._store.compact(keep=keep)
