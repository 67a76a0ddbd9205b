"""Documents in the format that was asked for: a table for people, JSON, YAML and names for programs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, TypeVar, cast

import click

from foliot.cli.show.tables import headings_of, row_of, table
from foliot.common.text import safe_json
from foliot.resources.kinds import find_kind
from foliot.store.base import Document

F = TypeVar("F", bound=Callable[..., Any])

API_VERSION: Final = "foliot.dev/v1"


def output_option(*formats: str, default: str, help: str) -> Callable[[F], F]:
    """`-o/--output` with these formats, given to the command as `output`."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=default, show_default=True, metavar="FORMAT", help=help
    )


def json_option(help: str, *, name: str = "as_json") -> Callable[[F], F]:
    """`-o json` for a command whose other output is for people; the command gets whether it was asked for as `name`.

    `--json` is its older spelling, which scripts may use.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def called(*args: Any, output: str, json_: bool, **options: Any) -> Any:
            return command(*args, **{name: json_ or output == "json"}, **options)

        older = click.option("--json", "json_", is_flag=True, hidden=True)(called)
        return cast("F", output_option("text", "json", default="text", help=help)(older))

    return decorate


def word_of(kind: str) -> str:
    """`AgentSystem` as people write it before a slash: `agent-system`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()


def ref_of(document: Document) -> str:
    """`agent-system/report`: the short name of a resource, accepted wherever a kind and a name are."""
    return f"{word_of(document['kind'])}/{document['metadata']['name']}"


def as_json(value: Any) -> str:
    return safe_json(value)


def as_yaml(documents: Sequence[Document]) -> str:
    """Documents separated by `---`, ready for `foliot apply -f -`."""
    from foliot.resources.syntax.yaml_text import dump_yaml

    return "---\n".join(dump_yaml(document) for document in documents).rstrip("\n")


def as_list(documents: Sequence[Document]) -> Document:
    return {"apiVersion": API_VERSION, "kind": "List", "items": list(documents)}


def render(documents: Sequence[Document], output: str, *, single: bool, namespaced: bool, prefixed: bool) -> str:
    """The text of `documents` (at least one, or a list) in one of the formats.

    `single` is a get of exactly one by name: JSON is then the object itself. `namespaced` adds the NAMESPACE column,
    `prefixed` puts the kind before the name where kinds are mixed.
    """
    match output:
        case "json":
            return as_json(documents[0] if single else as_list(documents))
        case "yaml":
            return as_yaml(documents)
        case "name":
            return "\n".join(ref_of(document) for document in documents)
        case _:
            return tables(documents, wide=output == "wide", namespaced=namespaced, prefixed=prefixed)


def tables(documents: Sequence[Document], *, wide: bool, namespaced: bool, prefixed: bool) -> str:
    """One table for each kind, in the order given, an empty line between."""
    now = datetime.now(UTC)
    texts: list[str] = []
    for name, group in groupby(documents, key=lambda document: str(document["kind"])):
        kind = find_kind(name)
        prefix = f"{word_of(name)}/" if prefixed else ""
        rows = [row_of(kind, each, wide=wide, namespaced=namespaced, now=now, prefix=prefix) for each in group]
        texts.append(table(headings_of(kind, wide=wide, namespaced=namespaced), rows))
    return "\n\n".join(texts)
