"""`foliot budgets`: what may be spent, what was, and who waits for room."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from foliot.cli import complete
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out, paint
from foliot.common.text import counted, one_line
from foliot.resources.amounts import dollars

if TYPE_CHECKING:
    from foliot.engine.budgets.declared import BudgetRule, BudgetStanding

BAR: Final = 10
SHOWN: Final = 50


@click.group(invoke_without_command=True)
@output_option("table", "json", default="table", help="table or json.")
@click.pass_context
def budgets(context: click.Context, output: str) -> int | None:
    """Show budgets: limit, spent, reserved, and left in the current window.

    Budgets are declared: `foliot explain budget` describes them, `foliot apply` and `foliot edit` change them.
    """
    return None if context.invoked_subcommand is not None else run(_list(output))


@budgets.command()
@click.argument("name", shell_complete=complete.budgets)
@output_option("text", "json", default="text", help="text or json.")
def show(name: str, output: str) -> int:
    """Show one budget: who spent what in its current window, and the runs that wait for room in it."""
    return run(_show(name, output))


async def _list(output: str) -> int:
    async with connected() as operations:
        known = await operations.budgets.list(namespace=namespace(), limit=SHOWN)
    found = known.standings
    if output == "json":
        out(as_json([_as_data(each) for each in found]))
    elif found:
        headings = ("NAME", "SCOPE", "WINDOW", "SPENT", "RESERVED", "LIMIT", "LEFT", "USED")
        out(table(headings, [_row(each) for each in found]))
    elif known.declared:
        out("Nothing was spent from any budget yet.", err=True)
    else:
        out("No budgets found. `foliot explain budget` describes how to declare one.", err=True)
    return 0


async def _show(name: str, output: str) -> int:
    from foliot.engine.budgets.declared import budget_rule

    now = time.time()
    async with connected() as client:
        document = await client.resources.get("Budget", name, namespace=namespace())
        known = await client.budgets.list(namespace=namespace(), name=name)
    found, waiting = known.standings, known.waiting
    rule = budget_rule(document)
    if output == "json":
        data = {"name": name, "until": rule.span(now).until, "accounts": [_as_data(each) for each in found]}
        out(as_json({**data, "waiting": waiting}))
        return 0
    out(f"{paint(name, bold=True)}  {_scope(rule)}, {_window(rule, now)}")
    out(f"limit: {_limit(rule)}; without room a run {'waits' if rule.on_exceeded == 'pause' else 'fails'}")
    if rule.warn:
        out(f"warns at {', '.join(f'{each} %' for each in rule.warn)}")
    if found:
        out("")
        headings = ("PAYER", "PERIOD", "SPENT", "RESERVED", "LEFT", "TOKENS", "USED")
        out(table(headings, [_account_row(each) for each in found]))
    if waiting:
        out(f"\n{counted(len(waiting), 'run waits', 'runs wait')} for room:")
        out("\n".join(f"  {run_id}" for run_id in waiting[:SHOWN]))
    return 0


def _row(each: BudgetStanding) -> tuple[str, ...]:
    rule, money = each.rule, each.rule.micros is not None
    whose = each.account.payer.replace("=", " ") or _scope(rule)
    window = each.account.period if rule.window == "run" else rule.window
    balance = each.balance
    if money:
        amounts = (balance.spent.micros, balance.reserved.micros, rule.micros or 0, each.left.micros)
        cells = tuple(f"${dollars(amount)}" for amount in amounts)
    else:
        tokens = (balance.spent.tokens, balance.reserved.tokens, rule.tokens or 0, each.left.tokens)
        cells = tuple(f"{amount:,} tok" for amount in tokens)
    return (one_line(rule.name), one_line(whose), one_line(window), *cells, bar(each.percent))


def _account_row(each: BudgetStanding) -> tuple[str, ...]:
    balance, account = each.balance, each.account
    left = "-" if each.rule.micros is None else f"${dollars(each.left.micros)}"
    return (
        one_line(account.payer.replace("=", " ")) or "all",
        one_line(account.period),
        f"${dollars(balance.spent.micros)}",
        f"${dollars(balance.reserved.micros)}",
        left,
        f"{balance.spent.tokens:,}",
        bar(each.percent),
    )


def bar(percent: int) -> str:
    """`███████░░░  72 %`; what is over the limit does not make it longer."""
    full = min(BAR, percent * BAR // 100)
    return f"{'█' * full}{'░' * (BAR - full)} {percent:>3} %"


def _scope(rule: BudgetRule) -> str:
    each = {"agent": "each agent", "user": "each user"}
    parts = [each[word] if value == "*" else f"{word} {value}" for word, value in _named(rule)]
    parts += [f"{key}={value}" for key, value in rule.labels.items()]
    return ", ".join(parts) or "namespace"


def _named(rule: BudgetRule) -> list[tuple[str, str]]:
    return [(word, value) for word, value in (("agent", rule.agent), ("user", rule.user)) if value]


def _window(rule: BudgetRule, now: float) -> str:
    words = {"run": "each run with all it delegates", "total": "for ever"}
    if (word := words.get(rule.window)) is not None:
        return word
    until = rule.span(now).until
    assert until is not None, "calendar windows end"
    return f"each {rule.window}; begins anew at {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC"


def _limit(rule: BudgetRule) -> str:
    parts = [] if rule.micros is None else [f"${dollars(rule.micros)}"]
    return " and ".join([*parts, *([f"{rule.tokens:,} tokens"] if rule.tokens is not None else [])])


def _as_data(each: BudgetStanding) -> dict[str, Any]:
    rule, balance = each.rule, each.balance
    data: dict[str, Any] = {
        "budget": rule.name,
        "namespace": rule.namespace,
        "payer": each.account.payer,
        "window": rule.window,
        "period": each.account.period,
        "spent": {"usd": dollars(balance.spent.micros), "tokens": balance.spent.tokens},
        "reserved": {"usd": dollars(balance.reserved.micros), "tokens": balance.reserved.tokens},
        "percent": each.percent,
        "on_exceeded": rule.on_exceeded,
    }
    if rule.micros is not None:
        data["limit_usd"], data["left_usd"] = dollars(rule.micros), dollars(each.left.micros)
    if rule.tokens is not None:
        data["limit_tokens"], data["left_tokens"] = rule.tokens, each.left.tokens
    return data
