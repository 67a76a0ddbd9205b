"""Every command has its place in the table of docs/cli.md, and those of the machine of the store keep to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from foliot.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
NOWHERE = "http://127.0.0.1:9"
# What has to be typed besides, so that the command gets as far as asking where the store is.
ARGUMENTS = {
    "webhook sign": ["push"],
    "mcp sync": ["files"],
    "models check": ["main"],
    "backup": ["another"],
    "restore": ["copy"],
    "audit prune": ["--before", "90d", "-y"],
    "secrets replace-lost-key": ["0123abcd", "--yes"],
    "users create": ["ann", "--admin", "--password-stdin"],
    "users grant": ["ann", "--role", "reader"],
    "users reset": ["ann", "--password-stdin"],
    "users disable": ["ann"],
    "users enable": ["ann"],
    "worker": ["--once"],
}


def rows() -> list[list[str]]:
    """The commands that work on the store or a server, on the store only, and on neither."""
    table = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [
        [name for cell, place in table if place.strip() == where for name in re.findall(r"`([a-z- ]+)`", cell)]
        for where in ("the store, or a server", "the store only", "neither")
    ]


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    if command.invoke_without_command and path:
        yield " ".join(path)
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        if not found.hidden:  # an older name of another command
            yield from commands(found, (*path, name))


def test_every_command_has_one_place_in_the_table() -> None:
    listed = [name for row in rows() for name in row]

    assert sorted(listed) == sorted(commands())


@pytest.mark.parametrize("words", rows()[1])
def test_what_is_of_the_machine_of_the_store_says_so_when_a_server_is_asked_for(foliot, home, tmp_path, words) -> None:
    (tmp_path / "copy").write_bytes(b"")

    said = foliot(
        "--server", NOWHERE, *words.split(), *ARGUMENTS.get(words, []), stdin="correct horse battery staple\n"
    )

    assert said.code == 2, said
    assert re.search(r"machine|the store itself", said.err), said.err
    assert "hint: " in said.err
    assert not (home / "foliot.db").exists()
