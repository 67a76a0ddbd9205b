"""Causes of failures, as one table: what the store and its driver report, whose fault it is, and what follows.

Only what a run itself did wrong may end it, and only what a caller sent is refused to the caller. What the store or
this worker cannot do now is `Unavailable`: it is tried again while the lease lives, then handed back, and a caller is
told 503. So whatever nobody has listed belongs to the store: a state that is new to us says nothing about the run.

Read by:  store/postgres/driver.py, store/sqlite/file.py; docs/failures.md shows it, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable

Fault: TypeAlias = Literal["run", "worker", "store", "caller"]


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One row. `message` is put between the name of the store and the details; `away`: a starting process waits."""

    fault: Fault
    means: str
    error: type[FoliotError] = Unavailable
    retryable: bool = True
    hint: str = "Foliot tries again by itself; if it goes on, look at the log of the database"
    away: bool = False

    @property
    def http(self) -> int:
        return self.error.http


_AWAY: Final = "see that the server runs and can be reached; Foliot reconnects by itself"
_LOGIN: Final = "check user and password, and what the user may do"

# By SQLSTATE: the whole state, else its class (the first two characters), else `UNLISTED`.
POSTGRES: Final[Mapping[str, FailureCause]] = {
    "08": FailureCause("store", "does not answer", hint=_AWAY, away=True),
    "0A": FailureCause("store", "cannot do this in its present version or state"),
    "22": FailureCause("run", "cannot keep this value", InvalidInput, retryable=False, hint=""),
    "23": FailureCause("caller", "has a rule that the change breaks", Conflict, retryable=False, hint=""),
    "25": FailureCause("store", "has ended the transaction"),
    "25006": FailureCause("store", "is read-only at the moment", hint="it may be a standby, or in maintenance"),
    "28": FailureCause("worker", "refused the login", hint=_LOGIN),
    "3D000": FailureCause("worker", "has no such database", hint="make it first, with createdb, or correct the URL"),
    "3F": FailureCause("worker", "has no such schema", hint="correct the search_path of this user"),
    "40": FailureCause("store", "kept undoing the change for the sake of others", hint="try again"),
    "42": FailureCause(
        "store", "has another schema than this version of Foliot expects", hint="is another version migrating?"
    ),
    "42501": FailureCause(
        "worker", "does not let this user do it", hint="grant CREATE and all table rights on the schema"
    ),
    "53": FailureCause("store", "has no resources left"),
    "53100": FailureCause("store", "has a full disk", hint="free some space"),
    "53300": FailureCause(
        "store", "has no connection left", hint="raise max_connections, or start fewer workers", away=True
    ),
    "54": FailureCause("run", "cannot keep something so large", InvalidInput, retryable=False, hint=""),
    "55": FailureCause("store", "is not in a state for this"),
    "55P03": FailureCause("store", "did not give a lock in time", hint="another transaction holds it; try again"),
    "57": FailureCause("store", "does not answer", hint=_AWAY),
    "57014": FailureCause("store", "took too long", hint="it is busy, or a statement needs an index; try again"),
    "57P01": FailureCause("store", "is shutting down", hint=_AWAY, away=True),
    "57P02": FailureCause("store", "has crashed", hint=_AWAY, away=True),
    "57P03": FailureCause("store", "is starting", hint=_AWAY, away=True),
    "58": FailureCause("store", "has trouble with its system"),
    "XX001": FailureCause("store", "found damaged data", retryable=False, hint="restore the database from a backup"),
    "XX002": FailureCause("store", "found a damaged index", retryable=False, hint="REINDEX, and check the disk"),
}
# By the name of the result code.
SQLITE: Final[Mapping[str, FailureCause]] = {
    "SQLITE_BUSY": FailureCause(
        "store", "stayed busy with other processes", hint="see which process holds the file open"
    ),
    "SQLITE_LOCKED": FailureCause(
        "store", "stayed busy with other processes", hint="see which process holds the file open"
    ),
    "SQLITE_PROTOCOL": FailureCause(
        "store", "stayed busy with other processes", hint="see which process holds the file open"
    ),
    "SQLITE_CANTOPEN": FailureCause(
        "store", "cannot be opened", hint="see that the disk is well and that this user may write in the folder"
    ),
    "SQLITE_CONSTRAINT": FailureCause(
        "caller", "has a rule that the change breaks", Conflict, retryable=False, hint=""
    ),
    "SQLITE_CORRUPT": FailureCause("store", "is damaged", retryable=False, hint="restore it from a backup"),
    "SQLITE_NOTADB": FailureCause("store", "is no store any more", retryable=False, hint="restore it from a backup"),
    "SQLITE_FULL": FailureCause("store", "cannot grow: its disk is full", hint="free some space"),
    "SQLITE_IOERR": FailureCause("store", "cannot be opened, read or written", hint="see that the disk is well"),
    "SQLITE_NOMEM": FailureCause("store", "finds no memory", hint="free some memory"),
    "SQLITE_PERM": FailureCause("store", "may not be written by this user", hint="give this user write permission"),
    "SQLITE_READONLY": FailureCause("store", "may not be written by this user", hint="give this user write permission"),
    "SQLITE_TOOBIG": FailureCause("run", "cannot keep something so large", InvalidInput, retryable=False, hint=""),
}
UNLISTED: Final = FailureCause("store", "could not run a query")
# No answer at all: a reset, a refusal, a silence.
LOST: Final = FailureCause("store", "does not answer", hint=_AWAY, away=True)


def of_sqlstate(state: str) -> FailureCause:
    """The cause of an error of PostgreSQL."""
    return POSTGRES.get(state) or POSTGRES.get(state[:2]) or UNLISTED


def is_away(error: FoliotError) -> bool:
    """Whether the store is only not there yet, so that a process that starts may wait for it."""
    return isinstance(error, Unavailable) and error.details.get("away") is True


def table() -> str:
    """The rows as Markdown, for docs/failures.md."""
    unlisted = {"any other SQLSTATE or result code": UNLISTED, "no answer: reset, refused, silent": LOST}
    lines = ["| what is reported | it means: the store … | whose fault | tried again | HTTP |", "|---|---|---|---|---|"]
    for state, cause in {**POSTGRES, **SQLITE, **unlisted}.items():
        name = f"SQLSTATE class {state}" if len(state) == 2 else f"SQLSTATE {state}" if len(state) == 5 else state
        lines.append(
            f"| {name} | {cause.means} | {cause.fault} | {'yes' if cause.retryable else 'no'} | {cause.http} |"
        )
    return "\n".join(lines)
