"""One program, on a runtime in this process and on a server: both have the same verbs.

    python examples/same_script.py             on a store in a temporary folder
    python examples/same_script.py --server    on a server, here one that is started for it

A refund desk pays after a person agreed, asks what it does not know, loses a line in the middle of a payment, and is
cancelled, forked and replayed. It runs offline.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from typing import Any

from foliot import (
    AuditFilter,
    Client,
    Command,
    Filter,
    Limit,
    PolicyQuestion,
    Requirements,
    Runtime,
    parse_manifests,
    tool,
)
from foliot.errors import Conflict
from foliot.testing.served import served

MANIFESTS = """
{kind: Agent, metadata: {name: desk}, spec: {model_ref: model, tools: [pay], execution: {on_denied: tell}}}
---
{kind: Agent, metadata: {name: painter}, spec: {model_ref: painter-model, tools: [ask_user]}}
---
{kind: Agent, metadata: {name: courier}, spec: {model_ref: courier-model, tools: [send]}}
---
kind: ToolPermission
metadata: {name: payments}
spec: {tool_ref: pay, conditions: [{when: args.amount > 10, verdict: approval_required, reason: large}]}
---
kind: ModelEndpoint
metadata: {name: model}
spec:
  provider: scripted
  default_model: m
  script: [{call: {pay: {amount: 50}}}, {say: "The desk says: {last_result}"}]
---
kind: ModelEndpoint
metadata: {name: painter-model}
spec:
  provider: scripted
  default_model: m
  script: [{call: {ask_user: {question: Which colour?}}}, {say: "It is {last_result}."}]
