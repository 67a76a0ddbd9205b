"""Manifests to resources: every file, every document, every problem at once, each with its place.

    bundle = read_manifests(["agents/", "-"], stdin=sys.stdin.buffer)
    bundle.raise_for_errors()
    documents = [loaded.document for loaded in bundle.items]

Called by the command line and the client. Files that are good are returned beside findings about those that are not;
whoever applies them decides, usually by `raise_for_errors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final, TypeAlias, cast

from foliot.resources.base import Resource
from foliot.resources.kinds import kind_of
from foliot.resources.names import snake
from foliot.resources.presets import names_folders, with_presets
from foliot.resources.problems import Finding, Path, Problem, manifest_error
from foliot.resources.syntax.json_nodes import looks_like_json, parse_json
from foliot.resources.syntax.loose_texts import with_source_texts
from foliot.resources.syntax.manifest_files import STDIN, SourceFile, read_sources, shown
from foliot.resources.syntax.places import Flaw, Parsed, ParsedDocument, Places, UnreadableText
from foliot.resources.syntax.source_text import decode
from foliot.resources.syntax.yaml import parse_yaml
from foliot.resources.validate import validated
from foliot.resources.wording import WRITTEN_AS, written_as

# What `kubectl get -o json` and its like wrap several resources in.
_LIST_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata", "items"})
_LONGEST_SHOWN: Final = 40
_MANIFEST: Final = "a mapping with apiVersion, kind, metadata and spec"
Complete: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A resource that was read. `document` is in normal form; `index` counts the resources of one file from 0."""

    document: dict[str, Any]
    resource: Resource[Any, Any]
    file: str
    index: int
    places: Places
    within: Path = ()

    @property
    def line(self) -> int:
        """The line on which it begins in its file, from 1."""
        return self.places.of_value(self.within)[0]

    @property
    def given(self) -> dict[str, Any]:
        """Return the manifest without defaults, as apply takes it.

        It is in normal form; in the words of its author where these are kept (see `written_as`).
        """
        given = self.resource.given()
        return {**given, **self.written} if self.written else given

    @property
    def written(self) -> dict[str, Any]:
        """Return the part that is kept in the words of its author, see `written_as`."""
        return self.document["metadata"].get(WRITTEN_AS) or {}

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, namespace and name: what may stand only once."""
        metadata = self.document["metadata"]
        return self.document["kind"], metadata["namespace"], metadata["name"]

    def place(self, problem: Problem) -> Finding:
        """`problem`, found later about this resource, at its place in the file; any spelling of its path will do."""
        kind, _, name = self.key
        return _placed(problem, self.file, self.places, self.within, kind, name)


@dataclass(slots=True)
class Bundle:
    """Everything that was read, and everything there is to say about it, in the order of files and lines."""

    items: list[Loaded] = field(default_factory=list["Loaded"])
    findings: list[Finding] = field(default_factory=list["Finding"])

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [loaded.document for loaded in self.items]

    @property
    def given(self) -> list[dict[str, Any]]:
        """Return each manifest without defaults, see `Loaded.given`."""
        return [loaded.given for loaded in self.items]

    def raise_for_errors(self) -> None:
        """Raise `ManifestError` with every finding, unless there are only warnings."""
        if self.errors:
            raise manifest_error(self.findings)


def read_manifests(
    sources: Sequence[str | os.PathLike[str]],
    *,
    stdin: BinaryIO | None = None,
    recursive: bool = True,
    namespace: str | None = None,
) -> Bundle:
    """Read files, directories and standard input ("-"). Never raises for what they hold.

    `namespace` is for the resources that name none themselves.
    """
    reading = _Reading(namespace)
    for source in read_sources(sources, stdin=stdin, recursive=recursive):
        if isinstance(source, Finding):
            reading.bundle.findings.append(source)
        else:
            reading.take_bytes(source, folder=os.path.dirname(source.file) or os.curdir)
    return reading.bundle


def parse_text(
    text: str | bytes, file: str = STDIN, *, namespace: str | None = None, complete: Complete | None = None
) -> Bundle:
    """Reads manifests from text or bytes in memory; `read_manifests` reads files.

    `complete` adds to a manifest in JSON what its writer has said elsewhere, before it is checked.
    """
    reading = _Reading(namespace, complete)
    if isinstance(text, bytes):
        reading.take_bytes(SourceFile(shown(file), text))
    else:
        reading.take_text(text.removeprefix("\ufeff"), shown(file), named=True)
    return reading.bundle


def parse_manifests(text: str | bytes, *, namespace: str | None = None) -> list[dict[str, Any]]:
    """Returns the documents in YAML or JSON text, checked, and without the defaults: as `resources.apply` takes them.

    Raises `ManifestError` with every problem.
    """
    bundle = parse_text(text, namespace=namespace)
    bundle.raise_for_errors()
    return [item.given for item in bundle.items]


class _Reading:
    """One call of the reader. Remembers what was declared where, across files."""

    def __init__(self, namespace: str | None, complete: Complete | None = None) -> None:
        self.bundle = Bundle()
        self._namespace = namespace
        self._complete = complete
        self._declared: dict[tuple[str, str, str], Loaded] = {}
        # Where the manifest at hand lies; what comes over the network lies nowhere, and no file is read for it.
        self._folder: str | None = None

    def take_bytes(self, source: SourceFile, *, folder: str | None = None) -> None:
        self._folder = folder
        try:
            text = decode(source.data)
        except UnreadableText as unreadable:
            self.bundle.findings.append(_of_flaw(unreadable.flaw, source.file))
            return
        self.take_text(text, source.file, named=source.named)

    def take_text(self, text: str, file: str, *, named: bool) -> None:
        parsed = _parse(text, file)
        completes = self._complete is not None and looks_like_json(text)
        findings = [_of_flaw(flaw, file) for flaw in parsed.flaws]
        broken = {(flaw.line, flaw.column) for flaw in parsed.flaws}
        index = 0
        for document in parsed.documents:
            for raw, within, problems in _resources_of(document):
                told = [_placed(p, file, document.places, within, None, None) for p in problems]
                if raw is not None:
                    if completes and self._complete is not None and not document.flawed:
                        raw = self._complete(raw)
                    told += self._take_resource(raw, document, within, file, index)
                    index += 1
                # What is wrong with the text at a place makes what it means there pointless.
                findings += [finding for finding in told if (finding.line, finding.column) not in broken]
        if not parsed.documents and not parsed.flaws:
            findings.append(_nothing_in(text, file, named=named))
        findings.sort(key=lambda finding: (finding.line or 0, finding.column or 0))
        self.bundle.findings += findings

    def _take_resource(
        self, raw: dict[str, Any], source: ParsedDocument, within: Path, file: str, index: int
    ) -> list[Finding]:
        places = source.places
        told: list[Finding] = []
        if self._folder is not None and names_folders(raw):
            spec, problems, told = with_presets(raw["spec"], self._folder)
            told += [_placed(p, file, places, within, *_identity(raw)) for p in problems]
            raw = {**raw, "spec": spec}
        if source.rewritten and isinstance(word := raw.get("kind"), str) and (kind := kind_of(word)) is not None:
            raw = with_source_texts(kind.model(), raw, places.entry(within))
        resource, problems = validated(_in_namespace(raw, self._namespace))
        findings = told + [_placed(p, file, places, within, *_identity(raw)) for p in problems]
        if resource is None or source.flawed:
            return findings
        document = _as_said(resource.model_dump(by_alias=True), raw)
        loaded = Loaded(document, resource, file, index, places, within)
        first = self._declared.setdefault(loaded.key, loaded)
        if first is not loaded:
            kind, namespace, name = loaded.key
            message = f"{kind}/{name} in namespace {namespace!r} is declared twice"
            hint = f"it is first declared in {first.file}:{first.line}; remove or rename one of them"
            findings.append(loaded.place(Problem(("metadata", "name"), message, hint)))
            return findings
        self.bundle.items.append(loaded)
        return findings


def _parse(text: str, file: str) -> Parsed:
    if file.lower().endswith(".json"):
        return parse_json(text)
    if looks_like_json(text):
        parsed = parse_json(text)
        if parsed.documents or parsed.exhausted:
            return parsed
    return parse_yaml(text)


def _resources_of(document: ParsedDocument) -> Iterator[tuple[dict[str, Any] | None, Path, list[Problem]]]:
    """The resources of one document, a List taken apart; in place of one that cannot be, what is wrong with it."""
    value = cast("object", document.value)
    if not isinstance(value, dict):
        hint = "separate several manifests by lines with '---'" if isinstance(value, list) else None
        yield None, (), [Problem((), f"this is {_a(cast('object', value))}, not a manifest", hint, _MANIFEST)]
        return
    mapping = cast("dict[str, Any]", value)
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind.lower() != "list":
        yield mapping, (), []
        return
    for key in mapping:
        if key not in _LIST_FIELDS:
            yield None, (), [Problem((key,), f"unknown field in a List: {key}", expected="items", at="key")]
    items = mapping.get("items")
    if not isinstance(items, list):
        yield None, (), [Problem(("items",), "a List needs items", expected="a list of manifests")]
        return
    for index, item in enumerate(cast("list[Any]", items)):
        if isinstance(item, dict):
            yield cast("dict[str, Any]", item), ("items", index), []
        else:
            yield None, (), [Problem(("items", index), f"this is {_a(item)}, not a manifest", expected=_MANIFEST)]


def _in_namespace(raw: dict[str, Any], namespace: str | None) -> dict[str, Any]:
    metadata = raw.get("metadata")
    if namespace is None or not isinstance(metadata, dict):
        return raw
    given = cast("dict[str, Any]", metadata)
    return raw if given.get("namespace") else raw | {"metadata": given | {"namespace": namespace}}


def _as_said(document: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """The document with what is kept of its author's words. What it says of them itself is never taken."""
    if written := written_as(raw):
        document["metadata"][WRITTEN_AS] = written
    else:
        document["metadata"].pop(WRITTEN_AS, None)
    return document


