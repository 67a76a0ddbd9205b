"""Access to runs: one with words of a session is as private as the session.

Turns, what they delegate, and what goes on after them carry the label of their session (`CONVERSATION_LABEL`). They are
for the user of the run, and for operators of the namespace. For everybody else they do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from foliot.errors import Denied
from foliot.server.auth.identity import EVERYWHERE, Caller
from foliot.store.journal.base import CONVERSATION_LABEL, USER_LABEL, Journal, RunInfo


def may_read(caller: Caller, info: RunInfo) -> bool:
    """Whether this caller may read the run, and all that is kept of it."""
    if not caller.sees(info.namespace):
        return False
    private = CONVERSATION_LABEL in info.labels
    return not private or is_own(caller, info) or caller.may("operator", info.namespace)


def is_own(caller: Caller, info: RunInfo) -> bool:
    """Whether the run acts for this caller."""
    return info.labels.get(USER_LABEL) == caller.name


def private_to(caller: Caller, namespace: str | None) -> str | None:
    """Returns the user whose private runs alone are in a list; None when all are."""
    return None if caller.may("operator", namespace or EVERYWHERE) else caller.name


async def readable(caller: Caller, journal: Journal, run_ids: Sequence[str]) -> set[str]:
    """Returns those of these runs that the caller may read; one that is gone is nobody's secret any more."""
    found = await journal.many([*dict.fromkeys(run_ids)])
    return {*run_ids} - {info.id for info in found if not may_read(caller, info)}


def check_files(caller: Caller, info: RunInfo) -> None:
    """Raises `Denied` for whoever would read the files of a run that acts for another: `data/` is that user's own."""
    user = info.labels.get(USER_LABEL, "")
    if user and not is_own(caller, info) and not caller.may("operator", info.namespace):
        raise Denied(
            f"this run acts for {user!r}, and you cannot read its files",
            hint=f"have the role operator in namespace {info.namespace!r}",
            role="operator",
            namespace=info.namespace,
        )


def check_ends(caller: Caller, info: RunInfo) -> None:
    """Raises `Denied` for whoever would end the turn of another: as for a session, that is for admins."""
    if CONVERSATION_LABEL in info.labels and not is_own(caller, info) and not caller.may("admin", info.namespace):
        raise Denied(
            f"this run belongs to a session of {info.labels.get(USER_LABEL, '')!r}, and you cannot end it",
            hint=f"have the role admin in namespace {info.namespace!r}",
            role="admin",
            namespace=info.namespace,
        )
