"""`foliot get`: list resources, show some by name, watch them change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import click

from foliot.cli import complete
from foliot.cli.errors import say, tell
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import output_option, render
from foliot.cli.targets import Targets, parse_targets
from foliot.cli.terminal import out
from foliot.common.pages import read_pages
from foliot.errors import NotFound, UsageError
from foliot.resources.wording import as_written
from foliot.runtime.groups.groups import StoreGroups
from foliot.store.base import Document, Filter, Requirement

PAGE = 500


@dataclass(frozen=True, slots=True)
class Request:
    """The resources to list: `namespace` is None for all of them."""

    targets: Targets
    namespace: str | None
    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]
    show_owners: bool = False

    @property
    def filters(self) -> list[Filter]:
        kinds = [None] if self.targets.kinds is None else [kind.name for kind in self.targets.kinds]
        return [Filter(kind, self.namespace, self.labels, self.fields) for kind in kinds]

    @property
    def mixed(self) -> bool:
        """Whether kinds are mixed in one output, so that names need their kind before them."""
        kinds = {kind.name for kind, _ in self.targets.named} if self.targets.named else self.targets.kinds
        return kinds is None or len(kinds) > 1


@click.command()
@click.argument("what", nargs=-1, metavar="KIND[,KIND…]|KIND/NAME|all [NAME…]", shell_complete=complete.targets)
@output_option(
    "table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name (kind/name lines)."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
@click.option("-l", "--selector", metavar="SELECTOR", help="Only with these labels, e.g. `tier=prod,team in (a,b)`.")
@click.option("--field-selector", metavar="SELECTOR", help="Only with these fields, e.g. `status.phase!=Ready`.")
@click.option("-w", "--watch", is_flag=True, help="Go on and print each change as it happens.")
@click.option("--show-managed-fields", "show_owners", is_flag=True, help="With who owns which field (json, yaml).")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="One page of N; all pages without it.")
@click.option("--continue", "cursor", metavar="CURSOR", help="Where the page before ended (printed with --limit).")
def get(
    what: tuple[str, ...],
    output: str,
    all_namespaces: bool,
    selector: str | None,
    field_selector: str | None,
    watch: bool,
    show_owners: bool,
    limit: int | None,
    cursor: str | None,
) -> int:
    """List resources, or show some by name.

    \b
    foliot get agents                     all agents of the namespace
    foliot get agents,tools -A            two kinds, every namespace
    foliot get agent/writer -o yaml       one, as YAML that apply takes back
    foliot get agent/writer -o yaml --show-managed-fields    and who owns which field
    foliot get all -l team=docs           everything with a label
    foliot get tasks -w                   and then each change
    """
    targets = parse_targets(what, verb="get")
    labels, fields = _selectors(selector, field_selector, [kind.name for kind in targets.kinds or ()])
    if targets.named and (selector or field_selector or all_namespaces or limit or cursor):
        raise UsageError("Names cannot be combined with -A, a selector or --limit.", hint="Give a kind alone to list.")
    if (limit or cursor) and (watch or targets.kinds is None or len(targets.kinds) > 1):
        raise UsageError("--limit and --continue page through one kind, and not together with --watch.")
    if show_owners and (output not in ("json", "yaml") or watch):
        raise UsageError("--show-managed-fields is for -o json and -o yaml, and not together with --watch.")
    request = Request(targets, None if all_namespaces else namespace(), labels, fields, show_owners)
    if watch:
        from foliot.cli.watch.resources import watch_resources

        return run(watch_resources(request, output))
    if targets.named:
        return run(_get_named(request, output))
    return run(_get_list(request, output, limit=limit, cursor=cursor))


def _selectors(
    labels: str | None, fields: str | None, kinds: Sequence[str]
) -> tuple[tuple[Requirement, ...], tuple[Requirement, ...]]:
    if not labels and not fields:
        return (), ()
    from foliot.store.resources.selectors import parse_fields, parse_labels

    return parse_labels(labels or ""), parse_fields(fields or "", kinds)


async def _get_named(request: Request, output: str) -> int:
    whole = output in ("json", "yaml") and not request.show_owners
    if whole and any(kind.name == "Task" for kind, _ in request.targets.named):
        found, missing = await _with_work(request)
    else:
        async with connected() as client:
            found, missing = await fetch_named(client, request)
    named = request.targets.named
    if found:
        single = len(named) == 1
        out(render(found, output, single=single, namespaced=False, prefixed=request.mixed))
    for error in missing:
        tell(error)
    return missing[0].exit_code if missing else 0


async def _with_work(request: Request) -> tuple[list[Document], list[NotFound]]:
    """Returns what is named, each Task whose work was accepted as the one document that tasks have everywhere."""
    from foliot.cli.runtimes import reached
    from foliot.work.views.document import task_document

    async with reached() as client:
        found, missing = await fetch_named(client, request)
        for place, document in enumerate(found):
            if document["kind"] == "Task":
                metadata = document["metadata"]
                with suppress(NotFound):  # a template, or one that was not accepted: it is as it was declared
                    story = await client.tasks.story(metadata["name"], namespace=metadata["namespace"])
                    found[place] = as_written(task_document(story))
    return found, missing


async def fetch_named(client: StoreGroups, request: Request) -> tuple[list[Document], list[NotFound]]:
    """Returns the resources found, and an error for each missing one: one wrong name must not hide the others."""
    found: list[Document] = []
    missing: list[NotFound] = []
    for kind, name in request.targets.named:
        try:
            space = request.namespace or "default"
            found.append(await client.resources.get(kind.name, name, namespace=space, show_owners=request.show_owners))
        except NotFound as error:
            missing.append(error)
    return found, missing


async def _get_list(request: Request, output: str, *, limit: int | None, cursor: str | None) -> int:
    async with connected() as client:
        if limit or cursor:
            page = await client.resources.list(
                request.filters[0], limit=limit or PAGE, cursor=cursor, show_owners=request.show_owners
            )
            documents, more = page.items, page.cursor
        else:
            documents, more = (await fetch_all(client, request.filters, show_owners=request.show_owners))[0], None
    if documents or output in ("json", "yaml"):
        text = render(documents, output, single=False, namespaced=request.namespace is None, prefixed=request.mixed)
        if text:
            out(text)
    if not documents:
        out(_nothing(request), err=True)
    if more:
        say("more", f"--continue {more}", fg="cyan")
    return 0


async def fetch_all(
    client: StoreGroups, filters: Sequence[Filter], *, show_owners: bool = False
) -> tuple[list[Document], int]:
    """Every page of every filter, and the revision behind which a watch misses nothing of them."""
    documents: list[Document] = []
    revision: int | None = None
    for filter in filters:
        async for page in read_pages(client.resources.list, filter, limit=PAGE, show_owners=show_owners):
            documents.extend(page.items)
            # The first page of all is the oldest look; what changed while we paged comes again in the watch.
            revision = page.revision if revision is None else min(revision, page.revision)
    return documents, revision or 0


def _nothing(request: Request) -> str:
    kinds = request.targets.kinds
    what = "resources" if kinds is None else ", ".join(kind.plural for kind in kinds)
    matching = " that match the selector" if request.labels or request.fields else ""
    where = f" in namespace {request.namespace}" if request.namespace is not None else " in any namespace"
    return f"No {what}{matching} found{where}."
