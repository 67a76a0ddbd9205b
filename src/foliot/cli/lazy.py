"""A group of commands that knows their names and one-line helps without loading any of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from foliot.cli.errors import ReaderLeft, exit_code_of
from foliot.cli.invocation import Invocation, global_options
from foliot.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: where it is (`module:attribute`), what it does in a few words, and what else people call it."""

    target: str
    help: str
    also: tuple[str, ...] = ()


class LazyGroup(click.Group):
    """`sections` are (title, {name: Verb}) in the order in which the help shows them."""

    def __init__(self, *args: Any, sections: Sequence[tuple[str, Mapping[str, Verb]]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.verbs: dict[str, Verb] = {name: verb for _, verbs in sections for name, verb in verbs.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return None
        if cmd_name not in self.commands:
            module, _, attribute = self.verbs[cmd_name].target.partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            add_global_options(command)
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.verbs and not ctx.resilient_parsing:
            self._refuse(ctx, word)
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: click.Context, word: str) -> NoReturn:
        near = suggest(word, self.verbs)
        hint = f"Did you mean {' or '.join(f'`{ctx.command_path} {name}`' for name in near)}?" if near else None
        raise UsageError(
            f"There is no command `{ctx.command_path} {word}`.",
            hint=hint or f"`{ctx.command_path} --help` lists the commands.",
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.verbs))
        for title, verbs in self.sections:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), verb.help) for name, verb in verbs.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first: they are what a newcomer looks for."""
        self.format_commands(ctx, formatter)
        records = [record for p in self.get_params(ctx) if (record := p.get_help_record(ctx)) and record[1]]
        with formatter.section("Options (before or after the command)"):
            formatter.write_dl(records)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=verb.help) for name, verb in self.verbs.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """As click's own, which would answer a broken pipe with the exit code of an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """As click's own, but every error is told in Foliot's way and gives Foliot's exit code."""
        invocation = Invocation()
        kwargs = {"obj": invocation, "color": invocation.color, **kwargs}
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        run = functools.partial(super().main, *args, standalone_mode=False, **kwargs)
        raise SystemExit(exit_code_of(run, invocation))


def suggest(word: str, verbs: Mapping[str, Verb]) -> list[str]:
    """Names that `word` may have meant: another name of theirs, what they begin with, or a slip of the fingers."""
    import difflib

    known = [name for name, verb in verbs.items() if word.lower() in verb.also]
    begun = [name for name in verbs if name.startswith(word.lower())]
    alike = difflib.get_close_matches(word.lower(), verbs, n=2, cutoff=0.6)
    return list(dict.fromkeys([*known, *begun, *alike]))[:3]


def add_global_options(command: click.Command) -> None:
    """Let `command`, and all below it, take the global options too, except those it declares for itself."""
    taken = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    command.params.extend(option for option in global_options(root=False) if taken.isdisjoint(option.opts))
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_global_options(each)
