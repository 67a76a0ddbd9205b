"""`foliot purge`: forget what is over, so that a store does not grow for ever."""

from __future__ import annotations

import time
from typing import Final

import click

from foliot.cli.connect import run
from foliot.cli.invocation import current
from foliot.cli.terminal import out
from foliot.errors import UsageError

RUNS_AT_ONCE: Final = 200
KEPT_CHANGES: Final = 100_000


@click.command()
@click.option("--older-than", default="30d", show_default=True, metavar="AGE", help="Forget what ended before.")
@click.option(
    "--keep-changes",
    type=click.IntRange(min=0),
    default=KEPT_CHANGES,
    show_default=True,
    metavar="N",
    help="Keep the newest N changes of resources, for watches that resume.",
)
def purge(older_than: str, keep_changes: int) -> int:
    """Forget tasks and runs that ended long ago, with their journals, and old changes of resources.

    Tasks and runs that wait or are under way always stay, and so do the resources themselves. Content that several
    runs share stays until the last of them is forgotten.
    """
    return run(_purge(_seconds(older_than), keep_changes))


def _seconds(age: str) -> float:
    from foliot.resources.durations import seconds

    try:
        return seconds(age)
    except ValueError:
        raise UsageError(f"{age!r} is not an age", hint="such as 12h, 30d or 0s") from None


async def _purge(age: float, keep_changes: int) -> int:
    from functools import partial

    from foliot.store.journal import SqlJournal
    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore
    from foliot.store.tasks import purge as purge_tasks

    settings = current().store_settings()
    database = await open_database(settings.store)
    try:
        journal = SqlJournal(database)
        before = time.time() - age
        tasks = forgotten = 0
        # In small transactions: others write to the same store meanwhile. Tasks first: their runs stay as long as they.
        while gone := await database.write(purge_tasks, before, RUNS_AT_ONCE):
            tasks += gone
        while gone := await journal.purge(ended_before=before, limit=RUNS_AT_ONCE):
            forgotten += gone
        changes = await SqlResourceStore(database, partial(load_keyring, settings)).compact(keep=keep_changes)
    finally:
        await database.close()
    counts = ((tasks, "task"), (forgotten, "run"), (changes, "change"))
    listed = [f"{count} {_s(count, noun)}" for count, noun in counts if count or noun != "task"]
    out(f"{', '.join(listed[:-1])} and {listed[-1]} forgotten")
    return 0


def _s(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
