"""Writing one resource on somebody's behalf: preconditions, references, the store, and the audit log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from foliot.catalog.checks import check_against_store
from foliot.catalog.declared import exact, key_of, version_of
from foliot.common.suggestions import did_you_mean
from foliot.engine.definition.missing import add_conditions
from foliot.errors import Conflict, NotFound, UsageError
from foliot.resources.base import Model, accepted_keys, emitted_key
from foliot.resources.defaults import Sent, patched
from foliot.resources.field_owners import PATCH, PUT, Claim, Owners, check_manager, leaves, named_by
from foliot.resources.kinds import KINDS
from foliot.resources.problems import Finding, ManifestError, Path, Problem
from foliot.resources.validate import model_at, suggest, validated
from foliot.runtime.outcomes import InUse, kept_declarer
from foliot.server.audit import ActRecord, RecordedStore
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.errors import PreconditionFailed, PreconditionRequired
from foliot.server.http.bodies import FILE, as_object
from foliot.store.base import Document, Key, Put, StaleMerge

if TYPE_CHECKING:
    from foliot.resources.base import Resource
    from foliot.resources.reader import Loaded

# How often a patch without a version is merged again because others change the same spec.
ATTEMPTS: Final = 20
Merge: TypeAlias = Callable[[Document, Owners], Document]
Action = Literal["created", "updated", "unchanged", "deleted"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The preconditions of a write: the headers If-Match and If-None-Match, without quotes; `dry` writes nothing."""

    match: str | None = None
    none_match: str | None = None
    dry: bool = False

    def version(self, document: Document) -> str | None:
        """The version that is asked for, `present` for any, None when none is. Raises `Conflict`."""
        inside = version_of(document)
        inside = "" if inside == "0" else inside
        if self.match in (None, "*"):
            return exact(inside) if inside else "present" if self.match else None
        if inside and inside != self.match:
            raise Conflict(f"If-Match says {self.match} and metadata.resourceVersion {inside}", hint="give one of them")
        return exact(self.match)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write, or with `dry` of a write that was only tried."""

    action: Action
    document: Document
    warnings: tuple[str, ...] = ()


class Declaring:
    """Writes of one caller in one request."""

    def __init__(
        self,
        services: Services,
        caller: Caller,
        request_id: str,
        manager: str | None = None,
        *,
        takes_over: bool = False,
        takes_missing: bool = False,
    ) -> None:
        """`manager` is who owns what is written (see resources/field_owners.py), by default one for each verb.

        `takes_over` is as in `Put`; `takes_missing` takes what names something that is not there, with a warning.
        """
        self._takes_missing = takes_missing
        self._takes_over = takes_over
        self._manager = check_manager(manager) if manager else None
        self._services = services
        self._caller = caller
        self._request_id = request_id
        self._store = RecordedStore(services.runtime, caller, request_id)

    async def put(self, loaded: Loaded, conditions: Conditions) -> WriteResult:
        """Create it, or replace what was declared under its name. Raises `ManifestError`, `Conflict`."""
        document = loaded.document
        asked = conditions.version(document)
        if conditions.none_match == "*" and asked is None:
            asked = "absent"
        sent = Sent(document, loaded.resource.given())
        if asked not in (None, "absent"):
            sent = await self._as_read(sent)
        claim = sent.claim(self._manager or PUT)
        try:
            return await self._write(sent.document, asked or "any", conditions.dry, claim, loaded.written)
        except NotFound as missing:
            raise Conflict(missing.message, hint="leave out the version to create it") from None

    async def replace(self, loaded: Loaded, conditions: Conditions) -> WriteResult:
        """Replace what was declared, at a version that must be named. Raises `PreconditionRequired`, `NotFound`."""
        document = loaded.document
        asked = conditions.version(document)
        if asked is None:
            raise PreconditionRequired(
                "resourceVersion precondition required for update (set metadata.resourceVersion or If-Match)"
            )
        await self._check_declared(key_of(document))  # one that is missing is missing, whatever version was asked for
        sent = await self._as_read(Sent(document, loaded.resource.given()))
        return await self._write(sent.document, asked, conditions.dry, sent.claim(self._manager or PUT), loaded.written)

    async def patch(self, key: Key, changes: Mapping[str, Any], conditions: Conditions) -> WriteResult:
        """Change what a JSON merge patch (RFC 7396) names.

        With a version (in `changes` or the conditions) raises `Conflict` when it is not the current one. Without, the
        patch is merged onto whatever is there in the transaction that stores it.
        """
        await self._check_declared(key)
        version, changes = _taken_apart(_respelled(key.kind, changes))
        asked = conditions.version({"metadata": {"resourceVersion": version}}) or "present"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if attempt == 1:
                    return await self._patch(key, changes, asked, conditions.dry)
                # Those who lost to each other take turns: then only other processes are faster.
                async with self._services.turns(key):
                    return await self._patch(key, changes, asked, conditions.dry)
            except StaleMerge:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(random.uniform(0, 0.005 * attempt))
        raise AssertionError("the loop returns or raises")

    async def _patch(self, key: Key, changes: Mapping[str, Any], asked: str, dry: bool) -> WriteResult:
        """Raises `StaleMerge` when the resource has another spec by the time it is written."""
        owned = (await self._store.owned([key])).get(key)
        if owned is None:
            raise NotFound(f"there is no {key}")
        resource = _patched(key, changes, owned.document, owned.owners)
        given = leaves(resource.given())
        named = named_by(changes, leaves(owned.document), given)
        said = None if key.kind == "Secret" else frozenset(given)
        claim = Claim(self._manager or PATCH, named, "patch", said)

        def merged(newest: Document, owners: Owners) -> Document:
            return _patched(key, changes, newest, owners).model_dump(by_alias=True)

        return await self._write(resource.model_dump(by_alias=True), asked, dry, claim, merge=merged)

    async def _check_declared(self, key: Key) -> None:
        """Raises `Conflict` for work that no resource declares: there is nothing of it that could be changed."""
        try:
            await self._store.get(key)
        except NotFound:
            if key.kind != "Task":
                raise
            with suppress(NotFound):
                await self._services.runtime.inside.tasking.tasks.get(key.namespace, key.name)
                raise Conflict(
                    f"what the task {key.name!r} was asked for is pinned, and no resource declares it",
                    hint="nothing of it can be changed; cancel it, and post another one",
                ) from None
            raise

    async def put_status(self, key: Key, status: Mapping[str, Any], conditions: Conditions) -> WriteResult:
        """Replace the status at a version that must be named; what was declared stays."""
        before = await self._store.get(key)
        if conditions.match is None:
            raise PreconditionRequired("resourceVersion precondition required for update (set If-Match)")
        given = dict(status)
        if not given.get("observedGeneration"):
            given["observedGeneration"] = before["metadata"].get("generation", 1)
        document = _checked({**before, "status": given}).model_dump(by_alias=True)
        expect = "present" if conditions.match == "*" else exact(conditions.match)
        (written,) = await self._store.write([Put(document, expect=expect, only="status")], dry=conditions.dry)
        return WriteResult(written.action, await self._told(written.document))

    async def delete(self, key: Key, conditions: Conditions, *, force: bool = False) -> Document:
        """Raises `NotFound`, `PreconditionFailed`; `InUse`, unless `force`."""
        version = conditions.match if conditions.match != "*" else None
        runtime, where = self._services.runtime, (key.kind, key.namespace, key.name)
        act = ActRecord(runtime, self._caller, "deleted", *where, request=self._request_id)
        try:
            client = self._services.client.on(self._store)
            document = await client.delete_with(
                key.kind,
                key.name,
                namespace=key.namespace,
                version=version,
                force=force,
                dry_run=conditions.dry,
                in_transaction=act.record_task,
            )
        except InUse:
            raise
        except NotFound:
            raise NotFound(f"there is no {key}") from None  # its hint may tell of other namespaces
        except Conflict as conflict:
            raise PreconditionFailed(conflict.message, hint=conflict.hint) from None
        act.tell()
        return document

    async def _as_read(self, sent: Sent) -> Sent:
        """Returns what was sent by somebody who has read it: defaults that they send back are worked out anew."""
        key = key_of(sent.document)
        owned = (await self._store.owned([key])).get(key)
        return sent if owned is None else sent.after_reading(owned.document, owned.owners)

    async def _write(
        self,
        document: Document,
        expect: str,
        dry: bool,
        claim: Claim,
        written_as: Document | None = None,
        merge: Merge | None = None,
    ) -> WriteResult:
        await self._services.client.check_unopposed(document)
        key = key_of(document)
        before = (await self._store.owned([key])).get(key) if expect != "absent" else None
        warnings = tuple(
            await check_against_store(
                self._store,
                [document],
                # Clients of the older version declare one by one, in any order: the status says what is missing.
                allow_missing=self._takes_missing or bool(written_as),
                before=None if before is None else {key: before.document},
                brings=self._services.client.brings,
                operator=self._store.declarer.operator,
            )
        )
        declared = {name: value for name, value in document.items() if name != "status"}
        put = Put(declared, expect=expect, merge=merge, claim=claim, takes_over=self._takes_over, written=written_as)
        (written,) = await self._store.write([put], dry=dry)
        if written.action != "unchanged" and not dry:
            await self._services.client.written(written.document)
        stored = await self._told(written.document) if warnings else written.document
        if written.kept:
            warnings = (kept_declarer(written.document), *warnings)
        return WriteResult(written.action, stored, warnings)

    async def _told(self, document: Document) -> Document:
        """The resource as whoever reads it now is shown it: with what is missing in its status."""
        (told,) = await add_conditions(self._store, [document], self._services.client.brings)
        return told


def merge(before: Any, changes: Any) -> Any:
    """`before` with a JSON merge patch applied: null takes away, objects are merged, the rest is replaced."""
    if not isinstance(changes, Mapping):
        return changes
    merged = dict(cast("Mapping[str, Any]", before)) if isinstance(before, Mapping) else {}
    for name, value in cast("Mapping[str, Any]", changes).items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def _patched(key: Key, changes: Mapping[str, Any], before: Document, owners: Owners) -> Resource[Any, Any]:
    """`before` with the patch, checked, and with the defaults that follow from it.

    Raises `ManifestError`, and `UsageError` when it became another resource.
    """
    resource = _checked(patched(before, owners, lambda declared: cast("Document", merge(declared, changes))))
    if Key(resource.kind, resource.metadata.namespace, resource.metadata.name) != key:
        raise UsageError("a patch cannot change kind, name or namespace")
    return resource


def _taken_apart(patch: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The version that a patch names, or an empty text, and what it changes: the version is a condition."""
    metadata = as_object(patch.get("metadata"))
    if "resourceVersion" not in metadata:
        return "", patch
    named = metadata["resourceVersion"]
    rest = {name: value for name, value in metadata.items() if name != "resourceVersion"}
    return "" if named is None else str(named), {**patch, "metadata": rest}


