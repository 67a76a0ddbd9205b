"""Sessions with child processes: a server of the current revision, and one of the oldest handshake."""

from __future__ import annotations

import asyncio
import sys

import pytest

from foliot.tools.base import ToolDenied, ToolPolicyInvalid, ToolSecretMissing, ToolTimeout, ToolUnreachable
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.results import parts_of
from tests.tools.mcp.conftest import eventually, fenced_connections, is_running, processes, servers, spec_of


def words(result: object) -> str:
    (part,) = parts_of(result)  # type: ignore[arg-type]
    return part.text  # type: ignore[union-attr]


class TestTalking:
    async def test_a_server_of_the_current_revision_is_used_without_a_handshake(self, connections):
        server = spec_of("sample", "stdio")
        assert words(await connections.call(server, "add", {"a": 2, "b": 3})) == "5"
        (health,) = connections.health()
        assert (health.state, health.protocol, health.implementation) == ("ready", "2026-07-28", "sample 1.2.3")

    async def test_a_server_of_an_old_revision_is_used_after_the_handshake(self, connections):
        server = spec_of("rogue")
        assert words(await connections.call(server, "echo", {"text": "hi"})) == "hi"
        assert connections.health()[0].protocol == "2025-03-26"

    async def test_all_pages_of_a_listing_are_read(self, connections):
        assert len(await connections.tools(spec_of("rogue"))) == 13

    async def test_many_calls_share_one_process(self, connections):
        server = spec_of("rogue")
        answers = await asyncio.gather(*(connections.call(server, "echo", {"text": str(n)}) for n in range(50)))
        assert [words(answer) for answer in answers] == [str(n) for n in range(50)]
        assert len(connections.health()) == 1

    async def test_progress_and_logs_reach_the_call_they_belong_to(self, connections):
        server, heard = spec_of("sample", "stdio"), []
        await connections.call(server, "count", {"to": 3}, on_output=heard.append)
        await eventually(lambda: len(heard) == 3)
        assert heard == ["step 1\n", "step 2\n", "step 3\n"]
        await connections.call(server, "talk", {}, on_output=heard.append)
        await eventually(lambda: len(heard) == 4)
        assert heard[3] == "a word in between\n"

    async def test_a_log_that_may_belong_to_another_call_is_shown_to_none(self, connections):
        server, mine, other = spec_of("sample", "stdio"), [], []
        slow = asyncio.create_task(connections.call(server, "slow", {"name": "x"}, on_output=other.append))
        await eventually(lambda: any(health.in_flight for health in connections.health()))
        await connections.call(server, "talk", {}, on_output=mine.append)
        slow.cancel()
        await asyncio.wait({slow})
        assert mine == other == []

    async def test_a_cancelled_call_is_cancelled_on_the_server(self, connections):
        server = spec_of("sample", "stdio")
        await connections.tools(server)
        call = asyncio.create_task(connections.call(server, "slow", {"name": "first"}))
        await eventually(lambda: connections.health()[0].in_flight == 1)
        # The order of the pipe: when this is answered, the server has begun the slow call.
        await connections.call(server, "add", {"a": 1, "b": 1})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert "first" in words(await connections.call(server, "was_cancelled", {}))

    async def test_a_call_that_takes_too_long_is_stopped_and_said_so(self, connections):
        server = spec_of("sample", "stdio")
        with pytest.raises(ToolTimeout):
            await connections.call(server, "slow", {"name": "late"}, timeout=1.0)
        assert "late" in words(await connections.call(server, "was_cancelled", {}))

    async def test_a_server_that_wants_to_ask_the_user_is_refused_and_not_waited_for(self, connections):
        with pytest.raises(Exception, match="ask") as caught:
            await connections.call(spec_of("sample", "stdio"), "ask", {}, timeout=60)
        assert not caught.value.retryable


