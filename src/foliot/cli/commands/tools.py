"""`foliot tools`: tools as things of their own, outside any run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from foliot.cli.manifests import files_option
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.stop_signals import serve_until_told
from foliot.cli.terminal import out
from foliot.common.text import one_line
from foliot.errors import Denied, UsageError
from foliot.kernel.arguments import read_arguments
from foliot.resources.syntax.yaml_text import dump_yaml

if TYPE_CHECKING:
    from foliot.kernel.messages import ToolFailure, ToolResult
    from foliot.store.base import Document
    from foliot.tools.governance.judge import Judgement


# --- tool calls ------------------------------------------------------------------------------------------------------

# `foliot tools list|describe|call|test`: what tools there are, and one call of one of them, governed as any other.

SAID: Final = {"allow": "allowed", "ask": "needs an approval", "deny": "refused"}
DENIED_CODE: Final = "permission_denied"


# --- list --------------------------------------------------------------------------------------------------------


@click.command(name="list")
@click.option("--available", is_flag=True, help="Only tools that can be called here.")
@output_option("table", "wide", "json", "name", default="table", help="table, wide, json or name.")
def list_tools(available: bool, output: str) -> int:
    """List the tools, and whether they can be called here.

    -o json also says what this deployment offers and lacks: types, isolation, what is not installed.
    """
    return run(_list(available=available, output=output))


async def _list(*, available: bool, output: str) -> int:
    async with reached() as client:
        toolset = await client.tools.list(namespace=namespace())
    found = [each for each in toolset.tools if each["available"] or not available]
    if output == "json":
        out(as_json({"tools": found, "capabilities": toolset.capabilities}))
    elif output == "name":
        out("\n".join(each["name"] for each in found))
    else:
        wide = ("RISK", "DESCRIPTION") if output == "wide" else ()
        headings = ("NAME", "FROM", "TYPE", "EFFECT", "VERSION", "CATEGORY", "ISOLATION", "AVAILABLE", *wide)
        out(table(headings, [_row(each, wide=bool(wide)) for each in found]))
    return 0


def _row(tool: Document, *, wide: bool) -> tuple[str, ...]:
    facts = [one_line(str(tool.get(name, "-"))) for name in ("type", "effect", "version", "category", "isolation")]
    state = "yes" if tool["available"] else f"no: {one_line(tool.get('problem', ''))}"
    if not wide:
        return (one_line(tool["name"]), tool["from"], *facts, cut(state))
    more = (tool.get("risk", "-"), cut(one_line(tool.get("description", ""))) or "-")
    return (one_line(tool["name"]), tool["from"], *facts, state, *more)


def cut(text: str, longest: int = 70) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


# --- describe ----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name")
@output_option("yaml", "json", default="yaml", help="yaml or json.")
def describe(name: str, output: str) -> int:
    """Show one tool: its arguments, how it is run, and the rules about it."""
    return run(_describe(name, output))


async def _describe(name: str, output: str) -> int:
    async with reached() as client:
        data = await client.tools.get(name, namespace=namespace())
    out(as_json(data) if output == "json" else dump_yaml(data).rstrip("\n"))
    return 0


# --- call and test -----------------------------------------------------------------------------------------------


def _arguments_option() -> Any:
    return click.option(
        "--args", "arguments", metavar="JSON", default="{}", help="The arguments, a JSON object.  [default: {}]"
    )


def _agent_option() -> Any:
    return click.option(
        "--as-agent", "agent", metavar="NAME", default="", help="Call as this agent: its roles, its tools."
    )


@click.command()
@click.argument("name")
@_arguments_option()
@_agent_option()
@click.option("--key", default="", metavar="TEXT", help="Idempotency key: calls with one key are one call, for a day.")
@output_option("text", "json", default="text", help="text or json.")
def call(name: str, arguments: str, agent: str, key: str, output: str) -> int:
    """Call one tool, through the same rules as any other call, and record it.

    A call that a rule wants an approval for is not made, unless a standing grant covers it. Output that comes while the
    tool works goes to standard error.
    """
    return run(_call(name, _object(arguments), agent, key, output))


async def _call(name: str, arguments: dict[str, Any], agent: str, key: str, output: str) -> int:
    def heard(piece: str) -> None:
        out(piece, nl=False, err=True)

    async with reached() as client:
        called = await client.tools.call(name, arguments, namespace=namespace(), agent=agent, key=key, on_output=heard)
    heard(called.printed)
    result = called.result
    if output == "json":
        out(as_json(msgspec.to_builtins(result)))
        return 0 if result.error is None else _exit_code(result.error)
    return _told(result)


def _told(result: ToolResult) -> int:
    if result.error is None:
        out(result.text)
        for part in result.content:
            if not hasattr(part, "text"):
                out("(a part that is not text: see -o json)", err=True)
        return 0
    failure = result.error
    by = failure.details.get("rule") or failure.details.get("layer")
    out(f"error ({failure.code}): {one_line(failure.message)}", err=True)
    if by:
        out(f"  by: {one_line(str(by))}", err=True)
    return _exit_code(failure)


def _exit_code(failure: ToolFailure) -> int:
    return Denied.exit_code if failure.code == DENIED_CODE or failure.kind == "policy_denied" else 1


@click.command()
@click.argument("name")
@_arguments_option()
@_agent_option()
@output_option("text", "json", default="text", help="text or json.")
def test(name: str, arguments: str, agent: str, output: str) -> int:
    """Judge a call without making it: arguments, rules and gates are checked, nothing is run.

    Exits with 1 when it would be refused.
    """
    return run(_test(name, _object(arguments), agent, output))


async def _test(name: str, arguments: dict[str, Any], agent: str, output: str) -> int:
    async with reached() as client:
        judgement = await client.tools.test(name, arguments, namespace=namespace(), agent=agent)
    if output == "json":
        out(as_json(_judged(judgement)))
    else:
        rows = [
            (each.layer, SAID[each.outcome], each.rule or "-", one_line(each.reason)) for each in judgement.verdicts
        ]
        out(table(("LAYER", "SAYS", "RULE", "BECAUSE"), rows))
        out(f"\n{one_line(name)}: {SAID[judgement.outcome]}; nothing was run.")
    return 1 if judgement.outcome == "deny" else 0


def _judged(judgement: Judgement) -> dict[str, Any]:
    layers = [
        {"layer": each.layer, "outcome": each.outcome, "rule": each.rule, "reason": each.reason}
        for each in judgement.verdicts
    ]
    return {"outcome": judgement.outcome, "decided": judgement.decided.layer, "layers": layers}


def _object(text: str) -> dict[str, Any]:
    found, problem = read_arguments(text)
    if found is None:
        raise UsageError(f"--args cannot be used: {problem}", hint="""for example --args '{"city": "Oslo"}'""")
    return found


# --- tools -----------------------------------------------------------------------------------------------------------


@click.group()
def tools() -> None:
    """List, call, test and serve tools, outside any run."""


for command in (list_tools, describe, call, test):
    tools.add_command(command)


@tools.command()
@files_option(required=False)
@click.option("--nats", "url", metavar="URL", help="The NATS server; the setting nats (FOLIOT_NATS) otherwise.")
@click.option(
    "--callers",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Whose calls are served, a TOML file; the setting nats_callers (FOLIOT_NATS_CALLERS) otherwise.",
)
@click.option("--tool", "names", multiple=True, metavar="NAME", help="Serve only this one. Can be repeated.")
@click.option("--shared", is_flag=True, help="Other programs serve other tools: take only calls of one's own.")
@click.option("--create-stream", is_flag=True, help="Create the JetStream stream AGENT if it does not exist.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=3, show_default=True, help="Calls at a time.")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds for the last calls.")
def serve(
    files: tuple[str, ...],
    url: str | None,
    callers: Path | None,
    names: tuple[str, ...],
    shared: bool,
    create_stream: bool,
    concurrency: int,
    drain: float,
) -> None:
    """Answer calls of tools that come over NATS, through the same rules as any other call.

    \b
    foliot tools serve --nats nats://localhost:4222 --callers callers.toml -f tools.yaml --create-stream
    foliot tools serve --tool search          one of the tools in the store

    Calls come on tool.execute.NAME and are answered on tool.result.ID; tool.list tells what is served. Without -f the
    tools of the namespace in the store are served. Rules, limits and budgets come from the store. Who calls is known by
    a key, by the subject, or not at all, as the file of callers says; what a message says of its sender does not count.
    Ctrl-C finishes what is under way.
    """

    from foliot.cli.tool_server import Serving, serve_tools

    order = Serving(files, url, callers, names, shared, create_stream, concurrency, drain)
    serve_until_told(partial(serve_tools, order))
