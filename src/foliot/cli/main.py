"""`foliot`: the table of commands, and the way in.

Only names and one-line helps are here. The module behind a name is imported when the name is typed.
"""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from foliot.cli.entry import interrupt_quietly
from foliot.cli.errors import ReaderLeft, exit_code_of
from foliot.cli.invocation import Invocation, global_options
from foliot.cli.terminal import out
from foliot.common.suggestions import did_you_mean, nearest
from foliot.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# --- lazy ------------------------------------------------------------------------------------------------------------

# A group of commands that knows their names and one-line helps without loading any of them.


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: where it is (`module:attribute`), what it does in a few words, and what else people call it.

    `older` is a name that it had before: it still works, and no help shows it.
    """

    target: str
    help: str
    also: tuple[str, ...] = ()
    older: str = ""


class LazyGroup(click.Group):
    """`sections` are (title, {name: Verb}) in the order in which the help shows them."""

    def __init__(self, *args: Any, sections: Sequence[tuple[str, Mapping[str, Verb]]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.verbs: dict[str, Verb] = {name: verb for _, verbs in sections for name, verb in verbs.items()}
        self._older = {verb.older: name for name, verb in self.verbs.items() if verb.older}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._older.get(cmd_name, cmd_name)
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
        if word not in self.verbs and word not in self._older and not ctx.resilient_parsing:
            self._refuse(ctx, word)
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: click.Context, word: str) -> NoReturn:
        near = suggest(word, self.verbs)
        hint = did_you_mean(*(f"`{ctx.command_path} {name}`" for name in near)) if near else None
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
        """Invokes the command; a broken pipe becomes `ReaderLeft`, not click's exit code of an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Runs the program; every error is printed in Foliot's form and gives Foliot's exit code."""
        invocation = Invocation()
        kwargs = {"obj": invocation, "color": invocation.color, **kwargs}
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        run = functools.partial(super().main, *args, standalone_mode=False, **kwargs)
        raise SystemExit(exit_code_of(run, invocation))


def suggest(word: str, verbs: Mapping[str, Verb]) -> list[str]:
    """Names that `word` may have meant: another name of theirs, what they begin with, or a slip of the fingers."""
    known = [name for name, verb in verbs.items() if word.lower() in verb.also]
    begun = [name for name in verbs if name.startswith(word.lower())]
    alike = nearest(word, verbs, most=2)
    return list(dict.fromkeys([*known, *begun, *alike]))[:3]


def add_global_options(command: click.Command) -> None:
    """Let `command`, and all below it, take the global options too, except those it declares for itself."""
    taken = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    command.params.extend(option for option in global_options(root=False) if taken.isdisjoint(option.opts))
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    if isinstance(command, click.Group):
        for each in command.commands.values():
            each.short_help = each.short_help or _brief(each.help or "")
            add_global_options(each)


def _brief(help: str) -> str:
    """The line of a command in the list of its group: the first sentence, up to what it enumerates, and never cut."""
    first = " ".join(help.split("\n\n")[0].split())
    return re.split(r"[:;.](?:\s|$)", first, maxsplit=1)[0]


# --- main ------------------------------------------------------------------------------------------------------------

_AT: Final = "foliot.cli.commands"

