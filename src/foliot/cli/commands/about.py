"""`foliot version` and `foliot config show`: what runs here, and with which settings."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

import click

from foliot.cli import complete
from foliot.cli.commands.contexts import (
    current_context,
    delete_context,
    get_contexts,
    set_context,
    use_context,
)
from foliot.cli.invocation import current
from foliot.cli.reach import remote, run
from foliot.cli.show.output import API_VERSION, as_json, output_option, word_of
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.resources.kinds import KINDS, find_kind
from foliot.version import __version__


@click.command()
@output_option("text", "json", default="text", help="text or json.")
def version(output: str) -> None:
    """Show the version of Foliot, of Python, and of the manifests it reads; with --server also that of the server."""

    # Only when it is asked for on the line: who wants to know what is installed does not want to wait for a server.
    asked = "server" in current().flags or "context" in current().flags
    server = run(_server_version()) if asked else None
    if output == "json":
        facts = {"foliot": __version__, "python": platform.python_version(), "apiVersion": API_VERSION}
        out(as_json({**facts, **({"server": server} if server else {})}))
    else:
        out(f"foliot {__version__} (Python {platform.python_version()}, manifests {API_VERSION})")
        if server:
            out(f"server {server} at {current().settings().server}")


async def _server_version() -> str:
    async with remote() as client:
        return await client.version()


@click.command()
@output_option("table", "json", default="table", help="table or json.")
def capabilities(output: str) -> int:
    """List the capabilities of this installation, or of the server, for programs that ask before they try.

    Names are stable.
    """
    found = run(_capabilities())
    if output == "json":
        out(as_json([{"id": name, "enabled": enabled, "description": text} for name, enabled, text in found]))
    else:
        rows = [[name, "yes" if enabled else "no", text] for name, enabled, text in found]
        out(table(["CAPABILITY", "HERE", "WHAT"], rows))
    return 0


async def _capabilities() -> list[tuple[str, bool, str]]:
    if current().settings().server is None:  # no store is opened: capabilities are those of what is installed
        from foliot.runtime.tools import listed_capabilities

        return [(each["id"], each["enabled"], each["description"]) for each in listed_capabilities()]

    async with remote() as client:
        return [(each.id, each.enabled, each.description) for each in await client.capabilities()]


@click.group()
def config() -> None:
    """Show settings. They come from flags, the environment, the context in use and config.toml, in this order.

    A context names a server that commands are asked of, as with kubectl. Naming a server (--server, FOLIOT_SERVER) or
    a store (--store, FOLIOT_STORE) is stronger than the context in use.
    """


@config.command()
@output_option("table", "json", default="table", help="table or json.")
def show(output: str) -> None:
    """Show every setting, its value, and where the value came from."""
    rows = [(name, str(value), origin) for name, value, origin in current().settings().explain()]
    if output == "json":
        out(as_json({name: {"value": value, "origin": origin} for name, value, origin in rows}))
    else:
        out(table(["SETTING", "VALUE", "FROM"], [list(row) for row in rows]))


for _command in (get_contexts, current_context, use_context, set_context, delete_context):
    config.add_command(_command)


# --- completion ------------------------------------------------------------------------------------------------------

# `foliot completion`: a script that teaches the shell our commands, kinds and names.

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a completion script.

    \b
    bash   foliot completion bash > ~/.local/share/bash-completion/completions/foliot
    zsh    foliot completion zsh > "${fpath[1]}/_foliot"
    fish   foliot completion fish > ~/.config/fish/completions/foliot.fish
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None, "SHELLS holds only what click knows"
    script = found(root, {}, "foliot", "_FOLIOT_COMPLETE")
    # `source` of bash would start bash to look at its version; the text itself needs no shell.
    out(script.source_template % script.source_vars())


# --- schema ----------------------------------------------------------------------------------------------------------

# `foliot schema`: JSON Schemas of the kinds, so that editors complete and check manifests.


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
