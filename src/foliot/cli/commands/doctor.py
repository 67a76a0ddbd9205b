"""`foliot doctor`: what works, what is enforced, what is missing, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import click
import msgspec

from foliot.cli.doctor import boundary, store, surroundings, work
from foliot.cli.doctor.findings import guarded
from foliot.cli.doctor.surroundings import look_at_server
from foliot.cli.invocation import current
from foliot.cli.reach import remote, run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.terminal import out, paint
from foliot.common.text import counted
from foliot.store.open import open_database

if TYPE_CHECKING:
    from foliot.cli.doctor.findings import Finding
    from foliot.settings.settings import Settings
    from foliot.store.base import Database

_MARK: Final = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_PAINT: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


@click.command()
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("-q", "--quiet", is_flag=True, help="Only what is not as it should be.")
@output_option("text", "json", default="text", help="text or json.")
def doctor(strict: bool, quiet: bool, output: str) -> int:
    """Check the installation: the store, keys, NATS, workers, stuck work, enforced rules, refused references.

    With a server: whether it answers, whom it knows you as, and how its parts are; run it on its machine for the rest.

    Nothing is changed, made or brought up to date by looking. Each finding says what to do. The exit code is 0 when
    there is no error (with --strict: no warning either), else 1.
    """
    return run(_examine(strict=strict, quiet=quiet, output=output))


async def _examine(*, strict: bool, quiet: bool, output: str) -> int:
    found: list[Finding] = []
    area = ""
    async for finding in _findings(current().settings()):
        found.append(finding)
        if output == "text" and not (quiet and finding.level in ("ok", "note")):
            if finding.area != area:
                area = finding.area
                out(paint(area, bold=True))
            _show(finding)
    errors = sum(finding.level == "error" for finding in found)
    warnings = sum(finding.level == "warning" for finding in found)
    failed = errors > 0 or (strict and warnings > 0)
    if output == "json":
        out(
            as_json(
                {
                    "healthy": not failed,
                    "errors": errors,
                    "warnings": warnings,
                    "findings": [msgspec.to_builtins(finding) for finding in found],
                }
            )
        )
    else:
        out(f"{counted(len(found), 'look')}: {counted(errors, 'error')}, {counted(warnings, 'warning')}", err=True)
    return 1 if failed else 0


def _show(finding: Finding) -> None:
    mark = paint(_MARK[finding.level], fg=_PAINT[finding.level], bold=True)
    out(f"  {mark} {finding.message}")
    if finding.hint and finding.level != "ok":
        out(f"    {paint('→', fg='cyan')} {finding.hint}")


async def _findings(settings: Settings) -> AsyncIterator[Finding]:
    """Every look, in the order in which one thing needs another. With a server: what that says of itself."""
    if settings.server is not None:  # it examines its own store; from here only the way to it can be examined
        async with remote() as client:
            async for finding in look_at_server(client, settings):
                yield finding
        return
    from foliot.store.resources.database import SqlResourceStore
    from foliot.store.secrets.keyring import load_keyring

    may_open = True
    async for finding in guarded("store", "store.reachable", partial(store.look_before_opening, settings)):
        # Opening makes a store that is missing, and brings an old one up to date: looking must do neither.
        if finding.check in ("store.exists", "store.schema", "store.reachable") and finding.level != "ok":
            may_open = False
        yield finding
    async with _opened(settings, wanted=may_open) as database:
        resources = None
        if database is not None:
            resources = SqlResourceStore(database, partial(load_keyring, settings, create=False))
            async for finding in guarded("store", "store.write", partial(store.look_inside, database, settings)):
                yield finding
        looking = partial(surroundings.look_at_keys, settings, resources, database)
        async for finding in guarded("keys", "keys.present", looking):
            yield finding
        async for finding in guarded("settings", "settings.file", partial(surroundings.look_at_files, settings)):
            yield finding
        async for finding in guarded("nats", "nats.set", partial(surroundings.look_at_nats, settings)):
            yield finding
        if database is not None and resources is not None:
            async for finding in guarded("work", "work.workers", partial(work.look_at_work, database, resources)):
                yield finding
            async for finding in guarded("audit", "audit.chain", partial(work.look_at_audit, database)):
                yield finding
        async for finding in guarded("rules", "rules.read", partial(surroundings.look_at_rules, settings, resources)):
            yield finding
        if resources is not None:
            looking = partial(boundary.look_at_boundary, settings, resources, time.time)
            async for finding in guarded(boundary.AREA, "boundary.read", looking):
                yield finding
    async for finding in guarded("sandbox", "sandbox.process", surroundings.look_at_sandbox):
        yield finding
    looking = partial(surroundings.look_at_containers, settings)
    async for finding in guarded("sandbox", "sandbox.container", looking):
        yield finding
    async for finding in guarded("packages", "packages.extras", surroundings.look_at_packages):
        yield finding
    looking = partial(surroundings.look_at_plugins, settings)
    async for finding in guarded("plugins", "plugins.enabled", looking):
        yield finding


@asynccontextmanager
async def _opened(settings: Settings, *, wanted: bool) -> AsyncGenerator[Database | None]:
    if not wanted:
        yield None
        return

    database = await open_database(settings.store)
    try:
        yield database
    finally:
        await database.close()
