"""`foliot completion`: a script that teaches the shell our commands, kinds and names."""

from __future__ import annotations

from typing import Final

import click

from foliot.cli.terminal import out

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
