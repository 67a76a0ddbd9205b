"""`foliot describe`: one resource for a person to read, with what it uses, what uses it, and what changed last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, cast

import click

from foliot.catalog.declared import declared, key_of
from foliot.cli import complete
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, as_yaml, output_option, word_of
from foliot.cli.show.tables import since, table
from foliot.cli.targets import parse_targets
from foliot.cli.terminal import out, paint
from foliot.common.pages import read_pages
from foliot.common.text import one_line
from foliot.errors import Gone, NotFound, UsageError
from foliot.resources.names import MANAGED_BY
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.runtime.groups.groups import StoreGroups
from foliot.store.base import Change, Document, Filter, Key, Requirement

LOOKED_AT: Final = 10_000
CHANGES: Final = 5
HISTORY: Final = 50_000
PATIENCE: Final = 2.0


@click.command()
@click.argument("what", nargs=-1, metavar="KIND NAME… | KIND/NAME…", shell_complete=complete.targets)
@output_option("text", "json", "yaml", default="text", help="text, json or yaml.")
def describe(what: tuple[str, ...], output: str) -> int:
    """Show one resource, what it uses, what uses it, and what changed last."""
    targets = parse_targets(what, verb="describe")
    if not targets.named:
        raise UsageError("`foliot describe` needs a name.", hint=f"`foliot get {what[0]}` lists them.")
    return run(_describe([(kind.name, name) for kind, name in targets.named], output))


async def _describe(named: Sequence[tuple[str, str]], output: str) -> int:
    space = namespace()
    async with connected() as client:
        for number, (kind, name) in enumerate(named):
            document = await client.resources.get(kind, name, namespace=space)
            if number and output == "text":
                out(f"\n{'─' * 40}\n")
            out(await _text_of(client, document) if output == "text" else _machine(document, output))
    return 0


def _machine(document: Document, output: str) -> str:
    return as_json(document) if output == "json" else as_yaml([document])


async def _text_of(client: StoreGroups, document: Document) -> str:
    now = datetime.now(UTC)
    parts = [_header(document, now), _block("Spec", document.get("spec")), _block("Status", document.get("status"))]
    parts.append(await _uses(client, document))
    parts.append(await _used_by(client, document))
    parts.append(await _changes(client, document, now))
    return "\n\n".join(part for part in parts if part)


_PAIRS: Final = ("Labels", "Annotations")


def _header(document: Document, now: datetime) -> str:
    metadata: dict[str, Any] = document["metadata"]
    annotations: dict[str, str] = dict(metadata.get("annotations") or {})
    managed = annotations.pop(MANAGED_BY, "")
    labels: dict[str, str] = metadata.get("labels") or {}
    rows = [
        ("Name", metadata["name"]),
        ("Namespace", metadata["namespace"]),
        ("Kind", f"{document['kind']} ({document.get('apiVersion', '')})"),
        ("Labels", _pairs(labels)),
        ("Annotations", _pairs(annotations)),
        ("Created", f"{metadata.get('createdAt', '-')} ({_ago(metadata.get('createdAt'), now)})"),
        ("Version", f"{metadata.get('resourceVersion', '-')} (generation {metadata.get('generation', '-')})"),
        ("Managed by", one_line(managed)),
    ]
    return "\n".join(
        f"{paint(f'{label}:'.ljust(13), bold=True)} {value if label in _PAIRS else one_line(value)}"
        for label, value in rows
        if value
    )


def _pairs(values: dict[str, str]) -> str:
    return ("\n" + " " * 14).join(
        f"{one_line(str(key))}={one_line(str(value))}" for key, value in sorted(values.items())
    )


def _ago(time: object, now: datetime) -> str:
    text = since(time, now=now)
    return text if text == "-" else f"{text} ago"


def _block(title: str, value: Any) -> str:
    if not value:
        return ""

    return _titled(title, dump_yaml(value).rstrip("\n").splitlines())


def _titled(title: str, lines: Sequence[str]) -> str:
    return "\n".join([paint(f"{title}:", bold=True), *(f"  {line}" if line else "" for line in lines)])


async def _uses(client: StoreGroups, document: Document) -> str:
    from foliot.catalog.checks import uses

    rows: list[list[str]] = []
    for key, field in uses(document):
        try:
            await client.resources.get(key.kind, key.name, namespace=key.namespace)
            found = "found"
        except NotFound:
            found = "missing"
        rows.append([_ref(key, document), field, found])
    return _titled("Uses", table(["", "", ""], rows).splitlines()[1:]) if rows else ""


async def _used_by(client: StoreGroups, document: Document) -> str:
    from foliot.catalog.checks import uses

    me = key_of(document)
    lines: list[str] = []
    seen = 0
    async for page in read_pages(client.resources.list, Filter(), limit=500):
        for other in page.items:
            lines += [f"{_ref(key_of(other), document)}  ({field})" for key, field in uses(other) if key == me]
        seen += len(page.items)
        if seen >= LOOKED_AT and page.cursor is not None:
            lines.append(f"(looked at the first {seen} resources only)")
            break
    return _titled("Used by", list(dict.fromkeys(lines))) if lines else ""


def _ref(key: Key, document: Document) -> str:
    elsewhere = "" if key.namespace == document["metadata"]["namespace"] else f" in {key.namespace}"
    return f"{word_of(key.kind)}/{key.name}{elsewhere}"


async def _changes(client: StoreGroups, document: Document, now: datetime) -> str:
    changes = await _history(client, document)
    if not changes:
        return ""
    rows: list[list[str]] = []
    for before, change in zip([None, *changes], changes, strict=False):
        when = _ago(change.document["metadata"].get("updatedAt"), now)
        rows.append([str(change.revision), when, change.action, _what_changed(before, change)])
    return _titled("Last changes", table(["", "", "", ""], rows[-CHANGES:]).splitlines()[1:])


async def _history(client: StoreGroups, document: Document) -> list[Change]:
    """Returns the changes that the store still keeps, oldest first; those far back are not worth the reading."""
    metadata = document["metadata"]
    last = int(metadata.get("resourceVersion") or 0)
    only = (Requirement("metadata.name", "=", (metadata["name"],)),)
    filter = Filter(document["kind"], metadata["namespace"], fields=only)
    for start in (max(0, last - HISTORY), last - 1):
        with suppress(TimeoutError, Gone):  # its past is an extra: what is no longer kept is not an error
            return await _changes_from(client, filter, start, last)
    return []


async def _changes_from(client: StoreGroups, filter: Filter, start: int, last: int) -> list[Change]:
    changes: list[Change] = []
    async with asyncio.timeout(PATIENCE):
        async for change in client.resources.watch(filter, after=start):
            changes.append(change)
            if change.revision >= last:
                break
    return changes


def _what_changed(before: Change | None, change: Change) -> str:
    if change.action != "updated" or before is None:
        return ""
    old, new = declared(before.document), declared(change.document)
    paths = [path for path in _different(old, new, "") if path]
    if not paths and before.document.get("status") != change.document.get("status"):
        paths = ["status"]
    shown = ", ".join(paths[:4])
    return f"{shown} and {len(paths) - 4} more" if len(paths) > 4 else shown


def _different(old: Any, new: Any, path: str) -> list[str]:
    """The smallest fields that differ, as dotted paths, at most three steps deep."""
    if old == new:
        return []
    if not isinstance(old, dict) or not isinstance(new, dict) or path.count(".") >= 2:
        return [path]
    was, now = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
    found: list[str] = []
    for key in dict.fromkeys([*was, *now]):
        found += _different(was.get(key), now.get(key), f"{path}.{key}" if path else key)
    return found
