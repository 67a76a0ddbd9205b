"""`foliot tools list|describe|call|test`: what tools there are, and one call of one of them, governed as any other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

import click

from foliot.cli.connect import namespace, run
from foliot.cli.invocation import current
from foliot.cli.output import as_json, output_option
from foliot.cli.runtimes import opened, whoami
from foliot.cli.tables import clean, table
from foliot.errors import Denied, UsageError

if TYPE_CHECKING:
    from foliot.kernel.messages import ToolFailure, ToolResult
    from foliot.offering import Asker, Offered
    from foliot.tools.base import Parked, ToolDefinition
    from foliot.tools.judge import Judgement

SAID: Final = {"allow": "allowed", "ask": "needs an approval", "deny": "refused"}
DENIED_CODE: Final = "permission_denied"


# --- list --------------------------------------------------------------------------------------------------------


@click.command(name="list")
@click.option("--available", is_flag=True, help="Only tools that can be called here.")
@output_option("table", "wide", "json", "name", default="table", help="table, wide, json or name.")
def list_tools(available: bool, output: str) -> int:
    """What tools there are, and whether they can be called here.

    -o json also says what this deployment offers and lacks: types, isolation, what is not installed.
    """
    return run(_list(available=available, output=output))


async def _list(*, available: bool, output: str) -> int:
    from foliot.offering import capabilities

    async with opened() as runtime:
        found = [each for each in await runtime.tools.tools(namespace()) if each.available or not available]
    if output == "json":
        offers = capabilities(current().settings())
        click.echo(as_json({"tools": [_as_data(each) for each in found], "capabilities": offers}))
    elif output == "name":
        click.echo("\n".join(each.name for each in found))
    else:
        wide = ("RISK", "DESCRIPTION") if output == "wide" else ()
        headings = ("NAME", "FROM", "TYPE", "EFFECT", "VERSION", "CATEGORY", "ISOLATION", "AVAILABLE", *wide)
        click.echo(table(headings, [_row(each, wide=bool(wide)) for each in found]))
    return 0


def _row(offered: Offered, *, wide: bool) -> tuple[str, ...]:
    made = offered.definition
    facts = (made.type, made.effect, made.version, made.category, made.isolation) if made else ("-",) * 5
    problem = clean(offered.problem)
    state = "yes" if offered.available else f"no: {problem}"
    if not wide:
        return (clean(offered.name), offered.source, *map(clean, facts), cut(state))
    more = (made.risk, cut(clean(made.description)) or "-") if made else ("-", "-")
    return (clean(offered.name), offered.source, *map(clean, facts), state, *more)


def cut(text: str, longest: int = 70) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _as_data(offered: Offered) -> dict[str, Any]:
    made = offered.definition
    return {
        "name": offered.name,
        "from": offered.source,
        "available": offered.available,
        **({"problem": offered.problem} if offered.problem else {}),
        **(_facts(made) if made else {}),
    }


def _facts(made: ToolDefinition) -> dict[str, Any]:
    from foliot.tools.registry import schema_digest

    return {
        "type": made.type,
        "version": made.version,
        "effect": made.effect,
        "category": made.category,
        "risk": made.risk,
        "isolation": made.isolation,
        "capabilities": list(made.capabilities),
        "operation_classes": list(made.operation_classes),
        "record": made.record,
        "schema_digest": schema_digest(made.schema),
        "description": made.description,
    }


# --- describe ----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name")
@output_option("yaml", "json", default="yaml", help="yaml or json.")
def describe(name: str, output: str) -> int:
    """One tool: what it takes, how it is run, and the rules that speak of it."""
    return run(_describe(name, output))


async def _describe(name: str, output: str) -> int:
    from foliot.resources.yaml_dump import dump_yaml

    async with opened() as runtime:
        offered = await runtime.tools.find(name, namespace())
        rules = await runtime.tools.rules_for(offered.name, namespace())
    data = {**_as_data(offered), **(_limits(offered.definition) if offered.definition else {}), "rules": rules}
    click.echo(as_json(data) if output == "json" else dump_yaml(data).rstrip("\n"))
    return 0


def _limits(made: ToolDefinition) -> dict[str, Any]:
    from dataclasses import asdict

    limits = {
        "timeout": made.timeout,
        "attempt_timeout": made.attempt_timeout,
        "idle_timeout": made.idle_timeout,
        "max_attempts": made.retry.max_attempts,
        "rate_limit": asdict(made.rate_limit) if made.rate_limit else None,
        "endpoint": made.endpoint,
        "requires": list(made.requires),
        "requires_prior": list(made.requires_prior),
        "after": list(made.after),
        "resource_keys": list(made.resource_keys),
        "on_dependency_failure": made.on_dependency_failure if made.after else "",
        "deprecated_since": made.deprecated_since,
        "replaced_by": made.replaced_by,
        "on_unknown": made.on_unknown,
        "auth": made.auth.profile if made.auth else "",
        "schema": dict(made.schema) if made.schema is not None else None,
    }
    return {name: value for name, value in limits.items() if value not in (None, "", [])}


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
@click.option("--key", default="", metavar="TEXT", help="Idempotency key: calls with one key are the same call.")
@output_option("text", "json", default="text", help="text or json.")
def call(name: str, arguments: str, agent: str, key: str, output: str) -> int:
    """Call one tool, through the same rules as any other call, and record it.

    A call that a rule wants an approval for is not made, unless a standing grant covers it. Output that comes while the
    tool works goes to standard error.
    """
    return run(_call(name, _object(arguments), _asker(agent), key, output))


async def _call(name: str, arguments: dict[str, Any], asker: Asker, key: str, output: str) -> int:
    import msgspec

    from foliot.tools.base import Parked

    async with opened() as runtime:
        result = await runtime.tools.call(
            name, arguments, asker, idempotency_key=key, on_output=lambda piece: click.echo(piece, nl=False, err=True)
        )
    if isinstance(result, Parked):
        raise _not_approved(name, result)
    if output == "json":
        click.echo(as_json(msgspec.to_builtins(result)))
        return 0 if result.error is None else _exit_code(result.error)
    return _told(result)


def _told(result: ToolResult) -> int:
    if result.error is None:
        click.echo(result.text)
        for part in result.content:
            if not hasattr(part, "text"):
                click.echo("(a part that is not text: see -o json)", err=True)
        return 0
    failure = result.error
    by = failure.details.get("rule") or failure.details.get("layer")
    click.echo(f"error ({failure.code}): {clean(failure.message)}", err=True)
    if by:
        click.echo(f"  by: {clean(str(by))}", err=True)
    return _exit_code(failure)


def _exit_code(failure: ToolFailure) -> int:
    return Denied.exit_code if failure.code == DENIED_CODE else 1


def _not_approved(name: str, parked: Parked) -> Denied:
    who = f" by {', '.join(parked.approvers)}" if parked.approvers else ""
    return Denied(
        f"The call of {name} needs an approval{who}, and was not made: {parked.reason}",
        hint=f"A standing grant covers calls in advance: `foliot approvals grant --tool {name} --until 1h`.\n"
        "A run that makes the call asks and waits.",
    )


@click.command()
@click.argument("name")
@_arguments_option()
@_agent_option()
@output_option("text", "json", default="text", help="text or json.")
def test(name: str, arguments: str, agent: str, output: str) -> int:
    """What would become of a call: arguments, rules and gates are checked; nothing is run.

    Exits with 1 when it would be refused.
    """
    return run(_test(name, _object(arguments), _asker(agent), output))


async def _test(name: str, arguments: dict[str, Any], asker: Asker, output: str) -> int:
    async with opened() as runtime:
        judgement = await runtime.tools.test(name, arguments, asker)
    if output == "json":
        click.echo(as_json(_judged(judgement)))
    else:
        rows = [(each.layer, SAID[each.outcome], each.rule or "-", clean(each.reason)) for each in judgement.verdicts]
        click.echo(table(("LAYER", "SAYS", "RULE", "BECAUSE"), rows))
        click.echo(f"\n{clean(name)}: {SAID[judgement.outcome]}; nothing was run.")
    return 1 if judgement.outcome == "deny" else 0


def _judged(judgement: Judgement) -> dict[str, Any]:
    layers = [
        {"layer": each.layer, "outcome": each.outcome, "rule": each.rule, "reason": each.reason}
        for each in judgement.verdicts
    ]
    return {"outcome": judgement.outcome, "decided": judgement.decided.layer, "layers": layers}


def _asker(agent: str) -> Asker:
    from foliot.offering import Asker

    return Asker(namespace(), agent, whoami())


def _object(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--args is not JSON: {error}", hint="""for example --args '{"city": "Oslo"}'""") from None
    if not isinstance(found, dict):
        raise UsageError("--args is not a JSON object", hint="""for example --args '{"city": "Oslo"}'""")
    return cast("dict[str, Any]", found)
