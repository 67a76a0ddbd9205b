"""Servers that crash, flood, talk nonsense, or do not want to go."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys

import pytest

from foliot.tools.base import ToolArgumentsInvalid, ToolError, ToolTimeout, ToolUnreachable
from foliot.tools.mcp.results import parts_of
from foliot.tools.mcp.session import McpSession
from foliot.tools.outbound.client import ToolAnswerTooLarge
from tests.loop_watch import watched_steps
from tests.tools.mcp.conftest import eventually, fenced_connections, is_running, processes, servers, spec_of


def words(result: object) -> str:
    (part,) = parts_of(result)  # type: ignore[arg-type]
    return part.text  # type: ignore[union-attr]


async def test_what_is_no_message_and_answers_for_nobody_are_passed_over(connections):
    assert words(await connections.call(spec_of("rogue"), "nonsense", {})) == "sense"


async def test_the_first_of_two_answers_counts_and_the_second_disturbs_nobody(connections):
    server = spec_of("rogue")
    assert words(await connections.call(server, "twice", {})) == "first"
    assert words(await connections.call(server, "echo", {"text": "next"})) == "next"


async def test_a_result_against_the_protocol_is_an_error_that_says_so(connections):
    with pytest.raises(ToolError, match="no valid result") as caught:
        await connections.call(spec_of("rogue"), "bad_result", {})
    assert not caught.value.retryable


async def test_a_tool_that_the_server_does_not_know_is_refused_by_it(connections):
    with pytest.raises(ToolArgumentsInvalid, match="Unknown tool"):
        await connections.call(spec_of("rogue"), "no_such", {})


@pytest.mark.parametrize("shape", ["id first", "id last"])
async def test_a_flood_of_a_hundred_megabytes_fails_its_own_call_and_is_not_kept_in_memory(connections, shape):
    server = spec_of("rogue")
    await connections.tools(server)
    other = asyncio.create_task(connections.call(server, "quiet", {}))
    who = words(await connections.call(server, "who", {}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ToolAnswerTooLarge, match="more than 10485760 bytes") as caught:
        await connections.call(server, "flood", {"size": 100_000_000, "text": shape}, timeout=60)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 60_000  # kilobytes; the limit is ten megabytes, and a few copies of it exist for a moment
    assert not caught.value.retryable
    assert words(await connections.call(server, "who", {})) == who
    assert not other.done()
    other.cancel()
    await asyncio.wait({other})


async def test_an_answer_of_millions_of_values_fails_its_own_call_and_holds_nobody(connections):
    server = spec_of("rogue")
    who = words(await connections.call(server, "who", {}))
    with watched_steps() as steps:
        with pytest.raises(ToolAnswerTooLarge, match="too many values"):
            await connections.call(server, "values", {"size": 2_000_000}, timeout=60)
        assert words(await connections.call(server, "who", {})) == who
    assert steps.longest < 1.0, f"one step of the event loop took {steps.longest:.2f} s"


async def test_a_pattern_that_takes_for_ever_holds_nobody(connections):
    """The SDK matches results against the server's own patterns with an engine that goes back for years."""
    server = spec_of("rogue")
    with pytest.raises(ToolError, match="does not fit its schema"):
        await connections.call(server, "pattern", {}, timeout=30)
    assert words(await connections.call(server, "echo", {"text": "next"})) == "next"


async def test_a_server_that_hangs_is_pinged_and_replaced(monkeypatch, mark):
    monkeypatch.setattr(McpSession.answers, "__defaults__", (0.3,))
    server = spec_of("rogue", mark)
    async with fenced_connections(allowed_commands=[sys.executable]) as connections:
        first = words(await connections.call(server, "who", {}))
        with pytest.raises(ToolTimeout):
            await connections.call(server, "hang", {}, timeout=1.0)
        await eventually(lambda: not processes(mark))
        assert words(await connections.call(server, "who", {}, timeout=60)) != first


async def test_a_call_right_after_one_that_hangs_waits_for_the_ping_and_gets_another_server(monkeypatch):
    monkeypatch.setattr(McpSession.answers, "__defaults__", (0.3,))
    server = spec_of("rogue")
    async with fenced_connections(allowed_commands=[sys.executable]) as connections:
        first = words(await connections.call(server, "who", {}))
        with pytest.raises(ToolTimeout):
            await connections.call(server, "hang", {}, timeout=1.0)
        assert words(await connections.call(server, "who", {}, timeout=60)) != first


