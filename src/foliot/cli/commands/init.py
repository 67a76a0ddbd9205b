"""`foliot init`: a small folder of manifests that work as they are, offline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from foliot.cli.terminal import out, paint
from foliot.errors import Conflict, UsageError

BLUEPRINTS: Final = {
    "agent": "one agent and a task for it",
    "pipeline": "planner → researcher → writer",
    "hierarchical": "a manager, two leads, two specialists, an editor who waits for both branches",
    "swarm-loop": "a coordinator and three scouts, round and round within a bound",
    "research-loop": "a manager and a researcher, back and forth until there is enough",
    "routing": "triage hands each letter to the desk it belongs to",
    "quorum": "three reviewers at once, and a chair whom two of them suffice",
}
PLACEHOLDER: Final = "my-project"
"""The name in the blueprint files. They are valid manifests as they stand, and tested as such."""

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "-b",
    "--blueprint",
    type=click.Choice(list(BLUEPRINTS)),
    default="agent",
    show_default=True,
    metavar="NAME",
    help="Which blueprint.",
)
@click.option("--name", metavar="NAME", help="Name of the system.  [default: the folder's name]")
@click.option("--force", is_flag=True, help="Overwrite files that are there already.")
def init(folder: Path, blueprint: str, name: str | None, force: bool) -> None:
    """Write a folder of manifests to start from. They run offline, with a model that plays a script.

    \b
    agent           one agent and a task for it
    pipeline        planner → researcher → writer
    hierarchical    manager, leads, specialists, and an editor who joins them
    swarm-loop      coordinator and scouts, round and round within a bound
    research-loop   manager and researcher, back and forth until there is enough
    routing         triage and three desks: conditions on edges
    quorum          three reviewers at once, and a chair whom two of them suffice
    """
    name = _checked(name) if name else _from_folder(folder)
    contents = {path: text.replace(PLACEHOLDER, name) for path, text in blueprint_files(blueprint)}
    there = [path for path in contents if (folder / path).exists()]
    if there and not force:
        raise Conflict(
            f"{folder / there[0]} is there already" + (f", and {len(there) - 1} more" if len(there) > 1 else "") + ".",
            hint="Choose another folder, or overwrite with --force.",
        )
    for path, text in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        out(f"  {target}")
    out(f"\n{paint(name, bold=True)} is ready: {BLUEPRINTS[blueprint]}. Next:\n")
    first = f'run -f {folder} "Three lines on clocks"' if blueprint == "agent" else f"task run -f {folder}"
    then = f"task run -f {folder}" if blueprint == "agent" else f"describe agent-system {name}"
    out(f"  foliot {first}\n  foliot validate -f {folder}\n  foliot apply -f {folder}\n  foliot {then}")


def blueprint_files(blueprint: str) -> Iterator[tuple[str, str]]:
    """Relative path and text of each file of a blueprint, as packaged."""
    yield from _walk(files("foliot.cli") / "blueprints" / blueprint, "")


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_text(encoding="utf-8")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a name.",
            hint="Use lower-case letters, digits and dashes, such as `weekly-report`.",
        )
    return name


def _from_folder(folder: Path) -> str:
    """`Weekly Report/` gives weekly-report."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:50].strip("-")
    if not name:
        raise UsageError(f"No name can be made of the folder {str(folder)!r}.", hint="Give one with --name.")
    return name