class TestStarting:
    async def test_a_command_that_is_not_listed_is_not_started(self):
        async with fenced_connections(allowed_commands=["npx", "uvx"]) as connections:
            with pytest.raises(ToolDenied, match=r"may not be started here; allowed commands: npx, uvx") as caught:
                await connections.tools(spec_of("sample", "stdio"))
        assert "FOLIOT_MCP_COMMANDS" in (caught.value.hint or "")

    async def test_without_a_list_nothing_is_started(self):
        async with fenced_connections(allowed_commands=[]) as connections:
            with pytest.raises(ToolDenied, match="allowed commands: none"):
                await connections.tools(spec_of("sample", "stdio"))

    async def test_a_relative_path_is_refused_even_if_listed(self):
        async with fenced_connections(allowed_commands=["bin/server"]) as connections:
            with pytest.raises(ToolPolicyInvalid, match="relative path"):
                await connections.tools(spec_of("sample", command="bin/server"))

    async def test_a_program_that_is_not_there_is_named(self):
        async with fenced_connections(allowed_commands=["no-such-program"]) as connections:
            with pytest.raises(ToolPolicyInvalid, match="no program 'no-such-program'"):
                await connections.tools(spec_of("sample", command="no-such-program"))

    async def test_a_command_may_hold_its_first_arguments(self, connections):
        server = spec_of("rogue", command=f"{sys.executable} -X dev")
        assert words(await connections.call(server, "echo", {"text": "hi"})) == "hi"

    async def test_without_a_fence_the_environment_is_clean_but_for_what_is_declared(self):
        async def resolve(reference: str, namespace: str) -> str:
            assert (reference, namespace) == ("api:key", "default")
            return "sesame-123"

        environ = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "AWS_SECRET_ACCESS_KEY": "x", "FOLIOT_SECRET_KEY": "y"}
        env = [{"name": "MODE", "value": "test"}, {"name": "TOKEN", "secretRef": "api:key"}]
        async with fenced_connections(resolve_secret=resolve, environ=environ) as connections:
            server = spec_of("sample", "stdio", env=env, isolation="none")
            result = await connections.call(server, "environment", {})
        found = dict(result.structured_content)
        found.pop("LC_CTYPE", None)  # Python itself sets it
        assert found == {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "MODE": "test", "TOKEN": "sesame-123"}

    async def test_a_changed_secret_is_that_of_the_next_call_and_the_one_under_way_ends_where_it_is(self):
        values = ["first-key"]

        async def resolve(reference: str, namespace: str) -> str:
            if not values[-1]:
                raise ToolSecretMissing("the secret is gone")
            return values[-1]

        server = spec_of("sample", "stdio", env=[{"name": "TOKEN", "secretRef": "api"}], isolation="none")

        async def token(connections: McpConnections) -> tuple[str, int | None]:
            found = (await connections.call(server, "environment", {})).structured_content
            return found["TOKEN"], connections.health()[0].pid

        async with fenced_connections(resolve_secret=resolve) as connections:
            first = await token(connections)
            assert await token(connections) == first
            async with connections.held(server) as held:  # whoever has it keeps it
                values.append("second-key")
                second = await token(connections)
                assert (await held.call("environment", {})).structured_content["TOKEN"] == "first-key"
            assert (first[0], second[0], first[1] == second[1]) == ("first-key", "second-key", False)
            await eventually(lambda: not is_running(first[1] or 0))
            values.append("")
            with pytest.raises(ToolSecretMissing):
                await token(connections)
            await eventually(lambda: not is_running(second[1] or 0))
            values.append("third-key")
            assert (await token(connections))[0] == "third-key"

    async def test_a_secret_that_is_missing_keeps_the_server_from_starting(self, connections):
        env = [{"name": "TOKEN", "secretRef": "api:key"}]
        with pytest.raises(ToolSecretMissing):
            await connections.tools(spec_of("sample", "stdio", env=env))
        assert connections.health()[0].pid is None

    async def test_last_words_of_a_server_are_told_without_its_secrets(self):
        async def resolve(reference: str, namespace: str) -> str:
            return "sesame-123"

        server = spec_of("rogue", env=[{"name": "TOKEN", "secretRef": "api"}], isolation="none")
        async with fenced_connections(resolve_secret=resolve) as connections:
            with pytest.raises(ToolUnreachable, match="exit code 3; its last words: something terrible") as caught:
                await connections.call(server, "crash", {})
        assert "sesame" not in caught.value.message
        assert not caught.value.before_effect

    async def test_a_server_that_ends_at_once_is_reported_with_what_it_said(self, connections):
        server = spec_of("sample", args=["-c", "raise SystemExit('no licence')"])
        with pytest.raises(ToolUnreachable, match="no licence") as caught:
            await connections.tools(server)
        assert caught.value.before_effect


