"""Making manifests true: plan, check, and write in one transaction; again from the start when somebody was faster."""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from foliot.catalog.checks import check_against_store, handle_of
from foliot.catalog.declared import MASK, key_of, managed, same, stamped, version_of
from foliot.common.pages import read_all
from foliot.common.text import counted
from foliot.engine.definition.missing import Brings
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound, SecretError, UsageError
from foliot.resources.field_owners import (
    APPLY,
    MOST_SHOWN,
    SYSTEM,
    Claim,
    Disputed,
    Field,
    FieldConflict,
    Owners,
    check_manager,
    conflict_of,
    emptied,
    leaves,
    merge,
    settle,
    shown,
)
from foliot.resources.powers import acts_for_declarer
from foliot.resources.problems import Finding, ManifestError, Problem, render_path
from foliot.resources.validate import validated
from foliot.resources.wording import WRITTEN_AS, written_as
from foliot.store.base import DeclaredBy, Delete, Document, Filter, Key, Owned, Put, Requirement, ResourceStore
from foliot.store.resources.documents import same as same_json
from foliot.store.resources.documents import same_spec
from foliot.store.resources.selectors import matches

# --- plan ------------------------------------------------------------------------------------------------------------

# Plans: the changes that a set of documents would make, found out before anything is written.
#
# Read by: catalog/apply.py, which carries a plan out. Each change of a plan names the version it was planned against,
# so a plan that has become untrue meanwhile is refused by the store instead of overwriting somebody's work.


@dataclass(frozen=True, slots=True)
class Step:
    """The change of one resource. `before` and `document` are fit to be shown: secret values are masked.

    A secret value that would differ is shown as `*** (changed)`. `change` is None when there is nothing to do. `owners`
    are those of its fields afterwards, `owned` those before.
    """

    action: Literal["created", "updated", "unchanged", "deleted"]
    document: Document
    before: Document | None
    change: Put | Delete | None
    owners: Owners = field(default_factory=dict[str, frozenset[Field]])
    owned: Owners = field(default_factory=dict[str, frozenset[Field]])


@dataclass(frozen=True, slots=True)
class Plan:
    """One step for each document in the order given, then those of prune.

    `documents` are what the given ones become over what is stored. `refused` is why the plan cannot be carried out,
    `warnings` are about what prune keeps: they tell of what is stored, so they are for those alone who may see that.
    """

    steps: list[Step]
    documents: list[Document]
    refused: FoliotError | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Applier:
    """The applier of manifests, under the name of a manager and on behalf of `declarer`, where that is known.

    `force`: takes over the fields that other managers own with other values, and prunes what they share.
    """

    manager: str = APPLY
    force: bool = False
    declarer: DeclaredBy | None = None


