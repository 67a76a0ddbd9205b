"""`foliot purge`: forget what is over now, instead of when its time has come."""

from __future__ import annotations

import time

import click

from foliot.cli.connect import run
from foliot.cli.invocation import current
from foliot.cli.terminal import out
from foliot.errors import UsageError
from foliot.store.base import KEPT_CHANGES


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
@click.option("--compact", is_flag=True, help="Write the store file anew without free space. Others wait meanwhile.")
def purge(older_than: str, keep_changes: int, compact: bool) -> int:
    """Forget tasks and runs that ended long ago, with their journals, and old changes of resources.

    Workers and servers do so by themselves, after the ages in the settings (`retention_runs`). Tasks and runs that wait
    or are under way always stay, and so do the resources themselves. Content that several runs share stays until the
    last of them is forgotten.
    """
    return run(_purge(_seconds(older_than), keep_changes, compact))


def _seconds(age: str) -> float:
    from foliot.resources.durations import seconds

    try:
        return seconds(age)
    except ValueError:
        raise UsageError(f"{age!r} is not an age", hint="such as 12h, 30d or 0s") from None


async def _purge(age: float, keep_changes: int, compact: bool) -> int:
    from functools import partial

    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore
    from foliot.work.housekeeping import Forgotten, Housekeeper, Retention

    settings = current().store_settings()
    database = await open_database(settings.store)
    found = Forgotten()
    try:
        resources = SqlResourceStore(
            database, partial(load_keyring, settings), existing=partial(load_keyring, settings, create=False)
        )
        rules = Retention(runs=age, audit=None, size=None, changes=keep_changes)
        await Housekeeper(database, resources, rules).forget(found, time.time())
        if compact:
            found.freed += await _compact(settings.store, (await database.size()).total)
    finally:
        await database.close()
    counts = ((found.tasks, "task"), (found.runs, "run"), (found.changes, "change"))
    listed = [f"{count} {_s(count, noun)}" for count, noun in counts if count or noun != "task"]
    freed = f"; {found.freed / 1024**2:.1f} MiB given back to the disk" if found.freed >= 1024**2 else ""
    out(f"{', '.join(listed[:-1])} and {listed[-1]} forgotten{freed}")
    return 0


async def _compact(store: str, before: int) -> int:
    from pathlib import Path

    from foliot.store.sqlite_file import compact
    from foliot.threads import on_thread

    if not store.startswith("sqlite:"):
        raise UsageError("PostgreSQL keeps house by itself", hint="VACUUM FULL gives disk back, with nobody at work")
    return max(before - await on_thread(compact, Path(store.partition(":///")[2])), 0)


def _s(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
