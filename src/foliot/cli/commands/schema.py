"""`foliot schema`: JSON Schemas of the kinds, so that editors complete and check manifests."""

from __future__ import annotations

from pathlib import Path

import click

from foliot.cli import complete
from foliot.cli.output import as_json, word_of
from foliot.cli.terminal import out
from foliot.resources.kinds import KINDS, find_kind


@click.command()
@click.argument("kind", required=False, shell_complete=complete.kinds)
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write one file for each kind, and foliot.schema.json for all of them, into this folder.",
)
def schema(kind: str | None, folder: Path | None) -> None:
    """Print the JSON Schema of one kind, or one that accepts every kind.

    \b
    An editor with YAML support takes it with a first line in the manifest, for example
    # yaml-language-server: $schema=./schemas/foliot.schema.json
    """
    from foliot.resources.schema import bundle_schema, json_schema

    if folder is None:
        out(as_json(json_schema(kind) if kind else bundle_schema()))
        return
    kinds = [find_kind(kind)] if kind else list(KINDS.values())
    texts = {f"{word_of(each.name)}.schema.json": json_schema(each.name) for each in kinds}
    if kind is None:
        texts["foliot.schema.json"] = bundle_schema()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (folder / name).write_text(as_json(content) + "\n", encoding="utf-8")
        out(folder / name)
