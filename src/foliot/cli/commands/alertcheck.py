"""`foliot alertcheck`: whether the tasks of a store look healthy, for a cron job or a deployment."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click
import msgspec

from foliot.cli.commands.wait import parse_seconds
from foliot.cli.connect import namespace, run
from foliot.cli.errors import say
from foliot.cli.loadtest.alerts import PROFILES, SHOWN, TOO_FEW, Rules, Sample, aggregate, check, sample
from foliot.cli.output import as_json
from foliot.cli.runtimes import reached
from foliot.cli.tables import table
from foliot.cli.terminal import out, paint
from foliot.client.work import Work
from foliot.errors import Unavailable
from foliot.work.base import TaskInfo
from foliot.work.story.happenings import iso

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
@click.option("--json", "as_json_", is_flag=True, help="The report as JSON.")
def alertcheck(profile: str, as_json_: bool, timeout: str, **options: Any) -> int:
    """Say whether the newest tasks (a thousand at most) look healthy: retries, dead letters, what is under way, times.

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
    rules: Rules,
    *,
    task_name_prefix: str,
    task_system: str | None,
    after: float | None,
    poll_concurrency: int,
) -> dict[str, Any]:
    async with reached() as reach:
        infos = await _newest(reach.work, task_system, after)
        chosen = [info for info in infos if info.name.startswith(task_name_prefix)]
        gate = asyncio.Semaphore(poll_concurrency)

        async def one(info: TaskInfo) -> Sample:
            async with gate:
                story = await reach.work.story(info.namespace, info.name)
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


async def _newest(work: Work, target: str | None, after: float | None) -> list[TaskInfo]:
    found: list[TaskInfo] = []
    cursor: str | None = None
    while len(found) < MOST:
        page, cursor = await work.tasks(
            namespace=namespace(), target=target, created_after=after, limit=200, cursor=cursor
        )
        found += page
        if cursor is None:
            break
    return found[:MOST]
