"""What documents name, held against the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foliot.catalog.declared import key_of
from foliot.errors import InvalidInput, NotFound
from foliot.store.base import Document, Key, ResourceStore


def handle_of(document: Document) -> str:
    """What stands in place of a file in findings that are made where no file is known. Names exactly one resource."""
    key = key_of(document)
    return f"{key.kind}/{key.name} in {key.namespace}"


def uses(document: Document) -> Iterator[tuple[Key, str]]:
    """Everything that a normalised document refers to, each once, with the field that does."""
    from foliot.resources.problems import render_path
    from foliot.resources.references import references

    seen: set[Key] = set()
    for reference in references(document):
        key = Key(reference.kind, reference.namespace, reference.name)
        if key not in seen:
            seen.add(key)
            yield key, render_path(reference.path)


async def check_against_store(store: ResourceStore, documents: Sequence[Document]) -> list[str]:
    """Warnings about references, in sentences. Raises `ManifestError` when one of them cannot be, and `Denied` when
    one needs a grant of another namespace: what is there is not told to whoever may not name it.

    Its findings carry `handle_of` as their file: whoever knows the files puts them there.
    """
    from foliot.catalog.checks import check_documents
    from foliot.engine.references import check_declared
    from foliot.resources.problems import Finding, ManifestError

    await check_declared(store, documents)
    stored = await _referenced(store, documents)

    def find(kind: str, namespace: str, name: str) -> Document | None:
        return stored.get(Key(kind, namespace, name))

    findings = [
        Finding(problem, handle_of(documents[index]), kind=documents[index]["kind"], name=key_of(documents[index]).name)
        for index, problem in check_documents(documents, find)
    ]
    if any(finding.severity == "error" for finding in findings):
        raise ManifestError(findings)
    return [f"{finding.file}: {finding.problem}" for finding in findings]


async def _referenced(store: ResourceStore, documents: Sequence[Document]) -> dict[Key, Document]:
    """The stored resources that the documents name and do not bring along."""
    given = {key_of(document) for document in documents}
    wanted = {key for document in documents for key, _ in uses(document)} - given
    # A tool named server--tool may come from the MCP server, which is therefore looked for as well.
    servers = {Key("McpServer", key.namespace, key.name.partition("--")[0]) for key in wanted if "--" in key.name}
    found: dict[Key, Document] = {}
    for key in sorted(wanted | servers - given):
        try:
            found[key] = await store.get(key)
        except (NotFound, InvalidInput):  # what cannot be a name is nobody's
            continue
    return found