DECLARE: Final = {
    "init": Verb(f"{_AT}.init:init", "Write a folder of manifests to start from", ("new", "scaffold")),
    "validate": Verb(f"{_AT}.validate:validate", "Check manifests", ("check", "lint")),
    "diff": Verb(f"{_AT}.apply:diff", "Show what apply would change", ("compare",)),
    "apply": Verb(f"{_AT}.apply:apply", "Create or update resources from manifests", ("put", "push", "deploy")),
    "create": Verb(f"{_AT}.secrets:create", "Create a secret from values, files or env files", ("add",)),
    "edit": Verb(f"{_AT}.edit:edit", "Change a resource in your editor", ("patch", "set")),
    "delete": Verb(f"{_AT}.delete:delete", "Delete resources", ("rm", "remove", "del")),
}
INSPECT: Final = {
    "get": Verb(f"{_AT}.get:get", "List resources, or show some by name", ("ls", "list", "show", "watch")),
    "describe": Verb(f"{_AT}.describe:describe", "Show one resource and what it is connected to", ("inspect", "info")),
    "wait": Verb(f"{_AT}.wait:wait", "Wait until resources reach a condition", ("await",)),
    "explain": Verb(
        f"{_AT}.explain:explain", "Show the fields of a kind: types, defaults, meaning", ("doc", "docs", "man")
    ),
    "schema": Verb(f"{_AT}.about:schema", "Print JSON Schemas of the kinds, for editors", ()),
    "policy": Verb(
        f"{_AT}.policy:policy", "Show what would happen to a tool call, and why", ("can-i", "may", "simulate")
    ),
}
RUN: Final = {
    "run": Verb(f"{_AT}.run:run_command", "Run an agent and watch it work", ("start", "exec", "ask", "invoke")),
    "chat": Verb(
        f"{_AT}.chat:chat", "Ask an agent and talk with it, in a session that lasts", ("talk", "repl", "converse")
    ),
    "sessions": Verb(
        f"{_AT}.sessions:sessions", "List, read, search and archive sessions", ("session", "conversations")
    ),
    "task": Verb(f"{_AT}.task:task", "Run, follow, cancel and retry tasks", ("tasks", "work", "submit")),
    "runs": Verb(f"{_AT}.runs:runs", "List runs, newest first", ("ps", "history")),
    "trace": Verb(f"{_AT}.trace:trace", "Show a run as a tree: steps, calls, timings", ("log", "logs", "journal")),
    "results": Verb(f"{_AT}.trace:results", "Show the whole results of the calls of a run", ("result", "output")),
    "why": Verb(f"{_AT}.trace:why", "Say why a run or a task waits or failed", ("debug", "explain-run")),
    "resume": Verb(f"{_AT}.resume:resume", "Resume interrupted runs", ("continue", "retry", "restart")),
    "cancel": Verb(f"{_AT}.resume:cancel", "End a run, wherever it is driven", ("stop", "kill", "abort")),
    "say": Verb(f"{_AT}.resume:say", "Say something to a run, while it works or after it", ("input", "steer", "tell")),
    "settle": Verb(
        f"{_AT}.resume:settle", "Say what became of a call of unknown outcome", ("resolve",), older="decide"
    ),
    "approvals": Verb(
        f"{_AT}.approvals:approvals",
        "List, approve and deny calls that wait for approval",
        ("approval", "approve", "deny", "grants"),
    ),
    "answer": Verb(f"{_AT}.answer:answer", "Answer the question of a run, and resume it", ("reply", "questions")),
    "replay": Verb(f"{_AT}.resume:replay", "Verify a run offline, byte for byte", ("verify",)),
    "workspace": Verb(
        f"{_AT}.workspace:workspace", "List, compare and export the files of a run", ("files", "workspaces")
    ),
    "fork": Verb(f"{_AT}.resume:fork", "Run again from a step, with something changed", ("branch", "what-if")),
}
OPERATE: Final = {
    "alertcheck": Verb(
        f"{_AT}.alertcheck:alertcheck", "Check whether the tasks of a store look healthy", ("alerts", "health")
    ),
    "audit": Verb(f"{_AT}.audit:audit", "Show and verify the record of every tool call", ("records", "metering")),
    "backup": Verb(f"{_AT}.backup:backup", "Copy the store while it is in use", ("dump", "save", "snapshot")),
    "budgets": Verb(f"{_AT}.budgets:budgets", "Show budgets: limit, spent, left", ("budget", "costs")),
    "dev": Verb("foliot.cli.commands.dev:dev", "Start private services to try the production set-up", ("services",)),
    "doctor": Verb(f"{_AT}.doctor:doctor", "Check what works, is enforced, is missing", ("diagnose", "status")),
    "loadtest": Verb(
        f"{_AT}.loadtest:loadtest", "Run many tasks, some with faults, and check gates", ("bench", "stress")
    ),
    "mcp": Verb(f"{_AT}.mcp:mcp", "List, sync and accept tools of MCP servers", ("mcp-servers",)),
    "models": Verb(f"{_AT}.models:models", "Check what an endpoint can do, by asking it", ("model", "endpoints")),
    "plugins": Verb(
        f"{_AT}.plugins:plugins", "List plug-ins of packages, and whether they work", ("plugin", "extensions")
    ),
    "sandbox": Verb(f"{_AT}.sandbox:sandbox", "Run a program fenced in; explain a tool's fence", ("fence", "isolate")),
    "server": Verb(f"{_AT}.server:server", "Serve the HTTP API until stopped", ("api", "http", "daemon", "listen")),
    "tools": Verb(f"{_AT}.tools:tools", "List, call, test and serve tools", ("tool", "serve", "call")),
    "up": Verb(f"{_AT}.server:up", "Serve the API with a worker and the scheduler", ("start", "all", "serve")),
    "worker": Verb(f"{_AT}.worker:worker", "Do the runs of tasks until stopped", ("work", "daemon")),
    "workers": Verb(f"{_AT}.workers:workers", "List workers; set limits; see failing classes", ("limits", "nodes")),
    "schedule": Verb(f"{_AT}.schedule:schedule", "List, run and serve schedules", ("cron", "schedules")),
    "webhook": Verb(
        f"{_AT}.webhook:webhook", "List, test and serve webhooks, and their deliveries", ("webhooks", "hook")
    ),
    "channels": Verb(
        f"{_AT}.channels:channels", "List channels, what they deliver, and try it again", ("channel", "outbox")
    ),
    "purge": Verb(f"{_AT}.backup:purge", "Forget runs that ended long ago", ("prune", "gc", "clean", "vacuum")),
    "restore": Verb(f"{_AT}.backup:restore", "Put a store back from its copy", ("load", "recover")),
    "skills": Verb(f"{_AT}.skills:skills", "Check, list, install and allow skills of agents", ("skill",)),
    "secrets": Verb(f"{_AT}.secrets:secrets", "Look after the key that seals secrets", ("rotate-key", "keys")),
    "tokens": Verb(f"{_AT}.tokens:tokens", "Create, list and revoke tokens", ("token", "auth", "keys")),
    "users": Verb(f"{_AT}.users:users", "Create, list and disable accounts", ("user", "accounts")),
    "context": Verb(f"{_AT}.contexts:context", "Set, list and choose servers by name", ("contexts", "ctx")),
    "config": Verb(f"{_AT}.about:config", "Show settings and where each came from", ("settings", "env")),
    "capabilities": Verb(
        f"{_AT}.about:capabilities", "List what this installation, or the server, can do", ("features",)
    ),
    "completion": Verb(f"{_AT}.about:completion", "Print a completion script for bash, zsh or fish", ("complete",)),
    "version": Verb(f"{_AT}.about:version", "Show the version", ("about",)),
}

cli = LazyGroup(
    name="foliot",
    help="Foliot runs agents durably and lets no tool run ungoverned.\n\n"
    "Declare agents, tools and rules as YAML; look at them, change them, see why.",
    epilog="Start with `foliot init my-agent`. Each command has its own --help.",
    sections=(("Declare", DECLARE), ("Run", RUN), ("Inspect", INSPECT), ("Operate", OPERATE)),
    params=[*global_options(root=True)],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    subcommand_metavar="COMMAND …",
    options_metavar="[OPTIONS]",
)


def _help_when_nothing_is_asked() -> None:
    import click

    context = click.get_current_context()
    if context.invoked_subcommand is None:
        out(context.get_help())


cli.callback = _help_when_nothing_is_asked


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    # Loading modules makes many objects and hardly any garbage; looking for it at every turn costs 10 ms a start.
    gc.set_threshold(50_000, 20, 20)
    try:
        cli.main(prog_name="foliot")
    finally:
        interrupt_quietly()  # all is said and done: nobody catches it any more
        gc.freeze()  # the process ends: nothing of this has to be looked through once more
    raise AssertionError("cli.main always raises SystemExit")


if __name__ == "__main__":
    main()