async def test_a_call_that_takes_too_long_at_a_server_that_lives_costs_nobody_else_anything(monkeypatch):
    monkeypatch.setattr(McpSession.answers, "__defaults__", (5.0,))
    server = spec_of("rogue")
    async with fenced_connections(allowed_commands=[sys.executable]) as connections:
        first = words(await connections.call(server, "who", {}))
        with pytest.raises(ToolTimeout):
            await connections.call(server, "quiet", {}, timeout=0.2)
        await eventually(lambda: not connections._suspected)
        assert words(await connections.call(server, "who", {})) == first


async def test_a_server_that_hangs_while_nobody_needs_it_is_ended(monkeypatch, mark):
    patient, hasty = (10.0,), (0.3,)
    monkeypatch.setattr(McpSession.answers, "__defaults__", patient)
    server = spec_of("rogue", mark)
    async with fenced_connections(ping_seconds=0.2) as connections:
        await connections.tools(server)
        inside = servers(mark)
        for pid in inside:
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(McpSession.answers, "__defaults__", hasty)
        await eventually(lambda: not any(is_running(pid) for pid in inside))
        monkeypatch.setattr(McpSession.answers, "__defaults__", patient)  # a healthy one may be slow on a busy machine
        assert words(await connections.call(server, "echo", {"text": "again"}, timeout=60)) == "again"


async def test_a_large_answer_below_the_limit_arrives(connections):
    assert len(words(await connections.call(spec_of("rogue"), "flood", {"size": 5_000_000}))) == 76 * 65536


async def test_a_server_that_complains_a_lot_does_not_get_stuck(connections):
    assert words(await connections.call(spec_of("rogue"), "chatter", {"size": 20_000_000})) == "said a lot"


async def test_all_calls_under_way_fail_when_their_server_crashes(connections):
    server = spec_of("rogue")
    waiting = [asyncio.create_task(connections.call(server, "quiet", {})) for _ in range(5)]
    await eventually(lambda: any(health.in_flight == 5 for health in connections.health()))
    with pytest.raises(ToolUnreachable):
        await connections.call(server, "crash", {})
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, ToolUnreachable) for result in results)


@pytest.mark.parametrize("isolation", ["sandboxed", "none"])
async def test_closing_ends_a_server_that_does_not_want_to_go_and_what_it_left_behind(isolation, mark):
    server = spec_of("rogue", env=[{"name": "STUBBORN", "value": mark}], isolation=isolation)
    async with fenced_connections() as connections:
        await connections.call(server, "fork", {})
        await eventually(lambda: len(servers(mark)) == 2)  # a process that becomes a program has no environment
    assert not processes(mark)


async def test_closing_fails_calls_under_way(connections):
    call = asyncio.create_task(connections.call(spec_of("rogue"), "quiet", {}))
    await eventually(lambda: any(health.in_flight for health in connections.health()))
    await connections.close()
    with pytest.raises(ToolUnreachable):
        await call
    with pytest.raises(ToolUnreachable, match="are closed"):
        await connections.tools(spec_of("rogue"))


async def test_closing_while_a_server_starts_leaves_nothing(connections, mark):
    server = spec_of("sample", args=["-c", "import time; time.sleep(600)", mark])
    opening = asyncio.create_task(connections.tools(server))
    await eventually(lambda: bool(processes(mark)))
    await connections.close()
    with pytest.raises((ToolUnreachable, asyncio.CancelledError)):
        await opening
    assert not processes(mark)


OWNER = """
import asyncio, sys
from tests.tools.mcp.conftest import fenced_connections, spec_of

async def main():
    isolation, mark = sys.stdin.readline().split()
    server = spec_of("rogue", env=[{"name": "STUBBORN", "value": mark}], isolation=isolation)
    async with fenced_connections() as connections:
        await connections.call(server, "fork", {})
        print("forked", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("isolation", ["sandboxed", "none"])
async def test_nothing_is_left_when_the_owner_is_killed(isolation, mark):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=pipe, stdout=pipe) as owner:
        try:
            assert owner.stdin is not None
            assert owner.stdout is not None
            owner.stdin.write(f"{isolation} {mark}\n".encode())
            owner.stdin.flush()
            assert await asyncio.to_thread(owner.stdout.readline) == b"forked\n"
            await eventually(lambda: len(servers(mark)) == 2)  # a process that becomes a program has no environment
        finally:
            owner.kill()
    await eventually(lambda: not processes(mark))
