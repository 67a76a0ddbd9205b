"""Code written against a `Runtime` runs on a `Client`, also where something is wrong: the same calls, played on both.

Each row of the table is a call that is mistaken, or close to it, and the words that its error must name. Both sides are
to raise the same class with the same code, text and hint, or to return the same. A new verb belongs into the table: the
test at the end says which are missing.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from foliot import (
    Client,
    Command,
    Filter,
    Limit,
    PolicyQuestion,
    Requirement,
    Requirements,
    Runtime,
    parse_manifests,
)
from foliot.errors import FoliotError
from foliot.runtime.groups import store, work
from foliot.testing.served import served

EXAMPLES = Path(__file__).parents[2] / "examples"
Both = Any
"""A `Runtime` or a `Client`: the calls below are wrong on purpose, and no type checker would let them pass."""

WORDS = "decision: 'hapened' is not one of fail, happened, not_happened, run"


class Row(NamedTuple):
    call: Callable[[Both], Awaitable[Any]]
    named: str
    """What the message or the hint says; for a call that is right, what is returned, as text."""


async def first(items: AsyncGenerator[Any]) -> Any:
    async for item in items:
        await items.aclose()
        return item
    return None


async def asked(foliot: Both) -> str:
    """Returns the name of the open approval of run `paid`."""
    (found,) = await foliot.approvals.list(run="paid")
    return found["metadata"]["name"]


async def approved(foliot: Both, **given: Any) -> str:
    return (await foliot.approvals.approve(await asked(foliot), **given)).document["status"]["phase"]


async def edited(foliot: Both, arguments: dict[str, Any]) -> str:
    return (await foliot.approvals.edit(await asked(foliot), arguments)).document["status"]["phase"]


async def granted(foliot: Both, tool: str, **given: Any) -> str:
    return (await foliot.approvals.grant(tool, **{"seconds": 60, **given}))["status"]["phase"]


async def phase(result: Awaitable[Any]) -> str:
    return (await result).phase


def runs_that_are_missing() -> dict[str, Row]:
    plain = ("get", "find", "events", "trace", "why", "results", "resume", "replay", "cancel", "wait")
    return {
        **{
            f"runs.{verb} of no run": Row(lambda f, verb=verb: getattr(f.runs, verb)("zz"), "run 'zz'")
            for verb in plain
        },
        "runs.watch of no run": Row(lambda f: first(f.runs.watch("zz")), "run 'zz'"),
        "runs.result of no run": Row(lambda f: f.runs.result("zz", "c"), "run 'zz'"),
        "runs.fork_point of no run": Row(lambda f: f.runs.fork_point("zz", at=1), "run 'zz'"),
        "runs.fork of no run": Row(lambda f: f.runs.fork("zz", at=1), "run 'zz'"),
        "runs.say to no run": Row(lambda f: f.runs.say("zz", "hi"), "run 'zz'"),
        "runs.settle of no run": Row(lambda f: f.runs.settle("zz", "send", "happened"), "run 'zz'"),
        "questions.answer to no run": Row(lambda f: f.questions.answer("zz", "blue"), "run 'zz'"),
        "resume of no run": Row(lambda f: f.resume("zz"), "run 'zz'"),
    }


def tasks_that_are_missing() -> dict[str, Row]:
    plain = ("get", "find", "story", "records", "events", "why", "cancel", "retry", "archive", "delete", "wait")
    return {
        **{f"tasks.{verb} of no task": Row(lambda f, verb=verb: getattr(f.tasks, verb)("zz"), "zz") for verb in plain},
        "tasks.follow of no task": Row(lambda f: first(f.tasks.follow("zz")), "zz"),
        "tasks.changed of no task": Row(lambda f: f.tasks.changed("zz", cursor=None, timeout=0), "zz"),
    }


def lists_of_no_length() -> dict[str, Row]:
    lists: dict[str, Callable[[Both, int], Awaitable[Any]]] = {
        "runs.list": lambda f, limit: f.runs.list(limit=limit),
        "runs.unknown": lambda f, limit: f.runs.unknown(limit=limit),
        "tasks.list": lambda f, limit: f.tasks.list(limit=limit),
        "audit.list": lambda f, limit: f.audit.list(limit=limit),
        "budgets.list": lambda f, limit: f.budgets.list(limit=limit),
        "resources.list": lambda f, limit: f.resources.list(Filter("Agent", "default"), limit=limit),
        "schedules.slots": lambda f, limit: f.schedules.slots("zz", limit=limit),
        "webhooks.deliveries": lambda f, limit: f.webhooks.deliveries("zz", limit=limit),
        "channels.deliveries": lambda f, limit: f.channels.deliveries("zz", limit=limit),
    }
    return {
        f"{name} limit={limit}": Row(lambda f, call=call, limit=limit: call(f, limit), f"{limit} items")
        for name, call in lists.items()
        for limit in (0, -1)
    }


def words_that_are_none() -> dict[str, Row]:
    return {
        "runs.settle": Row(lambda f: f.runs.settle("parcel", "send", "hapened"), WORDS),
        "runs.settle of an ended run": Row(lambda f: f.runs.settle("over", "send", "hapened"), WORDS),
        "runs.say": Row(lambda f: f.runs.say("door", "hi", mode="shout"), "supported: queue, followup, collect, steer"),
        "runs.list": Row(lambda f: f.runs.list(phases=["sucess"]), "cancelled, failed, pending"),
        "tasks.list": Row(lambda f: f.tasks.list(phases=("sucess",)), "'sucess' is not one of DeadLetter, Pending"),
        "tasks.submit kind": Row(lambda f: f.tasks.submit(Command("agnt", "desk", message="x")), "agent, system"),
        "tasks.submit priority": Row(
            lambda f: f.tasks.submit(Command("agent", "desk", message="x", priority="hgih")),
            "did you mean high?",
        ),
        "audit.totals": Row(lambda f: f.audit.totals(by="user"), "agent, day, run, tool"),
        "workers.set_limit": Row(lambda f: f.workers.set_limit(Limit("nmespace", "x", 3)), "agent, lane, namespace"),
        "workers.clear_limit": Row(lambda f: f.workers.clear_limit("nmespace", "x"), "did you mean namespace?"),
        "resources.get": Row(lambda f: f.resources.get("Agnet", "desk"), "did you mean agents?"),
        "resources.list": Row(lambda f: f.resources.list(Filter("Agnet", "default")), "did you mean agents?"),
        "resources.watch": Row(lambda f: first(f.resources.watch(Filter("Agnet"), after=0)), "did you mean agents?"),
        "resources.delete": Row(lambda f: f.resources.delete("Agnet", "desk"), "did you mean agents?"),
        "resources.list field": Row(
            lambda f: f.resources.list(Filter("Agent", fields=(Requirement("spec.modelref", "=", ("x",)),))),
            "spec.modelref",
        ),
        "resources.get by its plural": Row(lambda f: name_of(f.resources.get("agents", "desk")), "desk"),
        "tools.accept": Row(lambda f: f.tools.accept("zz", "t", "a" * 12, {"effect": "never"}), "effect"),
        "tools.accept digest": Row(lambda f: f.tools.accept("zz", "t", "d", {}), "digest"),
    }


async def name_of(document: Awaitable[dict[str, Any]]) -> str:
    return (await document)["metadata"]["name"]


def inputs_that_cannot_be_used() -> dict[str, Row]:
    empty = "the input is empty"
    return {
        "run with nothing": Row(lambda f: f.run("painter", ""), empty),
        "run with blanks": Row(lambda f: f.run("painter", " \n"), empty),
        "run with no message": Row(lambda f: f.run("painter", ()), empty),
        "run with a number": Row(lambda f: f.run("painter", 3), "nothing that an agent can be told"),
        "run of nobody": Row(lambda f: f.run("nobody", "x"), "Agent/nobody"),
        "run of another namespace": Row(lambda f: f.run("other/painter", "x"), "'other/painter'"),
        "run with a bad id": Row(lambda f: f.run("painter", "x", run_id="a b"), "'a b'"),
        "run of a taken id": Row(lambda f: f.run("painter", "other", run_id="door"), "another input"),
        "stream with nothing": Row(lambda f: first(f.stream("painter", "")), empty),
        "stream of nobody": Row(lambda f: first(f.stream("nobody", "x")), "Agent/nobody"),
        "runs.start with nothing": Row(lambda f: f.runs.start("painter", ""), empty),
        "runs.start of nobody": Row(lambda f: f.runs.start("nobody", "x"), "Agent/nobody"),
        "runs.start of another namespace": Row(lambda f: f.runs.start("other/painter", "x"), "'other/painter'"),
        "runs.start with a bad id": Row(lambda f: f.runs.start("painter", "x", run_id="a b"), "'a b'"),
        "runs.start of a taken id": Row(lambda f: f.runs.start("painter", "other", run_id="door"), "another input"),
        "runs.start of another's id": Row(lambda f: f.runs.start("desk", "x", run_id="door"), "'door'"),
        "runs.fork_point": Row(lambda f: f.runs.fork_point("over", at=1), "Fork(run_id='over'"),
        "runs.fork_point behind the end": Row(lambda f: f.runs.fork_point("over", at=99), "no step 99"),
        "runs.fork_point at no step": Row(lambda f: f.runs.fork_point("over", at=0), "no step 0"),
        "runs.fork at no step": Row(lambda f: f.runs.fork("over", at=0), "step 0"),
        "runs.fork behind the end": Row(lambda f: f.runs.fork("over", at=99), "step 99"),
        "runs.fork with nothing": Row(lambda f: f.runs.fork("over", at=1, input=""), empty),
        "runs.fork with no model": Row(lambda f: f.runs.fork("over", at=1, model="nope"), "ModelEndpoint/nope"),
        "runs.say nothing": Row(lambda f: f.runs.say("door", " "), "there is nothing to say"),
        "runs.cancel of an ended run": Row(lambda f: f.runs.cancel("over"), "has ended"),
        "runs.result before its beginning": Row(lambda f: f.runs.result("over", "c", offset=-1), "must be at least 0"),
        "runs.result of no call": Row(lambda f: f.runs.result("over", "c"), "'c'"),
        "runs.unknown behind no cursor": Row(lambda f: f.runs.unknown(after="garbage"), "cursor"),
        "runs.settle that goes on": Row(lambda f: f.runs.settle("parcel", "send", "not_happened"), "has not ended"),
        "runs.settle of no call": Row(lambda f: f.runs.settle("parcel", "sned", "fail"), "'sned'"),
        "runs.settle with a result": Row(
            lambda f: f.runs.settle("parcel", "send", "fail", result="x"), "a result goes"
        ),
        "tasks.submit for no agent yet": Row(lambda f: submitted(f, "nobody"), "nobody is"),
        "tasks.submit with nothing": Row(lambda f: f.tasks.submit(Command("agent", "desk")), "message is required"),
        "tasks.submit of a taken name": Row(
            lambda f: f.tasks.submit(Command("agent", "desk", message="other", name="far")), "'far'"
        ),
        "tasks.list behind no cursor": Row(lambda f: f.tasks.list(cursor="garbage"), "cursor"),
        "tasks.events behind no cursor": Row(lambda f: f.tasks.events("far", cursor="garbage"), "cursor"),
        "tasks.delete of a live task": Row(lambda f: f.tasks.delete("far"), "has not ended"),
        "questions.answer with nothing": Row(lambda f: f.questions.answer("door", ""), "the answer is empty"),
        "questions.answer to no question": Row(lambda f: f.questions.answer("over", "x"), "asks nothing"),
        "questions.answer to no call": Row(lambda f: f.questions.answer("door", "x", call="c"), "'c'"),
        "resources.list behind no cursor": Row(
            lambda f: f.resources.list(Filter("Agent", "default"), cursor="garbage"), "cursor"
        ),
        "resources.delete of what is used": Row(lambda f: f.resources.delete("Agent", "desk"), "far"),
        "resources.delete at another version": Row(
            lambda f: f.resources.delete("Agent", "painter", version="99999"), "not 99999"
        ),
        "resources.replace without a version": Row(
            lambda f: f.resources.replace(
                {"kind": "Agent", "metadata": {"name": "q", "namespace": "default"}, "spec": {"model_ref": "model"}}
            ),
            "without the version",
        ),
        "workers.set_limit below nothing": Row(
            lambda f: f.workers.set_limit(Limit("namespace", "default", -1)), "a limit of -1"
        ),
    }


def names_of_nothing() -> dict[str, Row]:
    return {
        "approvals.get": Row(lambda f: f.approvals.get("zz"), "'zz'"),
        "approvals.approve": Row(lambda f: f.approvals.approve("zz"), "ToolApproval/zz"),
        "approvals.deny": Row(lambda f: f.approvals.deny("zz"), "ToolApproval/zz"),
        "approvals.edit": Row(lambda f: f.approvals.edit("zz", {}), "ToolApproval/zz"),
        "approvals.revoke": Row(lambda f: f.approvals.revoke("zz"), "ToolApproval/zz"),
        "approvals.list": Row(lambda f: f.approvals.list(run="zz"), "[]"),
        "tools.get": Row(lambda f: f.tools.get("pya"), "did you mean pay?"),
        "tools.call": Row(lambda f: f.tools.call("zz", {}), "tool 'zz'"),
        "tools.call agent": Row(lambda f: f.tools.call("pay", {"amount": 3}, agent="zz"), "Agent/zz"),
        "tools.test": Row(lambda f: f.tools.test("zz", {}), "tool 'zz'"),
        "tools.offered": Row(lambda f: f.tools.offered("zz"), "McpServer/zz"),
        "tools.accept": Row(lambda f: f.tools.accept("zz", "t", "a" * 12, {}), "McpServer/zz"),
        "resources.get": Row(lambda f: f.resources.get("Agent", "paintr"), "did you mean painter?"),
        "resources.get task": Row(lambda f: f.resources.get("Task", "zz"), "Task/zz"),
        "resources.delete": Row(lambda f: f.resources.delete("Agent", "paintr"), "did you mean painter?"),
        "schedules.get": Row(lambda f: f.schedules.get("zz"), "schedule 'zz'"),
        "schedules.slots": Row(lambda f: f.schedules.slots("zz"), "schedule 'zz'"),
        "schedules.run": Row(lambda f: f.schedules.run("zz"), "schedule 'zz'"),
        "webhooks.get": Row(lambda f: f.webhooks.get("zz"), "webhook 'zz'"),
        "webhooks.rotate": Row(lambda f: f.webhooks.rotate("zz"), "webhook 'zz'"),
        "webhooks.deliveries": Row(lambda f: f.webhooks.deliveries("zz"), "webhook 'zz'"),
        "channels.deliveries": Row(lambda f: f.channels.deliveries("zz"), "channel 'zz'"),
        "channels.retry": Row(lambda f: f.channels.retry("zz", 1), "channel 'zz'"),
        "webhooks.delivery": Row(lambda f: f.webhooks.delivery("zz", "d"), "webhook 'zz'"),
        "webhooks.replay": Row(lambda f: f.webhooks.replay("zz", "d"), "webhook 'zz'"),
        "webhooks.send_test": Row(lambda f: f.webhooks.send_test("zz", b"{}", event_id="e"), "webhook 'zz'"),
        "audit.get": Row(lambda f: f.audit.get(99999), "99999"),
        "audit.get below the first": Row(lambda f: f.audit.get(-1), "-1"),
        "budgets.list": Row(lambda f: f.budgets.list(name="zz"), "Budget/zz"),
        "policies.explain": Row(lambda f: f.policies.explain(PolicyQuestion("zz", "pay", {})), "Agent/zz"),
        "policies.explain tool": Row(lambda f: f.policies.explain(PolicyQuestion("desk", "pya", {})), "Tool/pya"),
        "policies.simulate": Row(lambda f: f.policies.simulate([{"kind": "Agnet"}], []), "Agent"),
        "workers.clear_limit": Row(lambda f: f.workers.clear_limit("namespace", "zz"), "'zz'"),
        "workers.mend_class": Row(lambda f: f.workers.mend_class("zz"), "'zz'"),
    }


def decisions() -> dict[str, Row]:
    """Decisions of people: what they may leave out, and what keeps one from being taken. The last one is taken."""
    return {
        "approvals.edit that does not fit": Row(lambda f: edited(f, {"amount": "many"}), "do not fit pay"),
        "approvals.approve of other arguments": Row(lambda f: approved(f, digest="sha256:0"), "changed meanwhile"),
        "approvals.grant without by": Row(lambda f: granted(f, "send"), "Approved"),
        "approvals.grant for no use": Row(lambda f: granted(f, "send", max_uses=0), "max_uses must be at least 1"),
        "approvals.grant for no time": Row(lambda f: granted(f, "send", seconds=0), "seconds must be more than 0"),
        "approvals.grant for no tool": Row(lambda f: granted(f, ""), "names a tool"),
        "approvals.grant of no condition": Row(lambda f: granted(f, "send", when="args.x >"), "not a CEL expression"),
        "approvals.approve without by": Row(lambda f: approved(f), "Approved"),
        "runs.wait, then": Row(lambda f: phase(f.runs.wait("paid")), "succeeded"),
        "runs.settle without by": Row(lambda f: phase(settled(f)), "succeeded"),
    }


async def submitted(foliot: Both, agent: str) -> str:
    """A task whose agent may be declared later is accepted, and waits."""
    accepted = await foliot.tasks.submit(Command("agent", agent, message="x", name="early"))
    return f"{agent} is {accepted.task.phase}"


async def settled(foliot: Both) -> Any:
    await foliot.runs.settle("parcel", "send", "happened", result="at noon")
    return await foliot.runs.wait("parcel")


def waits() -> dict[str, Row]:
    return {
        "runs.wait for a call of unknown outcome": Row(lambda f: phase(f.runs.wait("parcel")), "waiting"),
        "runs.get of one": Row(lambda f: phase(result_of(f.runs.get("parcel"))), "waiting"),
        "runs.wait for what has ended": Row(lambda f: phase(f.runs.wait("over", timeout=0)), "cancelled"),
        "runs.wait for what waits": Row(lambda f: phase(f.runs.wait("door", timeout=0)), "waiting"),
        "tasks.wait": Row(lambda f: f.tasks.wait("far", timeout=0), "task far has not ended after 0 seconds"),
        "runs.list": Row(lambda f: ids(f.runs.list(phases=("cancelled",))), "['over']"),
        "runs.list of a capital": Row(lambda f: ids(f.runs.list(phases=("Cancelled",))), "['over']"),
        "tasks.list as shown": Row(lambda f: named(f.tasks.list(phases=("Pending", "Running"))), "['far']"),
        "tasks.list as stored": Row(lambda f: named(f.tasks.list(phases=("queued", "running"))), "['far']"),
        "runs.list of more than a page": Row(
            lambda f: ids(f.runs.list(agent="painter", limit=5000)), "['over', 'door']"
        ),
    }


async def result_of(standing: Awaitable[Any]) -> Any:
    return (await standing).result


async def named(found: Awaitable[tuple[list[Any], str | None]]) -> list[str]:
    return [each.name for each in (await found)[0]]


async def ids(found: Awaitable[list[Any]]) -> list[str]:
    return [each.id for each in await found]


TABLES = (
    waits,
    runs_that_are_missing,
    tasks_that_are_missing,
    names_of_nothing,
    lists_of_no_length,
    words_that_are_none,
    inputs_that_cannot_be_used,
    decisions,
)


async def prepared(foliot: Both) -> None:
    """Runs that wait for a call of unknown outcome, a question and an approval, one that has ended, a queued task."""
    import same_script

    await foliot.resources.apply(parse_manifests(same_script.MANIFESTS))
    for run_id, agent in (("parcel", "courier"), ("door", "painter"), ("paid", "desk"), ("over", "painter")):
        await foliot.runs.start(agent, "Go", run_id=run_id)
        waits = await foliot.runs.wait(run_id)
        assert waits.phase == "waiting", run_id  # however soon after the event one looks
    await foliot.runs.cancel("over")
    await foliot.runs.wait("over")
    far = Requirements(region="moon")
    await foliot.tasks.submit(Command("agent", "desk", message="Pay", name="far", requirements=far))


async def played(foliot: Both) -> dict[str, str]:
    """Plays every table on one side. What it says of a call is the same on both."""
    await prepared(foliot)
    found: dict[str, str] = {}
    for table in TABLES:
        for name, row in table().items():
            try:
                told = str(await asyncio.wait_for(row.call(foliot), 60))
            except FoliotError as error:
                told = f"{type(error).__name__} ({error.code}): {error.message} [{error.hint or ''}]"
            except TimeoutError as error:
                told = f"TimeoutError: {error}"
            told = told.replace("query.offset", "offset").replace("; over HTTP: GET /v1/runs", "")  # where, over HTTP
            found[f"{table.__name__}: {name}"] = told
            if row.named not in told:
                found[f"{table.__name__}: {name}"] = f"{told}, which does not name {row.named!r}"
    return found


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Runtime, Client]]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from same_script import TOOLS

    here, there = tmp_path / "here.db", tmp_path / "there"
    there.mkdir()
    async with (
        Runtime(str(here), tools=TOOLS) as runtime,
        served(there, tools=TOOLS) as url,
        Client(url, home=there) as client,
    ):
        yield runtime, client
    sys.modules.pop("same_script")


async def test_a_runtime_and_a_client_refuse_and_return_the_same(both: tuple[Runtime, Client]) -> None:
    here, there = await asyncio.gather(*(played(each) for each in both))

    assert here == there
    assert [told for told in here.values() if "which does not name" in told] == []


async def test_whoever_decides_without_a_name_is_the_user_of_the_process(
    both: tuple[Runtime, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    runtime, _ = both
    await prepared(runtime)

    grant = await runtime.approvals.grant("send", seconds=60)
    answered = await runtime.approvals.approve(await asked(runtime))

    assert grant["status"]["decided_by"] == answered.document["status"]["decided_by"] == "ann"


def test_a_group_offers_the_verbs_it_promises_and_no_more(tmp_path: Path) -> None:
    from foliot.client import remote, remote_operations, remote_work
    from foliot.runtime.local import operations, resources, tools
    from foliot.runtime.local import work as local_work

    for module in (local_work, operations, resources, tools, remote, remote_operations, remote_work):
        for made in vars(module).values():
            if not inspect.isclass(made) or made.__module__ != module.__name__:
                continue
            for base in (each for each in made.__mro__ if each.__module__ in (work.__name__, store.__name__)):
                promised = {name for name in dir(base) if not name.startswith("_")}
                assert {name for name in dir(made) if not name.startswith("_")} == promised, made.__name__
