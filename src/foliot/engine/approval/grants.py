"""Grants for the gate in the pipeline: whether this call was approved, and whether a standing grant covers it.

A standing grant is a ToolApproval that answers before anybody asks, for a tool (and an agent, and a condition), until
it ends, is used up, or is revoked.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from foliot.common.durations import canonical
from foliot.common.pages import read_all
from foliot.common.times import iso
from foliot.engine.approval.documents import (
    KIND,
    covers,
    creation,
    key_of,
    name_of,
    phase_at,
    scope_digest,
    seconds_at,
    standing_grant,
    uses_left,
)
from foliot.engine.base import Clock
from foliot.engine.definition.missing import Brings, look_up, problems_of
from foliot.errors import Conflict, Denied, FoliotError, InvalidInput, NotFound
from foliot.kernel.identity import Person
from foliot.store.base import Document, Filter, Put, Requirement, ResourceStore, WriteBody
from foliot.tools.governance.cel import Expression
from foliot.tools.governance.rules import StandingGrant, tool_token

TRIES = 50
MOST_USES = 1000
LONGEST_SECONDS = 10 * 366 * 86_400.0
# Which ToolApprovals answer before anybody asks.
STANDING = (Requirement("spec.standing", "=", ("true",)),)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


# Who goes by a name, and by which others.
People: TypeAlias = Callable[[str], Awaitable[Person]]


async def by_name(name: str) -> Person:
    """Returns a person of whom no other name is known."""
    return Person(name)


class StoredGrants:
    """The answers of one namespace, as the pipeline asks for them."""

    def __init__(self, store: ResourceStore, namespace: str, *, clock: Clock, people: People | None = None) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._people = people or by_name

    async def check(self, approval_id: str, call_id: str, digest: str) -> bool:
        """Whether this approval was given to this call with these arguments. A missing one was not."""
        try:
            document = await self._store.get(key_of(self._namespace, approval_id))
        except NotFound:
            return False
        return covers(document, call_id=call_id, digest=digest)

    async def use(self, grant_id: str, use: str) -> bool:
        """Count one use of a standing grant. False when it has ended or is used up.

        A compare-and-set on the stored object: of processes that race for the last use, one gets it. Asked again for
        the same use, after a crash, it is not counted again. A use is not given back, even when its call never started.
        """
        for _ in range(TRIES):
            try:
                document = await self._store.get(key_of(self._namespace, grant_id))
            except NotFound:
                return False
            if not _stands(document, self._clock()):
                return False
            uses = document["status"].get("uses", [])
            left = uses_left(document)
            if left is None or use in uses:
                return True
            if left < 1:
                return False
            status = {**document["status"], "uses": [*uses, use]}
            version = document["metadata"]["resourceVersion"]
            try:
                await self._store.write([Put({**document, "status": status}, expect=version, only="status")])
            except Conflict:
                continue  # another call took a use at the same moment
            return True
        return False

    async def standing(self) -> tuple[StandingGrant, ...]:
        """The standing grants that are in force, as the rules hold them."""
        return await self.among(await read_all(self._store.list, Filter(KIND, self._namespace, fields=STANDING)))

    async def among(self, documents: Iterable[Document]) -> tuple[StandingGrant, ...]:
        """The standing grants among these documents that are in force, with who gave them."""
        grants = standing_among(documents, self._clock())
        return tuple([dataclasses.replace(grant, person=await self._people(grant.giver)) for grant in grants])


def standing_among(documents: Iterable[Document], now: float) -> tuple[StandingGrant, ...]:
    """The grants among ToolApprovals that are in force, as the rules hold them.

    One that is used up stays: the call that took the last use may come again after a crash.
    """
    return tuple(in_force(document for document in documents if _stands(document, now)))


def _stands(document: Document, now: float) -> bool:
    """Whether the grant has neither ended nor been changed since it was given, however often it was used."""
    return _given(document, now) and document["status"].get("granted_digest") == scope_digest(document["spec"])


def would_stand(document: Document, now: float) -> bool:
    """Whether it has not ended and yet is no grant, because it was changed since."""
    return _given(document, now) and not _stands(document, now)


def _given(document: Document, now: float) -> bool:
    spec, status = document["spec"], document.get("status", {})
    ends = seconds_at(status.get("expires_at"))
    return bool(spec.get("standing") and status.get("phase") == "Approved" and (ends is None or now < ends))


def in_force(documents: Iterable[Document]) -> Iterable[StandingGrant]:
    """Standing grants as the rules hold them. One whose condition cannot be read covers nothing."""
    for document in documents:
        spec = document["spec"]
        try:
            when = Expression(spec["when"]) if spec.get("when") else None
        except FoliotError:
            continue
        yield StandingGrant(
            id=name_of(document),
            tool=tool_token(spec["tool"]),
            giver=document["status"].get("decided_by", ""),
            agents=frozenset({spec["agent"].lower()}) if spec.get("agent") else None,
            when=when,
            expires_at=seconds_at(document["status"].get("expires_at")),
            spent=uses_left(document) == 0,
        )


def new_grant_name() -> str:
    return f"sg-{secrets.token_hex(6)}"


async def give_standing(
    store: ResourceStore,
    *,
    tool: str,
    by: str,
    now: float,
    seconds: float,
    namespace: str = "default",
    agent: str = "",
    when: str = "",
    max_uses: int | None = None,
    comment: str = "",
    name: str = "",
    brings: Brings | None = None,
    in_transaction: WriteBody | None = None,
) -> Document:
    """Let calls of a tool pass without a question for `seconds`. Raises `InvalidInput`."""
    if not by.strip():
        raise InvalidInput("a standing grant needs the name of who gives it", hint="by is a name, such as ann")
    if not tool_token(tool) or not _NAME.fullmatch(tool.strip()):
        raise InvalidInput("a standing grant names a tool", hint="by its name, such as files.write")
    if seconds <= 0:
        raise InvalidInput("seconds must be more than 0: a standing grant that has ended covers nothing")
    if max_uses is not None and max_uses < 1:
        raise InvalidInput("max_uses must be at least 1", hint="leave it out for as many calls as there are")
    if max_uses is not None and max_uses > MOST_USES:
        raise InvalidInput(f"a standing grant counts at most {MOST_USES:,} uses", hint="leave --max-uses out")
    if not seconds <= LONGEST_SECONDS:
        raise InvalidInput("a standing grant lasts at most ten years", hint="nobody would remember it")
    if when:
        Expression(when)
    spec = {"tool": tool, "agent": agent, "when": when, "max_uses": max_uses, "reason": comment}
    status = {
        "phase": "Approved",
        "decision": "approved",
        "decided_by": by,
        "decided_at": iso(now),
        "expires_at": iso(now + seconds),
    }
    document = standing_grant(name or new_grant_name(), namespace, spec, status)
    document["spec"]["ttl"] = canonical(f"{max(1, round(seconds))}s")
    document["status"]["granted_digest"] = scope_digest(document["spec"])
    await _check_giver(store, namespace, tool, by)
    await _check_names(store, document, brings)
    written = await store.write(creation(document), in_transaction=in_transaction)
    return written[-1].document


async def _check_giver(store: ResourceStore, namespace: str, tool: str, by: str) -> None:
    """Raises `Denied` when a rule for the tool names approvers, and `by` is none: the grant would answer nothing.

    The rules of the moment of the call are what counts; this tells the giver now.
    """
    for permission in await read_all(store.list, Filter("ToolPermission", namespace)):
        spec, name = permission["spec"], name_of(permission)
        named: list[str] = spec.get("approvers") or []
        if tool_token(spec.get("tool_ref") or name) == tool_token(tool) and named and by not in named:
            raise Denied(
                f"{by} may not approve calls of {tool}: ToolPermission/{name} names its approvers",
                hint=f"these may: {', '.join(named)}",
            )


async def _check_names(store: ResourceStore, document: Document, brings: Brings | None) -> None:
    """Raises `InvalidInput` when a grant names what was probably misspelt, or what no call of its tool can have.

    What resembles nothing is taken: a program elsewhere may bring it.
    """
    parts = await look_up(store, [document], brings)
    for problem in problems_of(document, parts):
        if problem.hint:
            raise InvalidInput(problem.message, hint=problem.hint, field=str(problem.path[1]))


async def revoke_standing(
    store: ResourceStore,
    name: str,
    *,
    by: str,
    now: float,
    namespace: str = "default",
    in_transaction: WriteBody | None = None,
) -> Document:
    """End a standing grant now. Raises `NotFound`; `Conflict` when it is none, or has ended already."""
    for _ in range(TRIES):
        document = await store.get(key_of(namespace, name))
        if not document["spec"].get("standing"):
            raise Conflict(
                f"approval {name} is no standing grant", hint=f"`foliot approvals deny {name}` refuses a call"
            )
        if phase_at(document, now) != "Approved":
            raise Conflict(f"standing grant {name} has ended already")
        status = {**document["status"], "phase": "Expired", "expires_at": iso(now), "reason": f"revoked by {by}"}
        version = document["metadata"]["resourceVersion"]
        try:
            (written,) = await store.write(
                [Put({**document, "status": status}, expect=version, only="status")], in_transaction=in_transaction
            )
        except Conflict:
            continue
        return written.document
    raise Conflict(f"standing grant {name} is in constant use", hint="try again", retryable=True)
