"""`foliot alertcheck`: whether the tasks of a store look healthy, for a cron job or a deployment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import click
import msgspec
from msgspec import Struct

from foliot.cli.commands.wait import parse_seconds
from foliot.cli.errors import say
from foliot.cli.loadtest.report import percentile
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import as_json, json_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out, paint
from foliot.common.times import iso
from foliot.errors import Unavailable
from foliot.runtime.groups.groups import Groups
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.story import TaskStory

# --- alerts ----------------------------------------------------------------------------------------------------------

# Whether the tasks of a store look healthy: rules over counts, each with a threshold and how bad it is. Pure.

Severity: TypeAlias = Literal["warning", "critical"]
SHOWN: Final = 10
TOO_FEW: Final = "insufficient_sample"


class AlertRules(Struct, frozen=True):
    """A rule fires when its figure reaches the threshold; 0 turns it off."""

    min_tasks: int = 20
    require_any_task_succeeded: bool = True
    retry_storm_total: float = 100
    retry_storm_rate: float = 2.0
    deadletter_growth_total: float = 20
    deadletter_growth_rate: float = 0.10
    in_flight_max: float = 200
    latency_p95_ms_max: float = 120_000


PROFILES: Final[Mapping[str, AlertRules]] = {
    "default": AlertRules(),
    "ci": AlertRules(min_tasks=10, latency_p95_ms_max=300_000),
}


class Violation(Struct, frozen=True):
    code: str
    severity: Severity
    message: str


class Sample(Struct, frozen=True):
    """One task, as far as the rules look at it."""

    name: str
    phase: str
    retries: int
    dead_messages: int
    in_flight: int
    p95_ms: float


def sample(story: TaskStory, now: float) -> Sample:
    """`p95_ms` is over the messages of the task: from being sent to their end, or until now."""
    worked = [each for each in story.messages.values() if each.run is not None or each.ended is not None]
    return Sample(
        story.info.name,
        story.info.phase,
        retries=sum(max(0, each.attempts - 1) for each in worked) + max(0, story.info.attempt - 1),
        dead_messages=sum(each.phase == "dead_letter" for each in worked),
        in_flight=len(story.live),
        p95_ms=round(percentile([each.seconds(now) * 1000 for each in worked], 0.95), 2),
    )


def aggregate(samples: Iterable[Sample]) -> dict[str, Any]:
    found = list(samples)
    tasks = len(found)
    retries = sum(each.retries for each in found)
    dead = sum(each.phase == "dead_lettered" for each in found)
    return {
        "tasks": tasks,
        "succeeded_tasks": sum(each.phase == "succeeded" for each in found),
        "failed_tasks": sum(each.phase in ("failed", "cancelled") for each in found),
        "deadletter_tasks": dead,
        "retry_count_total": retries,
        "deadletters_total": sum(each.dead_messages for each in found),
        "in_flight_total": sum(each.in_flight for each in found),
        "latency_p95_ms_max": max((each.p95_ms for each in found), default=0.0),
        "retry_rate_per_task": round(retries / tasks, 4) if tasks else 0.0,
        "deadletter_task_rate": round(dead / tasks, 4) if tasks else 0.0,
    }


def check(rules: AlertRules, totals: Mapping[str, Any]) -> list[Violation]:
    """Return the violations of the rules; with too few tasks to judge, only that."""
    if rules.min_tasks and totals["tasks"] < rules.min_tasks:
        text = f"{totals['tasks']} tasks are too few to tell anything; at least {rules.min_tasks} are needed"
        return [Violation(TOO_FEW, "warning", text)]
    found: list[Violation] = []
    if rules.require_any_task_succeeded and not totals["succeeded_tasks"]:
        found.append(Violation("no_success", "critical", f"not one of {totals['tasks']} tasks has succeeded"))
    thresholds: tuple[tuple[str, Severity, str, float], ...] = (
        ("retry_storm_total", "critical", "retry_count_total", rules.retry_storm_total),
        ("retry_storm_rate", "critical", "retry_rate_per_task", rules.retry_storm_rate),
        ("deadletter_growth_total", "critical", "deadletters_total", rules.deadletter_growth_total),
        ("deadletter_growth_rate", "critical", "deadletter_task_rate", rules.deadletter_growth_rate),
        ("in_flight_high", "warning", "in_flight_total", rules.in_flight_max),
        ("latency_p95_high", "warning", "latency_p95_ms_max", rules.latency_p95_ms_max),
    )
    for code, severity, figure, threshold in thresholds:
        if threshold and totals[figure] >= threshold:
            found.append(Violation(code, severity, f"{figure} is {totals[figure]:g}, and {threshold:g} is too much"))
    return found


# --- alertcheck ------------------------------------------------------------------------------------------------------

VIOLATED = 2
UNDECIDED = 1
MOST = 1000


@click.command()
@click.option("--profile", type=click.Choice(list(PROFILES)), default="default", show_default=True, help="Thresholds.")
@click.option("--task-name-prefix", default="", metavar="TEXT", help="Only tasks whose name begins so.")
@click.option("--task-system", metavar="NAME", help="Only tasks of this system or agent.")
@click.option("--since", metavar="TIME", help="Only those accepted in the last 5m, 1h, …")
@click.option(
    "--poll-concurrency",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="How many tasks are read at once.",
)
@click.option("--timeout", default="2m", show_default=True, metavar="TIME", help="Give up after this long.")
@json_option("text, or json: the report.", name="as_json_")
def alertcheck(profile: str, as_json_: bool, timeout: str, **options: Any) -> int:
    """Check whether the newest tasks (a thousand at most) look healthy: retries, dead letters, load, times.

    Exit code: 0 healthy, 2 a rule fired, 1 there are too few tasks to tell.
    """
    seconds, since = parse_seconds(timeout), options.pop("since")
    options["after"] = None if since is None else time.time() - parse_seconds(since)
    report = run(_within(seconds, profile, options))
    if as_json_:
        out(as_json(report))
    else:
        totals = report["aggregate"]
        out(table(["TASKS", "VALUE"], [[name.replace("_", " "), f"{totals[name]:,}"] for name in totals]))
        out()
        for violation in report["violations"]:
            color = "red" if violation["severity"] == "critical" else "yellow"
            say(violation["severity"], f"{violation['code']}: {violation['message']}", fg=color)
        if not report["violations"]:
            out(paint("Nothing to complain about.", fg="green"))
    codes = {violation["code"] for violation in report["violations"]}
    return 0 if not codes else UNDECIDED if codes == {TOO_FEW} else VIOLATED


async def _within(seconds: float, profile: str, options: dict[str, Any]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(seconds):
            return await _check(profile, PROFILES[profile], **options)
    except TimeoutError:
        raise Unavailable(f"the tasks could not be read in {seconds:g} s", hint="give more with --timeout") from None


async def _check(
    profile: str,
    rules: AlertRules,
    *,
    task_name_prefix: str,
    task_system: str | None,
    after: float | None,
    poll_concurrency: int,
) -> dict[str, Any]:
    async with reached() as client:
        infos = await _newest(client, task_system, after)
        chosen = [info for info in infos if info.name.startswith(task_name_prefix)]
        gate = asyncio.Semaphore(poll_concurrency)

        async def one(info: TaskInfo) -> Sample:
            async with gate:
                story = await client.tasks.story(info.name, namespace=info.namespace)
                return sample(story, time.time())

        samples = await asyncio.gather(*map(one, chosen))
    totals = aggregate(samples)
    return {
        "timestamp": iso(time.time()),
        "namespace": namespace(),
        "profile": {"name": profile, **msgspec.to_builtins(rules)},
        "aggregate": totals,
        "violations": msgspec.to_builtins(check(rules, totals)),
        "sample_tasks": [each.name for each in samples[:SHOWN]],
    }


async def _newest(work: Groups, target: str | None, after: float | None) -> list[TaskInfo]:
    found: list[TaskInfo] = []
    cursor: str | None = None
    while len(found) < MOST:
        page, cursor = await work.tasks.list(
            namespace=namespace(), target=target, created_after=after, limit=200, cursor=cursor
        )
        found += page
        if cursor is None:
            break
    return found[:MOST]
