"""The conditions between a queued run and a worker with a free place: limits, and classes of runs that keep failing.

A **limit** says how many runs of a namespace, of an agent or of a lane may be at work at once. What is at work is
counted in the queue while the limit's row is locked, never stored, so no crash can make a count drift.

An **execution class** is runs that are alike in what they need to succeed (see work/tasks/advance.py). When
`THRESHOLD` of them in a row have failed, the class is *open*: nothing of it is given out, so that a broken endpoint
does not burn the attempts of everything that waits. After `COOL_DOWN` seconds one run is let through at a time: its
success closes the class, its failure begins the wait anew. Waiting for either uses up no attempt and drops nothing.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from foliot.common.suggestions import check_word
from foliot.errors import InvalidInput, NotFound
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, one, run

THRESHOLD = 5
COOL_DOWN = 60.0

Scope: TypeAlias = Literal["namespace", "agent", "lane"]
ClassState: TypeAlias = Literal["healthy", "warning", "degraded", "half-open"]
SCOPES: tuple[Scope, ...] = ("namespace", "agent", "lane")


class Limit(Struct, frozen=True):
    """`name` is the namespace, `namespace/agent` or `namespace/lane`. A `max_running` of 0 stops everything."""

    scope: Scope
    name: str
    max_running: int


class ClassInfo(Struct, frozen=True):
    """An execution class of which the last runs failed."""

    key: str
    namespace: str
    agent: str
    lane: str
    failures: int
    failed_at: float
    opened_at: float | None
    probe: int | None

    def state(self, now: float) -> ClassState:
        return class_state(self.failures, self.opened_at, now)


def class_state(failures: int, opened_at: float | None, now: float) -> ClassState:
    """A class warns from half the failures that would open it."""
    if opened_at is not None:
        return "half-open" if opened_at + COOL_DOWN <= now else "degraded"
    return "warning" if 2 * failures >= THRESHOLD else "healthy"


def class_failed(key: str, now: float, *, namespace: str = "", agent: str = "", lane: str = "") -> Tx[ClassState]:
    """A run of the class failed, for this moment or for good; part of the transaction that says so. Not for cancelled
    ones: they say nothing about the class."""
    row = yield from one(
        "class_failed", key=key, now=now, namespace=namespace, agent=agent, lane=lane, threshold=THRESHOLD
    )
    assert row is not None, "an insert that replaces on conflict returns its row"
    return class_state(row["failures"], row["opened_at"], now)


def class_succeeded(key: str) -> Tx[None]:
    """A run of the class succeeded: it is well."""
    yield from run("class_well", key=key)


async def list_classes(db: Database) -> list[ClassInfo]:
    return [ClassInfo(**row) for row in await db.read("class_list")]


async def close_class(db: Database, key: str) -> None:
    """Let runs of an open class through again: somebody has mended what was broken. Raises `NotFound`."""
    if not await db.write(_forget_class, key):
        raise NotFound(f"no execution class {key!r} has failures", hint="`foliot workers classes` lists them")


async def list_limits(db: Database) -> list[Limit]:
    return [Limit(**row) for row in await db.read("limit_list")]


async def set_limit(db: Database, limit: Limit) -> None:
    """From the next claim on, by every worker. Raises `InvalidInput`."""
    _check(limit.scope, limit.name)
    if limit.max_running < 0:
        raise InvalidInput(
            f"a limit of {limit.max_running} makes no sense", hint="0 stops everything; 1 or more allows"
        )
    await db.write(_set_limit, limit)


async def clear_limit(db: Database, scope: Scope, name: str) -> None:
    """Raises `InvalidInput`, `NotFound`."""
    _check(scope, name)
    if not await db.write(_clear_limit, scope, name):
        raise NotFound(f"there is no limit for {scope} {name!r}", hint="`foliot workers limits` lists them")


def _check(scope: str, name: str) -> None:
    check_word("scope", scope, SCOPES)
    namespace, slash, rest = name.partition("/")
    if not namespace or (scope == "namespace") == bool(slash) or (slash and not rest):
        form = "its name" if scope == "namespace" else f"namespace/{scope}"
        raise InvalidInput(f"{name!r} does not name what {scope} limits are about", hint=f"give {form}")


def _set_limit(limit: Limit) -> Tx[None]:
    yield from run("limit_set", scope=limit.scope, name=limit.name, max_running=limit.max_running)


def _clear_limit(scope: str, name: str) -> Tx[int]:
    return (yield from run("limit_clear", scope=scope, name=name))


def _forget_class(key: str) -> Tx[int]:
    return (yield from run("class_well", key=key))


# --- inside a claim ----------------------------------------------------------------------------------------------


def room_left(scope: str, namespace: str, name: str, max_running: int | None) -> Tx[int]:
    """How many more runs may be taken, exact until the transaction ends: everyone who takes some waits for this lock.

    `max_running` None: what the limit's row says; a limit that was cleared meanwhile allows any number.
    """
    row = yield from hold_limit(scope, namespace, name, max_running)
    if max_running is None:
        if row is None:
            return UNBOUNDED
        max_running = int(row["max_running"])
    counted = "agent" if scope == "definition" else scope
    names: dict[str, Any] = (
        {"namespace": namespace} if counted == "namespace" else {"namespace": namespace, "name": name}
    )
    running = yield from one(f"limit_running_{counted}", **names)
    assert running is not None, "a count always has a row"
    return max(0, max_running - int(running["running"]))


def hold_limit(scope: str, namespace: str, name: str, max_running: int | None) -> Tx[Row | None]:
    """The row of a limit, locked; it is made where the maximum came with the run."""
    full = namespace if scope == "namespace" else f"{namespace}/{name}"
    if max_running is not None:
        yield from run("limit_ensure", scope=scope, name=full)
    return (yield from one("limit_lock", scope=scope, name=full))


def may_probe(key: str, now: float) -> Tx[bool | None]:
    """Whether one run of an open class may be taken to see if it is well again; None when it is no longer open.

    Locks the class: of several workers that ask at once, one hears yes if it then calls `probing`.
    """
    row = yield from one("class_lock", key=key)
    if row is None or row["opened_at"] is None:
        return None
    if row["opened_at"] + COOL_DOWN > now:
        return False
    return row["probe"] is None or (yield from one("class_probing", run=row["probe"])) is None


def probing(key: str, run_key: int) -> Tx[None]:
    yield from run("class_probe", key=key, run=run_key)


UNBOUNDED = 2**62
