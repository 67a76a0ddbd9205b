"""`foliot backup` and `foliot restore`: a copy of the store, taken while it is in use, and put back."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from foliot.cli.invocation import current
from foliot.cli.reach import run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.terminal import confirm, out
from foliot.common.durations import seconds
from foliot.common.text import counted
from foliot.common.threads import on_thread
from foliot.errors import SecretError, UsageError
from foliot.settings.settings import mask_password
from foliot.store.base import KEPT_CHANGES
from foliot.store.open import open_database

if TYPE_CHECKING:
    from foliot.settings.settings import Settings
    from foliot.store.backup import Manifest


NEXT: Final = "`foliot doctor` looks it over; `foliot resume` and workers go on with what was in progress."


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_option("text", "json", default="text", help="text or json.")
def backup(file: Path, output: str) -> int:
    """Copy the store into FILE while it is in use. FILE must not exist yet.

    The copy is of one moment, and is looked through before it gets its name. Secrets in it stay sealed: the key that
    opens them is NOT in it, so keep a copy of the key file in another place.

    A store in PostgreSQL is dumped by the pg_dump that fits the server: on PATH, in the usual places of the system, or
    of the extra `services`.
    """
    from foliot.store.backup import back_up

    settings = current().store_settings()
    store = _file_of(settings)
    if store is None:
        return run(_dump(settings, file.absolute(), output))
    manifest = back_up(store, file.absolute())
    if output == "json":
        out(as_json({"file": str(file.absolute()), **_plain(manifest)}))
        return 0
    out(f"{file}: {_told(manifest)}")
    if manifest.keys:
        out(
            f"Its secrets are sealed with {_named(manifest.keys)}, which is not in it: "
            f"keep a copy of {_key_place(settings)} as well, in another place.",
            err=True,
        )
    return 0


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--force", is_flag=True, help="Set a store that is there aside, under another name.")
@click.option("--check", is_flag=True, help="Only see whether the backup is whole and can be restored.")
@click.option("--renew", is_flag=True, help="Take note that the store was put back by other means, without a FILE.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option("text", "json", default="text", help="text or json.")
def restore(file: Path | None, force: bool, check: bool, renew: bool, yes: bool, output: str) -> int:
    """Restore the store from the backup FILE. It is checked first; an existing store is never overwritten.

    Stop every process that uses the store before. What happened after the backup is gone from the store but not from
    the world: a resumed run may do again what it had done since then.

    A key that its secrets need and that is not here is named, with and without --check, and the exit code is 6. The
    store is put back all the same: the key can follow.

    Into PostgreSQL it is put back by pg_restore, in one transaction; --force renames the schema of a store that is
    there.

    --renew is for a store, of either kind, that was put back without this command in a way that it cannot notice: a
    copied file, a disk snapshot, rows put back into tables of PostgreSQL. Versions of resources and watches begin anew,
    and processes that knew it as it was later notice, and stop.
    """
    if renew:
        if file is not None or force or check:
            raise UsageError("--renew is about the store that is there", hint="leave FILE, --force and --check out")
        return _renew(yes, output)
    if file is None:
        raise UsageError("which backup is to be put back?", hint="foliot restore FILE, or foliot restore --renew")
    return _restore(file, force, check, output)


def _renew(yes: bool, output: str) -> int:
    from foliot.store.incarnation import renew_database, renew_file

    settings = current().store_settings()
    where = mask_password(settings.store)
    if not yes:
        confirm(f"Begin versions and watches of {where} anew, and end the workers that knew it as it was?")
    path = _file_of(settings)
    revision = run(renew_database(settings.store)) if path is None else renew_file(path)
    if output == "json":
        out(as_json({"store": where, "resourceVersion": str(revision)}))
        return 0
    out(f"{where}: renewed, versions go on at {revision}")
    out("Workers that ran meanwhile stop by themselves: start them again. `foliot doctor` looks it over.", err=True)
    return 0


def _restore(file: Path, force: bool, check: bool, output: str) -> int:
    from foliot.store.backup import restore as put_back
    from foliot.store.backup import verify

    settings = current().store_settings()
    store = _file_of(settings)
    if store is None:
        return run(_undump(settings, file.absolute(), force, check, output))
    aside = None
    if check:
        manifest = verify(file.absolute())
    else:
        manifest, aside = put_back(file.absolute(), store, replace=force)
    missing, why = _missing(manifest, settings)
    code = SecretError.exit_code if missing else 0
    if output == "json":
        told = {"store": None if check else str(store), "aside": str(aside) if aside else None}
        out(as_json({**told, **_plain(manifest), "missingKeys": missing}))
        return code
    out(f"{file}: {_told(manifest)}" if check else f"{store}: restored, {_told(manifest)}")
    if aside is not None:
        out(f"The store that was there is now {aside}.", err=True)
    if missing:
        out(
            f"warning: its secrets need {_named(missing)}, which this home does not have: {why}. Until a copy is "
            "there, nothing that was sealed with it opens.",
            err=True,
        )
    elif manifest.keys:
        out(f"Its secrets open with {_named(manifest.keys)}, which is in {_key_place(settings)}.", err=True)
    if not check:
        out(NEXT, err=True)
    return code


def _missing(manifest: Manifest, settings: Settings) -> tuple[list[str], str]:
    """The ids of the keys that a backup needs and that are not here, and why not."""
    from foliot.store.secrets.keyring import load_keyring

    if not manifest.keys:
        return [], ""
    try:
        here = load_keyring(settings, create=False).key_ids
    except SecretError as error:
        return [*manifest.keys], error.message
    missing = [each for each in manifest.keys if each not in here]
    return missing, f"{_key_place(settings)} has {_named(here)}"


async def _dump(settings: Settings, file: Path, output: str) -> int:
    from foliot.store.postgres.backup import back_up

    about = await back_up(settings.store, file)
    if output == "json":
        out(as_json({"file": str(file), **about}))
        return 0
    out(f"{file}: {about['bytes']} bytes, schema {about['schema']}, PostgreSQL {about['postgres']}")
    out(f"Secrets in it stay sealed: keep a copy of {_key_place(settings)} as well, in another place.", err=True)
    return 0


async def _undump(settings: Settings, file: Path, force: bool, check: bool, output: str) -> int:
    from foliot.store.postgres.backup import restore as put_back
    from foliot.store.postgres.backup import verify

    where = mask_password(settings.store)
    if check:
        about, aside, missing = await verify(settings.store, file), "", ""
    else:
        about, aside = await put_back(settings.store, file, replace=force)
        missing = await _missing_key(settings)
    code = SecretError.exit_code if missing else 0
    if output == "json":
        told = {"store": None if check else where, "aside": aside or None, "missingKeys": [missing] if missing else []}
        out(as_json({**told, **about}))
        return code
    out(f"{file}: whole, {about['bytes']} bytes" if check else f"{where}: restored, schema {about['schema']}")
    if aside:
        out(f"The store that was there is now the schema {aside}.", err=True)
    if missing:
        out(f"warning: its secrets need key {missing}, which {_key_place(settings)} does not have.", err=True)
    if not check:
        out(NEXT, err=True)
    return code


async def _missing_key(settings: Settings) -> str:
    """The id of the key that the store is sealed with, if it is not here. The store is brought up to date by it."""
    from foliot.store.secrets.keyring import load_keyring
    from foliot.store.secrets.store_key import key_of_store

    database = await open_database(settings.store)
    try:
        needed = await key_of_store(database)
    finally:
        await database.close()
    if not needed:
        return ""
    try:
        return "" if needed in load_keyring(settings, create=False).key_ids else needed
    except SecretError:
        return needed


def _file_of(settings: Settings) -> Path | None:
    scheme, _, path = settings.store.partition(":///")
    return Path(path) if scheme == "sqlite" else None


def _plain(manifest: Manifest) -> Any:
    return msgspec.to_builtins(manifest)


def _told(manifest: Manifest) -> str:
    parts = ", ".join(f"{number} {name}" for name, number in manifest.contains.items())
    return (
        f"{manifest.bytes} bytes of {manifest.created_at}, schema {manifest.schema} (foliot {manifest.foliot}): {parts}"
    )


def _named(keys: Sequence[str]) -> str:
    return f"key {keys[0]}" if len(keys) == 1 else f"keys {', '.join(keys)}"


def _key_place(settings: Settings) -> str:
    return "FOLIOT_SECRET_KEY" if settings.secret_key is not None else str(settings.secret_key_file)


# --- purge -----------------------------------------------------------------------------------------------------------

# `foliot purge`: forget what is over now, instead of when its time has come.

_RECENT: Final = 86_400.0


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
@click.option("--yes", is_flag=True, help="Do not ask before what ended within a day is forgotten.")
def purge(older_than: str, keep_changes: int, compact: bool, yes: bool) -> int:
    """Forget tasks and runs that ended long ago, with their journals, sessions that were archived long ago, and old
    changes of resources.

    Workers and servers do so by themselves, after the ages in the settings (`retention_runs`). Tasks and runs that wait
    or are under way always stay, and so do sessions that are not archived, with all their runs, and the resources
    themselves. Content that several runs share stays until the last of them is forgotten.

    It is done in all namespaces, and the audit log says who did it (`foliot audit list -A --outcome purged`). On a
    terminal it asks before it forgets what ended within a day.
    """
    if current().namespace is not None:
        raise UsageError("a purge is of all namespaces: it cannot be done in one", hint="leave out --namespace")
    age = _seconds(older_than)
    if age < _RECENT and not yes and sys.stdin.isatty():
        where = mask_password(current().store_settings().store)
        confirm(f"Forget all tasks and runs of {where} that ended more than {older_than} ago?")
    return run(_purge(age, keep_changes, compact))


def _seconds(age: str) -> float:
    try:
        return seconds(age)
    except ValueError:
        raise UsageError(f"{age!r} is not an age", hint="such as 12h, 30d or 0s") from None


async def _purge(age: float, keep_changes: int, compact: bool) -> int:
    from foliot.cli.grants import record
    from foliot.store.resources.database import SqlResourceStore
    from foliot.store.secrets.keyring import load_keyring
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
        counts = {"tasks": found.tasks, "sessions": found.sessions, "runs": found.runs, "changes": found.changes}
        if any(counts.values()):
            await record(database, "purged", "Store", "", older_than=age, **counts)
        if compact:
            found.freed += await _compact(settings.store, (await database.size()).total)
    finally:
        await database.close()
    listed = [counted(count, noun[:-1]) for noun, count in counts.items() if count or noun in ("runs", "changes")]
    freed = f"; {found.freed / 1024**2:.1f} MiB given back to the disk" if found.freed >= 1024**2 else ""
    out(f"{', '.join(listed[:-1])} and {listed[-1]} forgotten{freed}")
    return 0


async def _compact(store: str, before: int) -> int:
    from foliot.store.sqlite.file import compact

    if not store.startswith("sqlite:"):
        raise UsageError("PostgreSQL keeps house by itself", hint="VACUUM FULL gives disk back, with nobody at work")
    return max(before - await on_thread(compact, Path(store.partition(":///")[2])), 0)
