"""The global options of one call of `foliot`, and the settings that follow from them.

The same options are accepted before the command, between group and command, and after its arguments; whichever comes
last wins. So they are declared once here and added to every command as it is loaded (see main.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from foliot.cli.terminal import out
from foliot.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from foliot.settings.settings import Settings


@dataclass(slots=True)
class Invocation:
    """Flags as typed; None where the flag was not given, so that environment and file can speak."""

    flags: dict[str, str] = field(default_factory=dict[str, str])
    verbose: bool = False
    no_color: bool = False
    _settings: Settings | None = None

    @property
    def namespace(self) -> str | None:
        """The namespace that was asked for on the command line, if any."""
        return self.flags.get("namespace")

    @property
    def color(self) -> bool | None:
        """The `color` argument for click; see `color_choice`."""
        return color_choice(os.environ, no_color=self.no_color)

    def settings(self) -> Settings:
        """All settings, flags first. Raises `UsageError` for a value that cannot be used."""
        if self._settings is None:
            self._settings = _loaded(self.flags)
            if self._settings.plugins:
                from foliot.common.plugins import enable

                enable(self._settings.plugins)
        return self._settings

    def settings_anew(self) -> Settings:
        """The settings as they are written now, for what can be changed while a process serves. Raises `UsageError`."""
        return _loaded(self.flags)

    def home(self) -> Path:
        """Foliot's own folder, whatever contexts in it say."""
        from foliot.settings.settings import load_settings

        return load_settings({"home": self.flags.get("home")}, os.environ).home

    def store_settings(self) -> Settings:
        """Returns the settings for a command that works on the store itself.

        Raises `UsageError` when a server is set.
        """
        settings = self.settings()
        if settings.server is not None:
            raise UsageError(
                f"This works on the store itself, and not through a server ({settings.server}).",
                hint=f"Run it on the machine of the server, with --store; the server is from {_from(settings)}.",
            )
        return settings

    def only_here(self, what: str) -> None:
        """Checks that no server was asked for by a flag: the command is about this machine alone. Raises `UsageError`.

        A server of the environment or of the context in use is not meant by such a command, and does not matter.
        """
        if {"server", "context"} & self.flags.keys():
            raise UsageError(f"{what} is of this machine, and no server has a part in it.", hint="Leave --server out.")

    def give(self, name: str, value: str) -> None:
        """A flag was typed; the last one wins."""
        self.flags[name] = value
        self._settings = None


def _loaded(flags: dict[str, str]) -> Settings:
    from foliot.settings.settings import load_settings

    environ = os.environ
    if "server" in flags and "store" in flags:
        raise UsageError("--server and --store are two places to work on.", hint="Give one of them.")
    plain = {name: value for name, value in flags.items() if name != "context"}
    if "store" in flags or "context" in flags:
        environ = {name: value for name, value in environ.items() if name != "FOLIOT_SERVER"}
    first = load_settings(plain, environ)
    if first.server is None and ("context" in flags or _has_contexts(first, environ)):
        from foliot.settings.contexts import chosen, values_of

        context = chosen(first.home, flags, environ)
        if context is not None:
            given = values_of(*context, first.home)
            if first.token is not None or first.token_file is not None:
                given.pop("token", None)
                given.pop("token_file", None)
            return load_settings(plain, environ, given)
    return first


def _has_contexts(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Looked at first: whoever has no contexts does not pay for them."""
    return bool(environ.get("FOLIOT_CONTEXT")) or (settings.home / "contexts.json").exists()


def _from(settings: Settings) -> str:
    return settings.origin("server")


def current() -> Invocation:
    """The invocation in progress; an empty one outside of a command (while completing, for example)."""
    context = click.get_current_context(silent=True)
    found = context.find_object(Invocation) if context else None
    return found or Invocation()


def wants_traceback(invocation: Invocation) -> bool:
    return invocation.verbose or os.environ.get("FOLIOT_DEBUG", "") not in ("", "0")


def color_choice(environ: Mapping[str, str], *, no_color: bool) -> bool | None:
    """False: never. True: always. None: decide for each stream by whether it is a terminal.

    NO_COLOR counts when it is set to anything but the empty string (https://no-color.org).
    """
    if no_color or environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    if environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return None


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is None or value is False:
        return
    invocation = context.ensure_object(Invocation)
    match option.name:
        case "verbose":
            invocation.verbose = True
        case "no_color":
            invocation.no_color = True
            for each in _up(context):
                each.color = False
        case str(name):
            invocation.give(name, value)
        case _:
            raise AssertionError(f"a global option without a name: {option.opts}")


def _up(context: click.Context | None) -> list[click.Context]:
    chain: list[click.Context] = []
    while context is not None:
        chain.append(context)
        context = context.parent
    return chain


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from foliot.version import __version__

        out(f"foliot {__version__}")
        context.exit()


def global_options(*, root: bool) -> list[click.Option]:
    """Fresh options for one command. Below the root only `-n` is worth a line in the help of every verb."""
    # Eager, so that a wrong argument later on the line is already reported in the asked-for way.
    common: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _remember}
    options = [
        click.Option(
            ["-n", "--namespace"],
            metavar="NAME",
            help="Namespace to work in.  [default: default]" if root else "Namespace to work in.",
            shell_complete=_complete_namespaces,
            **common,
        ),
        click.Option(
            ["--store"],
            metavar="URL",
            hidden=not root,
            help="Where resources are kept: sqlite:///path or postgresql://….",
            **common,
        ),
        click.Option(
            ["--server"],
            metavar="URL",
            hidden=not root,
            help="A server to ask instead of a store: https://host:port.",
            **common,
        ),
        click.Option(
            ["--context"], metavar="NAME", hidden=not root, help="A server by name (`foliot context list`).", **common
        ),
        click.Option(
            ["--token-file"], metavar="FILE", hidden=not root, help="A file with the token for the server.", **common
        ),
        click.Option(
            ["--home"], metavar="DIR", hidden=not root, help="Foliot's home folder.  [default: ~/.foliot]", **common
        ),
        click.Option(
            ["--config"],
            metavar="FILE",
            hidden=not root,
            help="Settings file.  [default: config.toml in the home folder]",
            **common,
        ),
        click.Option(["--no-color"], is_flag=True, hidden=not root, help="Plain text, also on a terminal.", **common),
        click.Option(
            ["-v", "--verbose"], is_flag=True, hidden=not root, help="Show tracebacks of unexpected errors.", **common
        ),
    ]
    if root:
        options.append(
            click.Option(
                ["--version"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_print_version,
                help="Print the version and exit.",
            )
        )
    return options


def _complete_namespaces(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    from foliot.cli.complete import namespaces

    return namespaces(context, incomplete)


def is_terminal(stream: Any = None) -> bool:
    """Whether the stream (standard output when none is given) is a terminal that a person looks at."""
    stream = stream or sys.stdout
    return bool(getattr(stream, "isatty", lambda: False)())
