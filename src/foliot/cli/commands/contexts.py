"""`foliot context`: servers by name, and which of them commands talk to. Also as `foliot config …-context`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from foliot.cli.invocation import current
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.errors import UsageError
from foliot.settings.settings import RULES, Given, as_namespace, as_token, mask_password

if TYPE_CHECKING:
    from foliot.settings.contexts import Context

_name = click.argument("name", metavar="NAME")


@click.group()
def context() -> None:
    """Set, list and choose contexts: servers by name, each with its token and namespace.

    \b
    foliot context set prod --server https://foliot.example --token-stdin --use < token
    foliot context list
    foliot --context prod get agents      for one command
    foliot context use --none             back to the store of this machine

    Where commands go: --server, --context or --store; FOLIOT_SERVER; FOLIOT_CONTEXT; FOLIOT_STORE; the context in use;
    the store of the settings. The first that is given counts.
    """


@click.command("get-contexts")
@output_option("table", "json", "name", default="table", help="table, json or name.")
def get_contexts(output: str) -> int:
    """List the contexts, the current one with a star. Tokens are never shown."""
    from foliot.settings.contexts import load_contexts

    kept = load_contexts(_home())
    shown = {
        name: {
            "current": name == kept.current,
            "server": found.server,
            "namespace": found.namespace or "default",
            "token": _kept(found),
        }
        for name, found in sorted(kept.contexts.items())
    }
    if output == "json":
        out(as_json(shown))
    elif output == "name":
        out("\n".join(shown), nl=bool(shown))
    elif shown:
        rows = [
            ["*" if facts["current"] else "", name, *(str(facts[key]) for key in ("server", "namespace", "token"))]
            for name, facts in shown.items()
        ]
        out(table(["", "NAME", "SERVER", "NAMESPACE", "TOKEN"], rows))
    else:
        out("There are no contexts. `foliot context set --help` says how to make one.", err=True)
    return 0


@click.command("current-context")
def current_context() -> int:
    """Say which context commands use."""
    from foliot.settings.contexts import load_contexts

    kept = load_contexts(_home())
    if not kept.current:
        out("No context is in use: commands work on the store.", err=True)
        return 0
    out(kept.current)
    return 0


@click.command("show")
@click.argument("name", metavar="[NAME]", required=False)
@output_option("text", "json", default="text", help="text or json.")
def show_context(name: str | None, output: str) -> int:
    """Show one context; without NAME where commands go now, and why. Tokens are never shown."""
    facts = _context_facts(name) if name is not None else _reached_now()
    if output == "json":
        out(as_json(facts))
    else:
        out("\n".join(f"{label + ':':10} {value}" for label, value in facts.items() if value))
    return 0


def _context_facts(name: str) -> dict[str, str]:
    from foliot.settings.contexts import load_contexts

    kept = load_contexts(_home())
    found = kept.named(name)
    return {
        "name": name + (" (in use)" if kept.current == name else ""),
        "server": found.server,
        "namespace": found.namespace or "default",
        "token": _kept(found),
        "ca": found.server_ca,
        "cert": found.server_cert,
    }


def _reached_now() -> dict[str, str]:
    settings = current().settings()
    if settings.server is None:
        return {
            "store": f"{mask_password(settings.store)}  (from {settings.origin('store')})",
            "namespace": f"{settings.namespace}  (from {settings.origin('namespace')})",
        }
    typed = settings.origin("token_file").startswith("flag")
    named = "token" if settings.token is not None and not typed else "token_file"
    held = settings.token is not None or settings.token_file is not None
    return {
        "server": f"{settings.server}  (from {settings.origin('server')})",
        "namespace": f"{settings.namespace}  (from {settings.origin('namespace')})",
        "token": f"from {settings.origin(named)}" if held else "none",
        "ca": str(settings.server_ca or ""),
        "cert": str(settings.server_cert or ""),
    }


@click.command("use-context")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--none", "nothing", is_flag=True, help="Use none: commands work on the store again.")
def use_context(name: str | None, nothing: bool) -> int:
    """Use the server of this context for all commands from now on."""
    from foliot.settings.contexts import load_contexts, save_contexts

    if (name is None) != nothing:
        raise UsageError("Which context?", hint="Give its name, or --none.")
    home = _home()
    kept = load_contexts(home)
    if name is not None:
        kept.named(name)
    save_contexts(home, replace(kept, current=name or ""))
    out(f"Commands talk to {name!r} now." if name else "Commands work on the store now.")
    return 0


@click.command("set-context")
@_name
@click.option("--token-stdin", is_flag=True, help="Read a token from standard input, and keep it.")
@click.option("--ca", metavar="FILE", help="Certificates to trust.")
@click.option("--cert", metavar="FILE", help="A certificate of your own.")
@click.option("--cert-key", metavar="FILE", help="Its private key.")
@click.option("--use", is_flag=True, help="Use it from now on.")
def set_context(name: str, token_stdin: bool, ca: str | None, cert: str | None, cert_key: str | None, use: bool) -> int:
    """Make a context, or change what is given of one: --server, -n, and --token-file are kept in it.

    \b
    foliot context set prod --server https://foliot.example --token-stdin --use < token
    foliot context set prod -n team-a

    They are kept in contexts.json in Foliot's folder, readable by you only. A token is for one server: with another
    --server it is forgotten.
    """
    from foliot.settings.contexts import Context, load_contexts, save_contexts

    home = _home()
    kept = load_contexts(home)
    as_namespace(Given(name, "the name of the context", Path.cwd()))
    changes = _changes(token_stdin=token_stdin, server_ca=ca, server_cert=cert, server_cert_key=cert_key)
    before = kept.contexts.get(name)
    if before is None and "server" not in changes:
        raise UsageError(f"Where is the server of {name!r}?", hint="Give --server https://host:port.")
    if before is not None and changes.get("server", before.server) != before.server:
        changes = {"token": "", "token_file": "", **changes}
    context = replace(before, **changes) if before is not None else Context(**changes)
    chosen = name if use else kept.current
    save_contexts(home, replace(kept, contexts={**kept.contexts, name: context}, current=chosen))
    out(f"Context {name!r} {'changed' if before else 'made'}{', and in use' if use else ''}.")
    return 0


def _changes(*, token_stdin: bool, **paths: str | None) -> dict[str, str]:
    """Returns the given options, by the names of settings. Raises `UsageError`."""

    flags, here = current().flags, Path.cwd()
    if token_stdin and "token_file" in flags:
        raise UsageError("A token is kept here or read from a file, not both.", hint="Give one of them.")
    given = {**{name: flags.get(name) for name in ("server", "namespace", "token_file")}, **paths}
    changes = {
        name: str(RULES[name].parse(Given(text, f"flag --{name.replace('_', '-')}", here)))
        for name, text in given.items()
        if text is not None
    }
    if token_stdin:
        return {**changes, "token": as_token(Given(sys.stdin.read(), "standard input", here)), "token_file": ""}
    return {**changes, "token": ""} if "token_file" in changes else changes


@click.command("delete-context")
@_name
def delete_context(name: str) -> int:
    """Forget a context and its token."""
    from foliot.settings.contexts import load_contexts, save_contexts

    home = _home()
    kept = load_contexts(home)
    kept.named(name)
    rest = {each: context for each, context in kept.contexts.items() if each != name}
    save_contexts(home, replace(kept, contexts=rest, current="" if kept.current == name else kept.current))
    out(f"Context {name!r} deleted.")
    return 0


def _kept(context: Context) -> str:
    """Describes where the token of a context is; never the token itself."""
    return "kept here" if context.token else f"in {context.token_file}" if context.token_file else "none"


def _home() -> Path:
    return current().home()


for _command, _verb in (
    (get_contexts, "list"),
    (show_context, "show"),
    (use_context, "use"),
    (set_context, "set"),
    (delete_context, "delete"),
):
    context.add_command(_command, _verb)
