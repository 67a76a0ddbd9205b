"""`foliot policy`: what would happen to a tool call, by which rule, and what new rules would change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import click

from foliot.cli.connect import connected, namespace, run
from foliot.cli.manifests import files_option, load
from foliot.cli.operating import operating
from foliot.cli.output import as_json, output_option
from foliot.cli.tables import table
from foliot.cli.terminal import out, paint
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.arguments import read_arguments
from foliot.store.base import Document

if TYPE_CHECKING:
    from foliot.client.operations import PolicyQuestion, RuleDefaults
    from foliot.engine.hypothetical import Ask
    from foliot.tools.judge import Judgement
    from foliot.tools.verdict import Outcome, Verdict

SAID: Final = {"allow": "allowed", "ask": "needs an approval", "deny": "refused"}
_PAINT: Final = {"allow": "green", "ask": "yellow", "deny": "red"}
_FIELDS: Final = ("agent", "tool", "args", "model", "task", "system", "user", "prior")


@click.group()
def policy() -> None:
    """What would happen to a tool call, by which rule, and what new rules would change. Nothing is called."""


@policy.command()
@click.argument("agent")
@click.argument("tool")
@click.option("--args", "arguments", metavar="JSON", default=None, help="The arguments of the call, a JSON object.")
@click.option("--model", metavar="NAME", default=None, help="The model that asks.  [default: the agent's]")
@click.option("--task", metavar="NAME", default="", help="The Task it is part of, for policies that target one.")
@click.option("--system", metavar="NAME", default="", help="The AgentSystem it is part of.")
@click.option("--user", metavar="NAME", default="", help="The person on whose behalf.")
@click.option("--after", "prior", metavar="TOOL", multiple=True, help="A tool that succeeded before. Can be repeated.")
@output_option("text", "json", default="text", help="text or json.")
def explain(
    agent: str,
    tool: str,
    arguments: str | None,
    model: str | None,
    task: str,
    system: str,
    user: str,
    prior: tuple[str, ...],
    output: str,
) -> int:
    """What would happen if AGENT called TOOL: what every layer says, and which rule decides.

    Without --args the arguments are not held against the tool's schema, and conditions on them cannot be evaluated.
    """
    from foliot.client.operations import PolicyQuestion

    given = _arguments(arguments, "--args") if arguments is not None else None
    return run(_explain(PolicyQuestion(agent, tool, given, model or "", task, system, user, prior), output))


async def _explain(ask: PolicyQuestion, output: str) -> int:
    async with operating() as operations:
        answer = await operations.explain_call(namespace(), ask)
    judgement = answer.judgement
    notes = [] if answer.declared else [f"{ask.tool} is not declared as a Tool: it is judged by its name alone."]
    if ask.arguments is None:
        notes.append("no --args were given: what depends on them is not judged.")
    if output == "json":
        out(as_json(_as_data(ask, judgement)))
        return 0
    rows = [
        (verdict.layer, SAID[verdict.outcome], verdict.rule or "-", verdict.reason) for verdict in judgement.verdicts
    ]
    out(table(("LAYER", "SAYS", "RULE", "BECAUSE"), rows))
    out()
    out(f"{ask.agent} calls {ask.tool}: {_styled(judgement.outcome)}, {_why(judgement.decided)}")
    for note in notes:
        out(f"note: {note}")
    return 0


@policy.command()
@files_option()
@click.option(
    "--calls",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    required=True,
    help='Calls to judge, one JSON object a line: {"agent": "…", "tool": "…", "args": {…}}; - for standard input.',
)
@click.option("--changed", is_flag=True, help="Only calls whose fate would change.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 when any call's fate would change.")
@output_option("text", "json", default="text", help="text or json.")
def simulate(files: tuple[str, ...], calls: Any, changed: bool, exit_code: bool, output: str) -> int:
    """What would change for these calls if the manifests were applied. Nothing is applied, nothing is called."""
    asks = read_calls(calls, calls.name)
    return run(_simulate(files, asks, changed=changed, exit_code=exit_code, output=output))


@dataclass(frozen=True, slots=True)
class Fate:
    """One call under the rules as they are, and as they would be."""

    ask: Ask
    before: Judgement
    after: Judgement

    @property
    def changed(self) -> bool:
        return self.before.outcome != self.after.outcome


async def _simulate(files: Sequence[str], asks: Sequence[Ask], *, changed: bool, exit_code: bool, output: str) -> int:
    from foliot.client.judging import rule_documents, world_of

    given = [loaded.document for loaded in load(files)]
    async with connected() as client:
        space = namespace()
        stored = await rule_documents(client, space)
    now, defaults = time.time(), await _defaults()
    before, after = world_of(space, stored, defaults), world_of(space, overlaid(stored, given), defaults)
    fates = [Fate(ask, before.judge(ask, now=now), after.judge(ask, now=now)) for ask in asks]
    moved = sum(fate.changed for fate in fates)
    shown = [fate for fate in fates if fate.changed or not changed]
    if output == "json":
        out(as_json([_fate_as_data(fate) for fate in shown]))
    else:
        if shown:
            out(table(("", "AGENT", "TOOL", "NOW", "THEN", "BECAUSE"), [_row(fate) for fate in shown]))
        out(f"{moved} of {len(fates)} calls would change.")
    return 1 if exit_code and moved else 0


def overlaid(stored: Sequence[Document], given: Sequence[Document]) -> list[Document]:
    """What the store would hold after an apply."""
    merged = {
        (each["kind"], each["metadata"].get("namespace", "default"), each["metadata"]["name"]): each for each in stored
    }
    for each in given:
        merged[each["kind"], each["metadata"].get("namespace", "default"), each["metadata"]["name"]] = each
    return list(merged.values())


def read_calls(lines: Any, name: str) -> list[Ask]:
    """Raises `InvalidInput` that names the line."""
    from foliot.engine.hypothetical import Ask

    asks: list[Ask] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        call = _arguments(line, where)
        for field in ("agent", "tool"):
            if not isinstance(call.get(field), str) or not call[field]:
                raise InvalidInput(f"{where}: {field!r} is missing", hint='a call reads {"agent": "…", "tool": "…"}')
        if unknown := sorted(call.keys() - set(_FIELDS)):
            raise InvalidInput(f"{where}: unknown {', '.join(unknown)}", hint=f"known are {', '.join(_FIELDS)}")
        words = {key: call[key] for key in ("model", "task", "system", "user") if isinstance(call.get(key), str)}
        args = call.get("args", {})
        if not isinstance(args, dict):
            raise InvalidInput(f"{where}: args is not a JSON object")
        asks.append(
            Ask(call["agent"], call["tool"], cast("dict[str, Any]", args), prior=tuple(call.get("prior", ())), **words)
        )
    return asks


def _arguments(text: str, where: str) -> dict[str, Any]:
    value, problem = read_arguments(text)
    if value is None:
        raise UsageError(f"{where}: {problem}")
    return value


async def _defaults() -> RuleDefaults:
    """What holds where the calls would be made."""
    async with operating() as operations:
        return await operations.rule_defaults()


def _row(fate: Fate) -> tuple[str, ...]:
    mark = "!" if fate.changed else ""
    return (
        mark,
        fate.ask.agent,
        fate.ask.tool,
        SAID[fate.before.outcome],
        SAID[fate.after.outcome],
        _why(fate.after.decided),
    )


def _why(verdict: Verdict) -> str:
    by = f"by {verdict.rule}" if verdict.rule else f"by the layer {verdict.layer}"
    return f"{by}: {verdict.reason}"


def _styled(outcome: Outcome) -> str:
    return paint(SAID[outcome], fg=_PAINT[outcome])


def _as_data(ask: PolicyQuestion, judgement: Judgement) -> dict[str, Any]:
    return {
        "agent": ask.agent,
        "tool": ask.tool,
        "outcome": judgement.outcome,
        "decided": _verdict_as_data(judgement.decided),
        "layers": [_verdict_as_data(verdict) for verdict in judgement.verdicts],
    }


def _verdict_as_data(verdict: Verdict) -> dict[str, Any]:
    return {"layer": verdict.layer, "outcome": verdict.outcome, "rule": verdict.rule, "reason": verdict.reason}


def _fate_as_data(fate: Fate) -> dict[str, Any]:
    return {
        "agent": fate.ask.agent,
        "tool": fate.ask.tool,
        "args": fate.ask.arguments,
        "changed": fate.changed,
        "before": {"outcome": fate.before.outcome, **_verdict_as_data(fate.before.decided)},
        "after": {"outcome": fate.after.outcome, **_verdict_as_data(fate.after.decided)},
    }
