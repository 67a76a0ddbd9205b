"""`get --watch`: the list as it is, then a row for each change, for as long as one cares to look.

A store that goes away and comes back, or that has forgotten the changes behind our position, costs no change that can
still be known: the watch goes on where it was, or lists again and prints what is different.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from foliot.cli.commands.get import fetch_all, fetch_named
from foliot.cli.errors import say, warn
from foliot.cli.reach import connected
from foliot.cli.show.output import as_yaml, ref_of, word_of
from foliot.cli.show.tables import headings_of, row_of, table, widths_of
from foliot.cli.terminal import out
from foliot.common.text import safe_json
from foliot.errors import Gone, Unavailable
from foliot.kernel.backoff import backoff
from foliot.resources.kinds import Kind, find_kind
from foliot.runtime.groups.groups import StoreGroups
from foliot.store.base import Change, Document, Filter

if TYPE_CHECKING:
    from foliot.cli.commands.get import Request

Identity: TypeAlias = tuple[str, str, str]
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 10.0
_MIXED: Final = Kind("", "", "", columns=(("NAME", "metadata.name"), ("STATUS", "status.phase")))


async def watch_resources(request: Request, output: str) -> int:
    """Runs until cancelled (Ctrl-C)."""
    printer = Printer(request, output)
    failures = 0
    while True:
        try:
            async with connected() as client:
                failures = 0
                await _follow(client, request, printer)
        except Unavailable as error:
            if printer.revision is None:
                raise  # never got through: that is an error of this command, not an interruption of the watch
            warn(f"{error.message} Trying again …")
            failures += 1
            await asyncio.sleep(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE))


async def _follow(client: StoreGroups, request: Request, printer: Printer) -> None:
    while True:
        if printer.revision is None:
            await _list(client, request, printer)
        try:
            async for change in client.resources.watch(_filter(request), after=printer.revision or 0):
                printer.revision = change.revision
                if _wanted(request, change.document):
                    printer.change(change)
        except Gone:
            say("note", "The store no longer keeps the changes since then; listing again.", fg="cyan")
            printer.revision = None


async def _list(client: StoreGroups, request: Request, printer: Printer) -> None:
    if request.targets.named:
        revision = (await client.resources.list(_filter(request), limit=1)).revision
        documents, missing = await fetch_named(client, request)
        if missing and not printer.versions:
            raise missing[0]
    else:
        documents, revision = await fetch_all(client, request.filters)
    printer.listing(documents)
    printer.revision = revision


def _filter(request: Request) -> Filter:
    kinds = {kind.name for kind, _ in request.targets.named} or {kind.name for kind in request.targets.kinds or ()}
    only = next(iter(kinds)) if len(kinds) == 1 else None
    return Filter(only, request.namespace, request.labels, request.fields)


def _wanted(request: Request, document: Document) -> bool:
    if request.targets.named:
        return any(
            document["kind"] == kind.name and document["metadata"]["name"] == name
            for kind, name in request.targets.named
        )
    return request.targets.kinds is None or any(document["kind"] == kind.name for kind in request.targets.kinds)


@dataclass(slots=True)
class Printer:
    """Prints each version of each resource once, whether it comes from a list or from a change."""

    request: Request
    output: str
    revision: int | None = None
    versions: dict[Identity, str] = field(default_factory=dict[Identity, str])
    widths: list[int] | None = None

    def listing(self, documents: Sequence[Document]) -> None:
        """A list, the first or a later one: prints what is new, changed or gone since the last look."""
        first = not self.versions and self.widths is None
        present = {_identity(document): document for document in documents}
        gone = [identity for identity in self.versions if identity not in present]
        news = [d for i, d in present.items() if self.versions.get(i) != _version(d)]
        self._print([("" if first else "created" if _identity(d) not in self.versions else "updated", d) for d in news])
        self._print([("deleted", _tombstone(identity)) for identity in gone])
        self.versions = {identity: _version(document) for identity, document in present.items()}

    def change(self, change: Change) -> None:
        identity = _identity(change.document)
        known = self.versions.get(identity, "")
        if known.isdecimal() and change.revision <= int(known):
            return  # it was in the list already
        if change.action == "deleted":
            self.versions.pop(identity, None)
        else:
            self.versions[identity] = _version(change.document)
        self._print([(change.action, change.document)])

    def _print(self, news: Sequence[tuple[str, Document]]) -> None:
        if not news:
            return
        match self.output:
            case "json":
                for action, document in news:
                    out(safe_json({"change": action or "listed", "object": document}, indent=None))
            case "yaml":
                for _, document in news:
                    out(f"---\n{as_yaml([document])}")
            case "name":
                for _, document in news:
                    out(ref_of(document))
            case _:
                self._rows(news)

    def _rows(self, news: Sequence[tuple[str, Document]]) -> None:
        wide, namespaced, mixed = self.output == "wide", self.request.namespace is None, self.request.mixed
        kind = _MIXED if mixed else find_kind(news[0][1]["kind"])
        now = datetime.now(UTC)
        rows = [
            [
                action,
                *row_of(
                    kind,
                    document,
                    wide=wide,
                    namespaced=namespaced,
                    now=now,
                    prefix=f"{word_of(document['kind'])}/" if mixed else "",
                ),
            ]
            for action, document in news
        ]
        headings = ["CHANGE", *headings_of(kind, wide=wide, namespaced=namespaced)]
        widths = widths_of(headings, rows)
        if self.widths is None:
            self.widths = [max(width, 7) for width in widths]
            out(table(headings, [headings], widths=self.widths))
        self.widths = [max(old, new) for old, new in zip(self.widths, widths, strict=True)]
        out(table(headings, rows, widths=self.widths))


def _identity(document: Document) -> Identity:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]


def _version(document: Document) -> str:
    return str(document["metadata"].get("resourceVersion", ""))


def _tombstone(identity: Identity) -> Document:
    kind, namespace, name = identity
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
