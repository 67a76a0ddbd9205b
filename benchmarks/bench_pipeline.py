"""What the tool pipeline costs for one in-process call, beside a bare call and beside the tool layers of others.

    python benchmarks/bench_pipeline.py [--calls 2000]

Rows take turns in small rounds, so that a busy machine troubles all of them alike; the median over rounds counts. Peers
are looked for in .bench/<name>/bin/python and run the same function in their own environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from foliot.kernel.backoff import RetryPolicy
from foliot.tools.base import Caller, Invocation, RateLimit
from foliot.tools.function import tool
from foliot.tools.governance.layers import Profile
from foliot.tools.governance.reader import read_rules
from foliot.tools.governance.rules import FixedRules
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.pipeline.record import CallRecord
from foliot.tools.secrets.masking import Masker

ROOT = Path(__file__).resolve().parent.parent
ROUND = 50

PEERS = {
    "langgraph": """
import asyncio, json, statistics, sys, time
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode
@tool
async def refund(order: str, amount: float) -> str:
    "Refund an order."
    return "done"
node = ToolNode([refund])
message = AIMessage("", tool_calls=[{"name": "refund", "args": {"order": "A-17", "amount": 20.0}, "id": "c1"}])
async def main():
    from langgraph.graph import StateGraph, MessagesState
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.set_entry_point("tools")
    graph.set_finish_point("tools")
    app = graph.compile()
    try:
        from langgraph.runtime import Runtime
        config = {"configurable": {"__pregel_runtime": Runtime()}}
        await node.ainvoke({"messages": [message]}, config)
        call = lambda: node.ainvoke({"messages": [message]}, config)
        what = "ToolNode"
    except Exception:
        call = lambda: app.ainvoke({"messages": [message]})
        what = "ToolNode in a graph"
    for _ in range(50): await call()
    times = []
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter(); await call(); times.append(time.perf_counter() - began)
    print(json.dumps([what, statistics.median(times) * 1e6]))
asyncio.run(main())
""",
    "pydantic-ai": """
import asyncio, json, statistics, sys, time
from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RunUsage
async def refund(order: str, amount: float) -> str:
    "Refund an order."
    return "done"
toolset = FunctionToolset([refund])
async def main():
    ctx = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    tools = await toolset.get_tools(ctx)
    chosen = tools["refund"]
    raw = '{"order":"A-17","amount":20.0}'
    async def call():
        args = chosen.args_validator.validate_json(raw)
        return await toolset.call_tool("refund", args, ctx, chosen)
    for _ in range(50): await call()
    times = []
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter(); await call(); times.append(time.perf_counter() - began)
    print(json.dumps(["FunctionToolset (validate + call)", statistics.median(times) * 1e6]))
asyncio.run(main())
""",
}

RULES = [
    {"kind": "AgentRole", "metadata": {"name": "clerk"}, "spec": {"permissions": ["tool:refund:invoke"]}},
    {
        "kind": "ToolPermission",
        "metadata": {"name": "refund"},
        "spec": {
            "tool_ref": "refund",
            "required_permissions": ["tool:refund:invoke"],
            "operation_rules": [{"operation_class": "admin", "verdict": "deny"}],
            "conditions": [{"when": "args.amount > 500.0", "verdict": "approval_required"}],
        },
    },
    {
        "kind": "AgentPolicy",
        "metadata": {"name": "house"},
        "spec": {"apply_mode": "global", "blocked_tools": ["drop"], "allowed_models": ["m"]},
    },
]


@tool(effect="idempotent")
async def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return "done"


class Ledger:
    async def record(self, entry: CallRecord) -> None:
        pass


class Budgets:
    async def check(self, call: object, definition: object) -> str | None:
        return None


def every_stage_on(more: int = 0) -> Pipeline:
    """A pipeline with each stage that there is; `more` other tools beside."""
    from dataclasses import replace

    masker = Masker()
    masker.add("a-secret-that-is-not-in-the-result")
    definition = replace(
        refund.definition,
        requires_prior=("look_up",),
        rate_limit=RateLimit(requests=10**9, per=1.0, concurrency=1000),
        retry=RetryPolicy(max_attempts=3),
        attempt_timeout=10.0,
    )
    parts = PipelineParts(
        rules=FixedRules(read_rules("default", RULES)),
        profile=Profile.of(exclude=["drop"]),
        budgets=Budgets(),
        masker=masker,
        recorders=(Ledger(),),
    )
    others = [refund.with_definition(replace(refund.definition, name=f"tool_{n}")) for n in range(more)]
    return Pipeline([*others, refund.with_definition(definition)], parts)


def call_of() -> Invocation:
    caller = Caller(agent="desk", roles=("clerk",), model="m", advertised=frozenset({"refund"}))
    arguments = {"order": "A-17", "amount": 20.0}
    return Invocation("r1", "c1", "refund", arguments, "r1/c1", caller, prior=frozenset({"look_up"}))


async def measure(rows: dict[str, Callable[[], Awaitable[object]]], calls: int) -> dict[str, float]:
    """Microseconds per call, the median over all."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(max(1, calls // ROUND)):
        for name, call in rows.items():
            for _ in range(ROUND):
                began = time.perf_counter()
                await call()
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) * 1e6 for name, found in times.items()}


async def foliot_rows(calls: int) -> dict[str, float]:
    plain, full, crowd = Pipeline([refund]), every_stage_on(), every_stage_on(1000)
    call = call_of()
    anyone = Invocation("r1", "c1", "refund", call.arguments, "r1/c1")
    for pipeline, asked in ((plain, anyone), (full, call), (crowd, call)):
        result = await pipeline.call(asked)
        assert result.error is None, result
    return await measure(
        {
            "bare await of the function": lambda: refund.function(**call.arguments),
            "the tool without a pipeline": lambda: refund.invoke(call),
            "pipeline, defaults": lambda: plain.call(anyone),
            "pipeline, every stage on": lambda: full.call(call),
            "pipeline, every stage on, 1000 tools": lambda: crowd.call(call),
        },
        calls,
    )


def peer_row(name: str, calls: int) -> tuple[str, float | None]:
    python = ROOT / ".bench" / name / "bin" / "python"
    if not python.exists():
        return f"{name}: not installed", None
    done = subprocess.run([python, "-c", PEERS[name], str(calls)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        return f"{name}: failed: {done.stderr.strip().splitlines()[-1:]}", None
    what, median = json.loads(done.stdout.splitlines()[-1])
    return f"{name}: {what}", median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    calls: int = parser.parse_args().calls
    rows: list[tuple[str, float | None]] = [*asyncio.run(foliot_rows(calls)).items()]
    rows += [peer_row(name, calls) for name in PEERS]
    for name, median in rows:
        print(f"{name:<60} {'' if median is None else f'{median:9.1f} µs'}")


if __name__ == "__main__":
    main()