---
kind: ModelEndpoint
metadata: {name: courier-model}
spec: {provider: scripted, default_model: m, script: [{call: {send: {}}}, {say: "Sent: {last_result}"}]}
"""


@tool(effect="once")
def pay(amount: float) -> str:
    """Pay money out."""
    return f"paid {amount:g}"


@tool(effect="once")
def send() -> str:
    """Send a parcel, over a line that breaks: nobody knows whether it left."""
    raise ConnectionResetError("the line is dead")


TOOLS = [pay, send]


async def script(foliot: Runtime | Client) -> list[Any]:
    """What anybody does with Foliot, and what came of it. Nothing here knows which of the two it is."""
    seen: list[Any] = []

    applied = await foliot.resources.apply(parse_manifests(MANIFESTS))
    seen.append([outcome.action for outcome in applied.outcomes])
    page = await foliot.resources.list(Filter("Agent", "default"))
    seen.append([document["metadata"]["name"] for document in page.items])

    # A call that needs an approval: approved, denied, and approved with other arguments.
    for run_id in ("approved", "denied", "edited"):
        started = await foliot.runs.start("desk", "Pay", run_id=run_id, labels={"example": "same-script"})
        waits = await foliot.runs.wait(started.id)
        assert waits.waiting is not None, waits
        (asked,) = await foliot.approvals.list(run=run_id)
        name = asked["metadata"]["name"]
        match run_id:
            case "approved":
                answered = await foliot.approvals.approve(name, by="ann")
            case "denied":
                answered = await foliot.approvals.deny(name, by="ann", comment="too much")
            case _:
                answered = await foliot.approvals.edit(name, {"amount": 20}, by="ann")
        ended = await foliot.runs.wait(answered.run_id)
        output = ended.output.partition(" by ")[0]  # a server knows by the token who decided, whatever `by` says
        seen.append((waits.waiting.reason, answered.document["status"]["phase"], ended.phase, output))
        try:
            await foliot.approvals.approve(name, by="bob")
        except Conflict:
            seen.append("decided once")

    # A question.
    await foliot.runs.start("painter", "Paint the door", run_id="door")
    await foliot.runs.wait("door")
    (question,) = await foliot.questions.list()
    await foliot.questions.answer("door", "blue", call=question.call_id, by="ann")
    seen.append((question.question, (await foliot.runs.wait("door")).output))

    # A call of unknown outcome.
    await foliot.runs.start("courier", "Send it", run_id="parcel")
    lost = await foliot.runs.wait("parcel")
    unknown = await foliot.runs.unknown()
    seen.append((lost.waiting and lost.waiting.reason, [(each.run_id, each.tool) for each in unknown.calls]))
    await foliot.runs.settle("parcel", "send", "happened", result="it left at noon", by="ann", reason="I asked")
    seen.append((await foliot.runs.wait("parcel")).output)

    # Cancelled, forked, replayed, explained.
    await foliot.runs.start("painter", "Paint the wall", run_id="wall")
    await foliot.runs.wait("wall")
    await foliot.runs.cancel("wall", by="ann", reason="no wall")
    wall = await foliot.runs.wait("wall")
    seen.append((wall.phase, (await foliot.runs.why("wall")).headline))
    await foliot.runs.fork("door", at=2, new_id="door-2", prompt="Be brief.")
    seen.append(((await foliot.runs.wait("door-2")).output, (await foliot.runs.find("door-2")).parent))
    replayed = await foliot.runs.replay("approved")
    seen.append((replayed.ended, replayed.difference))
    seen.append([type(event).__name__ for _, event in await foliot.runs.events("approved")][:2])
    seen.append([(call.name, call.ok) for call in (await foliot.runs.trace("approved")).calls])
    seen.append(
        [
            (each.tool, (await foliot.runs.result("approved", each.call)).text)
            for each in await foliot.runs.results("approved")
        ]
    )
    seen.append(sorted((run.id, run.agent, run.phase) for run in await foliot.runs.list()))
    seen.append((await foliot.runs.resume("door")).phase)
    seen.append(await foliot.runs.interrupted())

    # The whole at once.
    result = await foliot.run("desk", "Pay", run_id="whole", check=False)
    seen.append((result.phase, [message.role for message in result.messages]))
    await foliot.approvals.grant("pay", seconds=60, agent="desk", by="ann", comment="for today")
    result = await foliot.run("desk", "Pay", run_id="granted")
    seen.append((result.output, [message.role for message in result.messages]))
    seen.append((await foliot.resume("granted")).output)
    seen.append([type(item).__name__ async for item in foliot.stream("desk", "Pay", run_id="streamed")][-1])

    # A task that no worker takes: submitted, cancelled, retried, archived.
    command = Command("agent", "desk", message="Pay", name="far", requirements=Requirements(region="moon"))
    accepted = await foliot.tasks.submit(command)
    seen.append((accepted.task.phase, (await foliot.tasks.submit(command)).duplicate))
    seen.append((await foliot.tasks.cancel("far", by="ann", reason="too far")).phase)
    seen.append((await foliot.tasks.retry("far", by="ann")).phase)
    seen.append((await foliot.tasks.why("far")).headline.partition(" since ")[0])
    await foliot.tasks.cancel("far", by="ann")
    seen.append((await foliot.tasks.wait("far")).phase)
    tasks, cursor = await foliot.tasks.list()
    seen.append(([(task.name, task.phase) for task in tasks], cursor))
    await foliot.tasks.archive("far", by="ann")
    await foliot.tasks.delete("far")

    # Tools, rules, records, limits.
    called = await foliot.tools.call("pay", {"amount": 3})
    seen.append((called.result.text, (await foliot.tools.test("pay", {"amount": 30})).outcome))
    seen.append((await foliot.policies.explain(PolicyQuestion("desk", "pay", {"amount": 30}))).judgement.outcome)
    await foliot.workers.set_limit(Limit("namespace", "default", 8))
    seen.append([(limit.name, limit.max_running) for limit in await foliot.workers.limits()])
    await foliot.workers.clear_limit("namespace", "default")
    records = await foliot.audit.list(AuditFilter(tool="pay", run_id="approved"))
    seen.append(sorted({(record.body["moment"], record.body["outcome"]) for record in records}))
    seen.append((await foliot.audit.verify()).broken)
    seen.append((await foliot.resources.delete("Agent", "courier"))["metadata"]["name"])
    return seen


async def here(home: str) -> list[Any]:
    """On a runtime in this process."""
    async with Runtime(f"{home}/foliot.db", tools=TOOLS) as runtime:
        return await script(runtime)


async def there(home: str) -> list[Any]:
    """On a server. Elsewhere it is `Client("https://foliot.example", token=token)`."""
    async with served(home, tools=TOOLS) as url, Client(url, home=home) as client:
        return await script(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", action="store_true", help="on a server, instead of a runtime in this process")
    wanted = there if parser.parse_args().server else here
    with tempfile.TemporaryDirectory() as home:
        for each in asyncio.run(wanted(home)):
            print(each)  # noqa: T201


if __name__ == "__main__":
    main()