async def make_plan(
    store: ResourceStore,
    documents: Sequence[Document],
    *,
    applier: Applier | None = None,
    prune: tuple[Requirement, ...] | None = None,
    prune_namespace: str = "default",
) -> Plan:
    """Find out what `documents`, as their authors gave them, would change.

    Raises `ManifestError` for those that are wrong by themselves, `InvalidInput` when two declare the same resource.
    """
    applier = applier or Applier()
    wanted = [_read(document) for document in documents]
    keys = _distinct([each.document for each in wanted])
    live = await store.owned(keys)
    planned = [await _planned(store, each, live.get(key), applier) for key, each in zip(keys, wanted, strict=True)]
    steps = [each.step for each in planned]
    warnings: list[str] = []
    if prune is not None:
        pruned = Filter(namespace=prune_namespace, labels=prune)
        for step in await _prune(store, set(keys), pruned, applier.manager):
            others = sorted(step.owned.keys() - {applier.manager, SYSTEM})
            if others and not applier.force:
                warnings.append(_kept(step.document, applier.manager, others))
            else:
                steps.append(step)
    disputed = {str(key): each.disputed for key, each in zip(keys, planned, strict=True) if each.disputed}
    refused = next((each.refused for each in planned if each.refused is not None), None)
    if refused is None and disputed and not applier.force:
        refused = conflict_of(disputed)
    return Plan(steps, [each.document for each in planned], refused, tuple(warnings))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A manifest in normal form, the fields that it sets itself, the lists that it has empty, and how it is written."""

    document: Document
    given: frozenset[Field]
    empty: frozenset[Field]
    written: Document


@dataclass(frozen=True, slots=True)
class _Planned:
    step: Step
    document: Document
    disputed: tuple[Disputed, ...] = ()
    refused: FoliotError | None = None


def _read(document: Document) -> _Wanted:
    resource, problems = validated(document)
    if resource is None:
        raise _invalid(document, problems)
    given = resource.given()
    fields = frozenset(leaves(given))
    return _Wanted(resource.model_dump(by_alias=True), fields, emptied(given) - fields, written_as(document))


def _invalid(document: Document, problems: Sequence[Problem], hint: str | None = None) -> ManifestError:
    key = key_of(document)
    findings = [Finding(problem, handle_of(document), kind=key.kind, name=key.name) for problem in problems]
    return ManifestError(findings, hint=hint)


def _distinct(documents: Sequence[Document]) -> list[Key]:
    keys = [key_of(document) for document in documents]
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise InvalidInput(f"{key} is declared twice.", hint="Keep one of the two manifests.")
        seen.add(key)
    return keys


async def find(store: ResourceStore, key: Key) -> Document | None:
    try:
        return await store.get(key)
    except NotFound:
        return None


async def list_all(store: ResourceStore, filter: Filter) -> list[Document]:
    """Every page of a list."""
    return await read_all(store.list, filter, limit=1000)


async def _planned(store: ResourceStore, wanted: _Wanted, owned: Owned | None, applier: Applier) -> _Planned:
    before = owned.document if owned is not None else None
    owners: Owners = owned.owners if owned is not None else {}
    refused = _stale(wanted.document, before)
    given, secret_changed = await _shown(store, stamped(wanted.document), before, applier)
    if before is not None and (planted := _planted(before, wanted, owners, applier)):
        if applier.force:
            owners = {name: fields - planted.keys() for name, fields in owners.items()}
        else:
            refused = refused or _not_said(before, planted)
    merged = merge(before, given, wanted.given, owners, applier.manager, wanted.empty)
    shown = merged.document
    if owners.keys() - {applier.manager}:
        try:
            shown = _completed(merged.document, wanted.document)
        except ManifestError as error:
            refused = refused or error
    else:
        shown = {**given, "metadata": shown["metadata"]}  # all that is not in the manifest is a default, as it has them
    document = _unmasked(shown, wanted.document)
    claim = Claim(applier.manager, wanted.given, "apply")
    if before is None:
        after = settle({}, {}, leaves(shown), claim)
        step = Step("created", shown, None, Put(document, "absent", claim=claim, written=wanted.written), after)
        return _Planned(step, document, refused=refused)
    after = settle(owners, leaves(before), leaves(shown), claim)
    words = wanted.written
    if not same_spec(shown.get("spec") or {}, given.get("spec") or {}):
        # Others own a part of it, which is shown too: its author's words are not all of it.
        words = {name: value for name, value in words.items() if name != "spec"}
    same_fields = same(before, shown) and not secret_changed
    same_fields = same_fields and same_json(before["metadata"].get(WRITTEN_AS) or {}, words)
    if same_fields and not _raises(before, applier) and after == owners:
        step = Step("unchanged", before, before, None, after, owners)
    else:
        step = Step(
            "updated", shown, before, Put(document, version_of(before), claim=claim, written=words), after, owners
        )
    return _Planned(step, document, merged.disputed, refused)


def _planted(before: Document, wanted: _Wanted, owners: Owners, applier: Applier) -> dict[Field, str]:
    """Fields of the spec that somebody else declared and that the manifest does not say, with their managers.

    They would stay, and from then on go by the rights of the applier: the host that another chose for the secret that
    the applier declares. A manager is a name that anybody may give, so it is the declarer who counts. What the operator
    declared is nobody's escalation.
    """
    declarer = DeclaredBy.of(before)
    if not acts_for_declarer(before["kind"]) or declarer.operator or declarer == applier.declarer:
        return {}
    return {
        field: name
        for name, fields in owners.items()
        if name != applier.manager
        for field in fields
        if field[0] == "spec" and field not in wanted.given
    }


def _raises(before: Document, applier: Applier) -> bool:
    """Whether the operator agrees to what somebody else declared, by saying the same."""
    declarer = applier.declarer
    return (
        declarer is not None
        and declarer.operator
        and not DeclaredBy.of(before).operator
        and acts_for_declarer(before["kind"])
    )


def _not_said(before: Document, planted: Mapping[Field, str]) -> FieldConflict:
    key, values, found = key_of(before), leaves(before), sorted(planted.items())[:MOST_SHOWN]
    named = ", ".join(f"{render_path(field)} by {name}" for field, name in found)
    return FieldConflict(
        f"{key}: somebody else declared fields that the manifest does not say ({named}), and with it they would count "
        "as declared by you",
        hint="say them in the manifest to agree to them, or drop them with `foliot apply --force-conflicts` "
        "(in HTTP ?forceConflicts=true)",
        conflicts=[
            {
                "resource": str(key),
                "field": render_path(field),
                "managers": [name],
                "live": shown(values.get(field)),
                "wanted": "",
            }
            for field, name in found
        ],
    )


def _stale(document: Document, before: Document | None) -> Conflict | None:
    asked = version_of(document)
    if document["kind"] == "Task" and document.get("spec", {}).get("mode", "run") == "run":
        asked = ""  # the document of a task shows the version of its work; what it asks for cannot be changed anyway
    if not asked or asked == (version_of(before) if before else ""):
        return None
    return Conflict(
        f"{key_of(document)} is not at version {asked} any more.",
        hint="Take metadata.resourceVersion out of the manifest to apply it over whatever is there.",
    )


def _completed(merged: Document, wanted: Document) -> Document:
    """A merged document with its defaults. Raises `ManifestError` when its parts do not go together."""
    resource, problems = validated(_unmasked(merged, wanted))
    if resource is None:
        raise _invalid(wanted, problems, hint="together with the fields that other managers own, it is not valid")
    completed = resource.model_dump(by_alias=True)
    completed.pop("status", None)
    if merged["kind"] == "Secret":
        completed["spec"] = {**completed.get("spec", {}), "data": _data_of(merged)}
    return {"spec": {}, **completed, "metadata": merged["metadata"]}


def _unmasked(shown: Document, wanted: Document) -> Document:
    """Returns the document with the values that a manifest has for a Secret; `***` keeps those that others own."""
    if shown["kind"] != "Secret":
        return shown
    values = _data_of(wanted)
    return {**shown, "spec": {**shown["spec"], "data": {key: values.get(key, MASK) for key in _data_of(shown)}}}


async def _shown(
    store: ResourceStore, wanted: Document, before: Document | None, applier: Applier
) -> tuple[Document, bool]:
    """The document as it may be shown, and whether a secret value in it differs from the stored one.

    To somebody who does not know the stored values each of theirs is another: a dry run confirms no guesses.
    """
    if wanted["kind"] != "Secret":
        return wanted, False
    told = before is None or applier.declarer is None or applier.declarer.knows(before)
    stored: Mapping[str, bytes] = await _stored_values(store, before) if told else {}
    keys_before = _data_of(before) if before else {}
    masked: dict[str, str] = {}
    for key, value in _data_of(wanted).items():
        known = key in keys_before
        masked[key] = f"{MASK} (changed)" if known and value != MASK and stored.get(key) != _decoded(value) else MASK
    return {**wanted, "spec": {**wanted.get("spec", {}), "data": masked}}, any(
        value != MASK for value in masked.values()
    )


def _data_of(secret: Document) -> dict[str, str]:
    spec: dict[str, Any] = secret.get("spec") or {}
    return spec.get("data") or {}


async def _stored_values(store: ResourceStore, before: Document | None) -> Mapping[str, bytes]:
    if before is None:
        return {}
    try:
        return await store.reveal(key_of(before))
    except SecretError:
        return {}  # the old value cannot be opened: whatever comes is a change, and must be possible to apply


def _decoded(value: str) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


async def _prune(store: ResourceStore, kept: set[Key], filter: Filter, manager: str) -> list[Step]:
    """List what apply made under this manager, without what is kept."""
    if not filter.labels:
        raise InvalidInput("Prune needs a label selector.", hint="Say which resources are yours, e.g. `-l app=report`.")
    found = [document for document in await list_all(store, filter) if managed(document)]
    keys = [key for document in found if (key := key_of(document)) not in kept]
    owned = await store.owned(keys)
    return [
        Step("deleted", each.document, each.document, Delete(key, version_of(each.document)), owned=each.owners)
        for key in keys
        if (each := owned.get(key)) is not None and manager in each.owners
    ]


def _kept(document: Document, manager: str, others: Sequence[str]) -> str:
    return (
        f"{key_of(document)} is not pruned: besides {manager}, fields of it belong to {' and '.join(others)} "
        "(--force-conflicts, in HTTP ?forceConflicts=true, prunes it all the same)"
    )


# --- apply -----------------------------------------------------------------------------------------------------------

ATTEMPTS: Final = 20
"""How often a plan is made anew after a conflict. So many losses in a row are a quarrel: tell the user."""


@dataclass(frozen=True, slots=True)
class Result:
    """The steps that were carried out (or would be), and warnings, in sentences."""

    steps: list[Step]
    warnings: list[str]


async def apply_documents(
    store: ResourceStore,
    documents: Sequence[Document],
    *,
    dry_run: bool = False,
    prune: tuple[Requirement, ...] | None = None,
    prune_namespace: str = "default",
    allow_empty: bool = False,
    allow_missing: bool = False,
    brings: Brings | None = None,
    applier: Applier | None = None,
    judge: Callable[[Sequence[Put | Delete]], Awaitable[object]] | None = None,
    check: Callable[[Sequence[Document], Sequence[Key]], Awaitable[None]] | None = None,
    by: DeclaredBy | None = None,
) -> Result:
    """Create, update and (with `prune`) delete so that the store says what `documents` say; all of it or nothing.

    What a document says is set, and what this manager applied before and no longer says goes; other managers keep what
    they own (see resources/field_owners.py).

    `by` is recorded as their declarer. `allow_missing` and `brings` are as in `check_against_store`. `judge` is asked
    whether all of it may be written, in a dry run too, before anything is told of what is stored. `check` is told of
    what the documents become and of everything that prune is about to delete, in a dry run too; what it raises stops
    all of it.

    Raises `ManifestError` for references that cannot be, or to what is not there, or not any more after the prune;
    `Conflict` for a version named in a document that has passed, or when other writers were faster every time;
    `FieldConflict` for fields that others own, unless it is forced; `UsageError` when prune would delete something
    although none of the documents has its labels, unless `allow_empty`.
    """
    applier = applier or Applier()
    check_manager(applier.manager)
    for attempt in range(1, ATTEMPTS + 1):
        plan = await make_plan(store, documents, applier=applier, prune=prune, prune_namespace=prune_namespace)
        steps = plan.steps
        if judge is not None:
            deletes = [step.change for step in steps if isinstance(step.change, Delete)]
            await judge([*map(Put, plan.documents), *deletes])
        if plan.refused is not None:
            raise plan.refused
        doomed = [step.change.key for step in steps if isinstance(step.change, Delete)]
        if doomed and not allow_empty:
            _refuse_empty(plan.documents, Filter(namespace=prune_namespace, labels=prune or ()), len(doomed))
        checked = await check_against_store(
            store,
            plan.documents,
            allow_missing=allow_missing,
            brings=brings,
            operator=None if applier.declarer is None else applier.declarer.operator,
            gone=doomed,
        )
        warnings = [*plan.warnings, *checked]
        if check is not None:
            await check(plan.documents, doomed)
        try:
            return Result(await _carry_out(store, steps, by, dry=dry_run), warnings)
        except Conflict:
            if attempt == ATTEMPTS:
                raise
            # Two that lost to each other must not try again at the same moment.
            await asyncio.sleep(random.uniform(0, 0.005 * attempt))
    raise AssertionError("the loop returns or raises")


def _refuse_empty(documents: Sequence[Document], pruned: Filter, count: int) -> None:
    """A wrong folder or a misspelt label must not read as the wish to delete everything. Raises `UsageError`."""
    if any(matches(document, pruned) for document in documents):
        return
    what = "none of the manifests matches the selector of prune" if documents else "there are no manifests"
    raise UsageError(
        f"{what}: {counted(count, 'resource')} would be deleted, and none kept",
        hint="check the files and the labels; --allow-empty (in HTTP ?allowEmpty=true) deletes them all the same",
    )


async def _carry_out(store: ResourceStore, steps: Sequence[Step], by: DeclaredBy | None, *, dry: bool) -> list[Step]:
    changes = [step.change for step in steps if step.change is not None]
    written = iter(await store.write(changes, by=by, dry=dry) if changes else [])
    done: list[Step] = []
    for step in steps:
        if step.change is None:
            done.append(step)
        else:
            result = next(written)
            document = _with_marks(result.document, step.document) if dry else result.document
            done.append(replace(step, action=result.action, document=document))
    return done


def _with_marks(document: Document, planned: Document) -> Document:
    """The document with the plan's marks at secret values that would change: a diff shows them."""
    if document["kind"] != "Secret":
        return document
    return {**document, "spec": {**document["spec"], "data": planned["spec"].get("data") or {}}}
