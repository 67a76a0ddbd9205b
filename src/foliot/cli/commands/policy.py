"""`foliot policy`: what would happen to a tool call, by which rule, and what new rules would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import click

from foliot.cli.manifests import files_option, load
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out, paint
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.arguments import read_arguments

if TYPE_CHECKING:
    from foliot.tools.governance.judge import Judgement, PolicyQuestion
    from foliot.tools.governance.rules import Outcome, Verdict

SAID: Final = {"allow": "allowed", "ask": "needs an approval", "deny": "refused"}
_PAINT: Final = {"allow": "green", "ask": "yellow", "deny": "red"}
_WORDS: Final = ("model", "task", "template", "system", "user", "by", "via")
_LISTS: Final = ("prior", "ancestors")
_FIELDS: Final = ("agent", "tool", "args", *_WORDS, *_LISTS)


@click.group()
def policy() -> None:
    """Explain and simulate rules: what would happen to a tool call, and by which rule. Nothing is called."""


@policy.command()
@click.argument("agent")
@click.argument("tool")
@click.option("--args", "arguments", metavar="JSON", default=None, help="The arguments of the call, a JSON object.")
@click.option("--model", metavar="NAME", default=None, help="The model that asks.  [default: the agent's]")
@click.option(
    "--task", metavar="NAME", default="", help="The task it is part of, or the Task that tasks are made after."
)
@click.option("--system", metavar="NAME", default="", help="The AgentSystem it is part of.")
@click.option("--user", metavar="NAME", default="", help="The person on whose behalf.  [default: you, or the task's]")
@click.option(
    "--under", metavar="AGENT", multiple=True, help="An agent above it, the outermost first. Can be repeated."
)
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
    under: tuple[str, ...],
    prior: tuple[str, ...],
    output: str,
) -> int:
    """Explain what would happen if AGENT called TOOL: the verdict of every layer, and the rule that decides.

    Without --args the arguments are not held against the tool's schema, and conditions on them cannot be evaluated.
    """
    from foliot.tools.governance.judge import PolicyQuestion

    given = _arguments(arguments, "--args") if arguments is not None else None
    asked = PolicyQuestion(agent, tool, given, model or "", task, system, user, prior, ancestors=under)
    return run(_explain(asked, output))


async def _explain(ask: PolicyQuestion, output: str) -> int:
    async with connected() as operations:
        answer = await operations.policies.explain(ask, namespace=namespace())
    judgement = answer.judgement
    notes = [*answer.notes]
    if not answer.declared:
        notes.append(f"{ask.tool} is not declared as a Tool: it is judged by its name alone.")
    if answer.user and not ask.user:
        notes.append(f"judged on behalf of {answer.user}; --user NAME asks for somebody else.")
    if ask.arguments is None:
        notes.append("no --args were given: what depends on them is not judged.")
    if output == "json":
        out(as_json({**_as_data(ask, judgement), "user": answer.user, "notes": notes}))
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
    """Show what would change for these calls if the manifests were applied. Nothing is applied, nothing is called."""
    asks = read_calls(calls, calls.name)
    return run(_simulate(files, asks, changed=changed, exit_code=exit_code, output=output))


@dataclass(frozen=True, slots=True)
class CallComparison:
    """One call under the rules as they are, and as they would be."""

    ask: PolicyQuestion
    before: Judgement
    after: Judgement
    user: str = ""

    @property
    def changed(self) -> bool:
        return self.before.outcome != self.after.outcome


async def _simulate(
    files: Sequence[str], asks: Sequence[PolicyQuestion], *, changed: bool, exit_code: bool, output: str
) -> int:
    from foliot.runtime.local.judge import GOVERNING

    given = [loaded.document for loaded in load(files)]
    async with connected() as operations:
        rules = [each for each in given if each["kind"] in GOVERNING]
        found = await operations.policies.simulate(rules, asks, namespace=namespace())
    fates = [CallComparison(ask, fate.before, fate.after, fate.user) for ask, fate in zip(asks, found, strict=True)]
    moved = sum(fate.changed for fate in fates)
    shown = [fate for fate in fates if fate.changed or not changed]
    if output == "json":
        out(as_json([_fate_as_data(fate) for fate in shown]))
    else:
        if shown:
            out(table(("", "AGENT", "TOOL", "USER", "NOW", "THEN", "BECAUSE"), [_row(fate) for fate in shown]))
        out(f"{moved} of {len(fates)} calls would change.")
    return 1 if exit_code and moved else 0


def read_calls(lines: Any, name: str) -> list[PolicyQuestion]:
    """Raises `InvalidInput` that names the line."""
    from foliot.tools.governance.judge import PolicyQuestion

    asks: list[PolicyQuestion] = []
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
        words: dict[str, Any] = {key: call[key] for key in _WORDS if isinstance(call.get(key), str)}
        words |= {key: tuple(call[key]) for key in _LISTS if isinstance(call.get(key), list)}
        args = call.get("args", {})
        if not isinstance(args, dict):
            raise InvalidInput(f"{where}: args is not a JSON object")
        given = cast("dict[str, Any]", args)
        asks.append(PolicyQuestion(call["agent"], call["tool"], given, **words))
    return asks


def _arguments(text: str, where: str) -> dict[str, Any]:
    value, problem = read_arguments(text)
    if value is None:
        raise UsageError(f"{where}: {problem}")
    return value


def _row(fate: CallComparison) -> tuple[str, ...]:
    mark = "!" if fate.changed else ""
    return (
        mark,
        fate.ask.agent,
        fate.ask.tool,
        fate.user or "-",
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


def _fate_as_data(fate: CallComparison) -> dict[str, Any]:
    return {
        "agent": fate.ask.agent,
        "tool": fate.ask.tool,
        "args": fate.ask.arguments,
        "user": fate.user,
        "changed": fate.changed,
        "before": {"outcome": fate.before.outcome, **_verdict_as_data(fate.before.decided)},
        "after": {"outcome": fate.after.outcome, **_verdict_as_data(fate.after.decided)},
    }
