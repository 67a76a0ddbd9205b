"""`foliot wait`: until a resource is there, is gone, or says something. For scripts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import click

from foliot.cli import complete
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import word_of
from foliot.cli.show.tables import at
from foliot.cli.targets import parse_targets
from foliot.cli.terminal import out
from foliot.common.durations import seconds
from foliot.common.times import MOMENT_FORMS, read_moment
from foliot.errors import FoliotError, Gone, NotFound, UsageError
from foliot.resources.kinds import phase_of
from foliot.runtime.groups.groups import StoreGroups
from foliot.store.base import Document, Filter

LOOK_EVERY = 0.25
F = TypeVar("F", bound=Callable[..., Any])
Test: TypeAlias = Callable[[Document | None], bool]


@click.command()
@click.argument("what", nargs=-1, metavar="KIND/NAME…", shell_complete=complete.targets)
@click.option(
    "--for",
    "condition",
    required=True,
    metavar="CONDITION",
    help="delete, create, phase=Ready, condition=Ready|Complete|Failed, or a field: spec.suspend=true.",
)
@click.option(
    "--timeout", default="5m", show_default=True, metavar="TIME", help="Give up after this long (30s, 5m, 1h)."
)
def wait(what: tuple[str, ...], condition: str, timeout: str) -> None:
    """Wait until resources exist, are deleted, or reach a condition. Exit code 1 when the time is over.

    \b
    foliot wait task/report --for phase=Succeeded --timeout 10m
    foliot wait agent writer --for delete
    """
    targets = parse_targets(what, verb="wait")
    if not targets.named:
        raise UsageError("`foliot wait` needs names.", hint="Such as `foliot wait task/report --for phase=Ready`.")
    named = [(kind.name, name) for kind, name in targets.named]
    kinds = sorted({kind for kind, _ in named})
    test, seconds = parse_condition(condition, kinds), parse_seconds(timeout)
    run(_wait_for_all(named, condition, test, seconds))


async def _wait_for_all(named: list[tuple[str, str]], condition: str, test: Test, seconds: float) -> None:
    space = namespace()
    async with connected() as client:
        deadline = asyncio.get_running_loop().time() + seconds
        for kind, name in named:
            try:
                async with asyncio.timeout_at(deadline):
                    await _wait_for(client, kind, name, space, test)
            except TimeoutError:
                raise FoliotError(f"{word_of(kind)}/{name}: not {condition} after {seconds:g} seconds.") from None
            out(f"{word_of(kind)}/{name}: {condition}")


async def _wait_for(client: StoreGroups, kind: str, name: str, space: str, test: Test) -> None:
    filter = Filter(kind, space)
    while True:
        revision = (await client.resources.list(filter, limit=1)).revision
        try:
            document = await client.resources.get(kind, name, namespace=space)
        except NotFound:
            document = None
        if test(document):
            return
        if kind == "Task":
            # The work of a task changes, and its resource does not: there is nothing to watch.
            await asyncio.sleep(LOOK_EVERY)
            continue
        try:
            async for change in client.resources.watch(filter, after=revision):
                if change.document["metadata"]["name"] == name and test(
                    None if change.action == "deleted" else change.document
                ):
                    return
        except Gone:
            continue  # the position was compacted away: look again


def parse_condition(text: str, kinds: Sequence[str] = ()) -> Test:
    """Raises `UsageError` for a condition that cannot be understood, `InvalidInput` for a field none of `kinds` has."""
    word, equals, value = text.partition("=")
    match word.lower():
        case "delete" | "deleted" if not equals:
            return lambda document: document is None
        case "create" | "created" if not equals:
            return lambda document: document is not None
        case "phase" if value:
            return lambda document: str(at(document or {}, "status.phase")).lower() == value.lower()
        case "condition" if value:
            name, _, wanted = value.partition("=")
            return lambda document: _has_condition(document, name, wanted or "True")
        case _ if equals and re.fullmatch(r"(metadata|spec|status)(\.[\w-]+)+", word):
            from foliot.resources.paths import stored_path  # the models of kinds: only a field needs them

            path = stored_path(word, kinds)
            return lambda document: document is not None and _text(at(document, path)) == value
        case _:
            raise UsageError(
                f"Foliot does not know how to wait for {text!r}.",
                hint="Use delete, create, phase=Ready, condition=NAME or a field such as spec.suspend=true.",
            )


# Words for an end, and the phases that they mean.
_MEANT: Final = {
    "complete": ("succeeded", "ready"),
    "completed": ("succeeded", "ready"),
    "failed": ("failed", "deadletter", "error"),
}


def _has_condition(document: Document | None, name: str, wanted: str) -> bool:
    conditions = at(document or {}, "status.conditions")
    if isinstance(conditions, list):
        for condition in conditions:  # pyright: ignore[reportUnknownVariableType] - status is open
            if str(at(condition, "type")).lower() == name.lower():  # pyright: ignore[reportUnknownArgumentType]
                return str(at(condition, "status")).lower() == wanted.lower()  # pyright: ignore[reportUnknownArgumentType]
    if document is None:
        return False
    phase = phase_of(document).lower()
    return (phase in _MEANT.get(name.lower(), (name.lower(),))) == (wanted.lower() == "true")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1h30m` in seconds. Raises `UsageError`."""
    try:
        return seconds(f"{text}s" if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a length of time: {error}.", hint="For example 30s, 5m or 1h30m.") from None


def parse_moment(text: str) -> float:
    """`2h` ago, `2026-11-16`, `2026-11-16T09:30:00Z` in seconds since 1970. Raises `UsageError`."""
    try:
        return read_moment(text, now=time.time())
    except ValueError:
        if (body := text.strip()).isdecimal() and len(body) < 6:
            hint = f"For example {body}s, {body}m; or 2026-11-16."
            raise UsageError(f"{text!r} has no unit.", hint=hint) from None
        raise UsageError(f"{text!r} is neither a time nor an age.", hint=f"For example {MOMENT_FORMS}.") from None


def moment_option(*names: str, help: str) -> Callable[[F], F]:
    """Return an option that takes a moment, as `parse_moment` reads it; None when it is not given."""
    return click.option(*names, metavar="TIME", help=help, callback=_moment)


def _moment(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    return None if text is None else parse_moment(text)