def _identity(raw: dict[str, Any]) -> tuple[str | None, str | None]:
    metadata = raw.get("metadata")
    name = cast("dict[str, Any]", metadata).get("name") if isinstance(metadata, dict) else None
    kind = raw.get("kind")
    return (kind if isinstance(kind, str) else None), (name if isinstance(name, str) else None)


def _placed(problem: Problem, file: str, places: Places, within: Path, kind: str | None, name: str | None) -> Finding:
    path = places.spelled(within + problem.path, snake)
    line, column = places.of_key(path) if problem.at == "key" else places.of_value(path)
    if problem.expected == "a string" and (written := places.written(path)):
        problem = replace(problem, hint=_as_text(written, path, kind))
    return Finding(problem, file, line, column, kind, name)


def _as_text(written: str, path: Path, kind: str | None) -> str:
    if kind is not None and kind.strip().lower() == "secret" and tuple(path[:2]) == ("spec", "data"):
        return "put it under stringData, in quotes: what is under data is base64"
    return f"put it in quotes{_quoted(written, path, kind)}"


def _quoted(written: str, path: Path, kind: str | None) -> str:
    """The words to write, where they cannot be a secret."""
    secret = kind is None or kind.strip().lower() == "secret" or any("secret" in str(step).lower() for step in path)
    return "" if secret or len(written) > _LONGEST_SHOWN else f': "{written}"'


def _of_flaw(flaw: Flaw, file: str) -> Finding:
    return Finding(Problem(flaw.path, flaw.message, flaw.hint), file, flaw.line, flaw.column)


def _nothing_in(text: str, file: str, *, named: bool) -> Finding:
    """An empty file somebody named is a mistake; one that lies in a directory of manifests may well be meant."""
    message = (
        "there is no manifest here, only comments" if text.strip() else "there is no manifest here, the file is empty"
    )
    return Finding(Problem((), message, severity="error" if named else "warning"), file, 1, 1)


def _a(value: object) -> str:
    match value:
        case list():
            return "a list"
        case str():
            return "text"
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case _:
            return "a mapping"
