"""A transaction is a generator that yields statements and receives their results.

The body of a transaction says *what* to run and in which order, and does no I/O itself. SQLite runs it in one go on the
writer thread, together with the bodies of other callers, under one commit; PostgreSQL awaits each statement on a
connection. So one body serves both databases, no transaction is ever held open across an `await` of the caller, and
group commit needs no help from the code that uses it.

    def rename(old: str, new: str) -> Tx[int]:
        row = yield from one("thing_get", name=old)
        if row is None:
            raise NotFound(f"no thing named {old!r}")
        return (yield from run("thing_rename", id=row["id"], name=new))

    changed = await database.write(rename, "a", "b")

A body may be run again from its start (after a deadlock, for example), so it must not change anything outside itself.
An exception that leaves the body undoes everything the body did, and nothing of anyone else's.

Rows are locked in one order, `LOCK_ORDER`, and rows of one level in the order of their keys: then no two transactions
wait for each other. A body keeps to it by itself. The statement that locks says what it locks (`-- locks:` in
queries/*.sql), so PostgreSQL can put bodies into one transaction without breaking the order between them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]
Params: TypeAlias = Mapping[str, Any]


# What is locked first comes first. Rows that are only ever touched under one of these locks have no level of their own:
# turns and inputs under that of their session, the queue's under that of their run, events, signals and uses of content
# under their run's or task's, resources under the revision, and records under the head of the audit log. `limit` are
# bounds of the queue, execution classes and the buckets of tools; `channel` says which session is active where;
# `folder` is that of an agent and a user, and what it refers to. `content` (texts and files), `definition` (plans and
# specs) and `pin` are rows that are only ever added, by whoever is first, while others wait to see whether they are
# there (see content.py). `revision` and `audit` are heads that all share, and therefore taken last.
LOCK_ORDER: Final = (
    "request",
    "account",
    "limit",
    "task",
    "channel",
    "session",
    "folder",
    "run",
    "content",
    "definition",
    "pin",
    "setting",
    "revision",
    "audit",
)


class Statement(Struct, frozen=True, gc=False):
    """One named query (see queries/*.sql) with its parameters, and what to hand back for it."""

    name: str
    params: Params | Sequence[Params] | Sequence[Sequence[Any]]
    want: Literal["rows", "count", "many"]


Tx: TypeAlias = Generator[Statement, Any, T]


def rows(name: str, /, **params: Any) -> Tx[list[Row]]:
    """All rows that the query returns."""
    return (yield Statement(name, params, "rows"))


def one(name: str, /, **params: Any) -> Tx[Row | None]:
    """The first row, or None."""
    found: list[Row] = yield Statement(name, params, "rows")
    return found[0] if found else None


def value(name: str, /, **params: Any) -> Tx[Any]:
    """The first column of the first row, or None."""
    row = yield from one(name, **params)
    return next(iter(row.values())) if row else None


def run(name: str, /, **params: Any) -> Tx[int]:
    """Execute; the number of rows that were changed."""
    return (yield Statement(name, params, "count"))


def many(name: str, params: Sequence[Params] | Sequence[tuple[Any, ...]]) -> Tx[None]:
    """Execute once for each set of parameters, in one round trip where the driver can.

    A set is a mapping, or for what is written often a tuple: its values in the order in which the query first names
    its parameters.
    """
    if params:
        yield Statement(name, params, "many")


class Planned(NamedTuple):
    """The plan of a `Guarded` body: the parameters of its guard, and those of each row behind it."""

    guard: tuple[Any, ...]
    rows: Sequence[tuple[Any, ...]]


class Guarded:
    """A body that decides nothing: `guard` must change exactly one row, then rows are added by `add`.

    Databases do those of many callers together, in one or two statements for all. `plan` says what one of them does, or
    None when it needs its body after all. Whose guard finds nothing is run by its body, which tells what is wrong.
    """

    __slots__ = ("add", "body", "guard", "plan")

    def __init__(
        self, body: Callable[..., Tx[Any]], *, guard: str, add: str, plan: Callable[..., Planned | None]
    ) -> None:
        self.body = body
        self.guard = guard
        self.add = add
        self.plan = plan

    def __call__(self, *args: Any) -> Tx[Any]:
        return self.body(*args)


class Alone:
    """A body that shares no transaction with those of other callers: it always raises, after it has changed something.

    That is a dry run. As a part of another body, such as an `in_transaction`, it says so of that one (`alone_with`).
    """

    __slots__ = ("body",)

    def __init__(self, body: Callable[..., Tx[Any]]) -> None:
        self.body = body

    def __call__(self, *args: Any, **kwargs: Any) -> Tx[Any]:
        return self.body(*args, **kwargs)


def alone_with(part: object, body: Callable[P, Tx[T]]) -> Callable[P, Tx[T]]:
    """The body, alone if this part of it is."""
    return Alone(body) if isinstance(part, Alone) else body


class GuardFailed(Exception):
    """A guard of a group did not change its row. Never leaves the database: the bodies say which, and why."""