class TestReconnecting:
    async def test_a_server_that_crashed_is_started_again_for_the_next_call(self, connections):
        server = spec_of("rogue")
        first = words(await connections.call(server, "who", {}))
        with pytest.raises(ToolUnreachable):
            await connections.call(server, "crash", {})
        assert words(await connections.call(server, "who", {})) != first

    async def test_attempts_wait_twice_as_long_each_time_and_then_calls_fail_at_once(self):
        waits: list[float] = []
        now = [0.0]

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        server = spec_of("sample", args=["-c", "pass"], reconnect={"max_attempts": 3, "backoff": "2s"})
        async with fenced_connections(
            allowed_commands=[sys.executable], sleep=sleep, clock=lambda: now[0]
        ) as connections:
            for _ in range(3):  # the second and third do not even try
                with pytest.raises(ToolUnreachable):
                    await connections.tools(server)
            assert waits == [2.0, 4.0, 8.0]
            assert connections.health()[0].state == "failed"
            now[0] = 100.0
            with pytest.raises(ToolUnreachable):
                await connections.tools(server)
            assert len(waits) == 6

    async def test_callers_share_one_attempt(self, connections):
        server = spec_of("rogue")
        sessions = await asyncio.gather(*(connections.session(server) for _ in range(10)))
        assert len({id(session) for session in sessions}) == 1

    async def test_another_declaration_is_another_process_and_old_calls_end_on_the_old_one(self, connections, mark):
        before, after = (spec_of("sample", "stdio", env=[{"name": "A", "value": f"{mark}-{n}"}]) for n in (0, 1))
        call = asyncio.create_task(connections.call(before, "slow", {"name": "old"}))
        await eventually(lambda: any(health.in_flight for health in connections.health()))
        assert (await connections.call(after, "environment", {})).structured_content["A"] == f"{mark}-1"
        assert servers(f"{mark}-0")
        assert not call.done()
        call.cancel()
        await eventually(lambda: not processes(f"{mark}-0"))


class TestChanges:
    @pytest.mark.parametrize("name", ["sample", "rogue"])
    async def test_a_changed_list_is_read_again_and_told(self, name):
        heard = asyncio.Event()

        async def changed(server: object) -> None:
            heard.set()

        server = spec_of(name, "stdio")
        async with fenced_connections(allowed_commands=[sys.executable], on_tools_changed=changed) as connections:
            before = await connections.tools(server)
            if name == "sample":
                await _subscribed(connections, server)
            else:
                await connections.call(server, "echo", {"text": "change"})
            async with asyncio.timeout(60):
                await heard.wait()
            after = await connections.tools(server)
            assert {t.pin.digest for t in before.values()} != {t.pin.digest for t in after.values()}


async def _subscribed(connections, server) -> None:
    """The stream of changes is opened behind the first answer; a change before that would not be told."""
    number = 0
    known = len(await connections.tools(server))
    while len(await connections.tools(server)) == known:
        await connections.call(server, "learn", {"name": f"new{number}", "description": "something new"})
        number += 1
        await asyncio.sleep(0.05)
        assert number < 100