def _respelled(kind: str, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The patch in the spelling of what is stored. Raises `ManifestError`."""

    patch, problems = respelled(KINDS[kind].model(), changes)
    if problems:
        raise ManifestError([Finding(each, FILE) for each in problems])
    return patch


def _checked(raw: Document) -> Resource[Any, Any]:
    resource, problems = validated(raw)
    if resource is None:
        raise ManifestError([Finding(each, FILE) for each in problems])
    return resource


# --- patches ---------------------------------------------------------------------------------------------------------

# Merge patches (RFC 7396) in the spelling of what they are merged onto.
#
# A stored resource has one spelling of each field; a patch may use any that a manifest may. Without this, `modelRef`
# beside the stored `model_ref` would be a field given twice, and `modelRef: null` would take nothing away.


def respelled(model: type[Model], patch: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The patch with every field in the spelling that is stored, and what is wrong with it.

    Two spellings of one field are a problem, and so is taking away what the kind does not have: merging would drop
    both without a word. Unknown fields with a value are left to the check of the whole.
    """
    problems: list[Problem] = []
    return _patch_respelled(model, patch, (), problems), problems


def _patch_respelled(
    root: type[Model], patch: Mapping[str, Any], path: Path, problems: list[Problem]
) -> dict[str, Any]:
    owner = model_at(root, path)
    if owner is None:
        return {key: _inner(root, value, (*path, key), problems) for key, value in patch.items()}
    emitted = {key: emitted_key(owner, name) for name in owner.model_fields for key in accepted_keys(owner, name)}
    made: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, value in patch.items():
        name = emitted.get(key, key)
        if name in given:
            message = f"given twice: as {given[name]} and as {key}"
            problems.append(Problem((*path, key), message, "keep one of the two", at="key"))
            continue
        if value is None and key not in emitted and owner.model_config.get("extra") != "allow":
            hint = suggest(root, (*path, key))
            said = did_you_mean(hint) if hint else None
            problems.append(Problem((*path, key), f'unknown field "{key[:80]}"', said, at="key"))
            continue
        given[name] = key
        made[name] = _inner(root, value, (*path, name), problems)
    return made


def _inner(root: type[Model], value: Any, path: Path, problems: list[Problem]) -> Any:
    """A list replaces what is there, so it is checked as a part of the whole and not looked into here."""
    if not isinstance(value, Mapping):
        return value
    return _patch_respelled(root, cast("Mapping[str, Any]", value), path, problems)
