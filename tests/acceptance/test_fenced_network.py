"""Tools that reach the network out of a fence: declared in manifests, called by agents, over real connections.

The server is on the loopback, which the operator allows; `curl` inside finds it through the egress broker alone.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.catalog.apply import apply_documents
from foliot.errors import Denied, FoliotError
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import DeclaredBy
from tests.sandbox.egress.world import World, open_world

pytestmark = [
    pytest.mark.fence,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl"),
]

# Of the loopback, but not among what programs reach without a proxy.
HOST = "127.0.0.2"
TOKEN = "real-canary-0f3b7c"
FETCH = 'curl -sS --fail -H "Authorization: Bearer $TOKEN" "$1" 2>&1; env; cat /proc/self/environ'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


@pytest.fixture
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    environ = {
        "FOLIOT_HOME": str(tmp_path / "home"),
        "FOLIOT_OUTBOUND_ALLOW": "127.0.0.0/8",
        "FOLIOT_MCP_COMMANDS": "sh *, cat *, ls *",
        "FOLIOT_TOOL_MODULES": "fenced_desk",
        "FOLIOT_SANDBOX_MOUNTS": str(tmp_path / "granted"),
    }
    postgres = getattr(request, "param", "sqlite") == "postgres"
    flags = {"store": request.getfixturevalue("postgres_url")} if postgres else {}
    async with Runtime(settings=load_settings(flags, environ)) as made:
        yield made


OPERATOR, MALLORY = DeclaredBy("root", operator=True), DeclaredBy("mallory", operator=False)


async def declare(runtime: Runtime, kind: str, name: str, by: DeclaredBy = OPERATOR, /, **spec: Any) -> None:
    namespace = spec.pop("namespace", "default")
    given = {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    document, problems = validate_document(given)
    assert document is not None, problems
    await apply_documents(runtime.inside.resources, [document], by=by)


async def declare_agent(runtime: Runtime, tool: str, arguments: dict[str, Any]) -> None:
    script = [{"call": {tool: arguments}}, {"say": "{last_result}"}]
    await declare(runtime, "ModelEndpoint", f"brain-{tool}", provider="scripted", script=script)
    await declare(runtime, "Agent", f"caller-{tool}", model_ref=f"brain-{tool}", tools=[tool])


def secret(**more: Any) -> dict[str, Any]:
    return {"data": {"value": base64.b64encode(TOKEN.encode()).decode()}, **more}


def fetching(port: int, **sandbox: Any) -> dict[str, Any]:
    return {
        "type": "cli",
        "effect": "read",
        "cli": {"command": ["sh", "-c", FETCH, "sh", "{url}"]},
        "sandbox": {
            "network": [{"hosts": [HOST], "ports": [port]}],
            "secrets": [
                {
                    "secretRef": "token",
                    "hosts": [HOST],
                    "ports": [port],
                    "variable": "TOKEN",
                    "cleartext": True,
                }
            ],
            **sandbox,
        },
    }


async def records(runtime: Runtime, **which: Any) -> list[dict[str, Any]]:
    """What the audit log says."""
    await runtime.inside.audit.flush()
    found = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(**which), limit=500)
    return [record.body for record in found]


async def ran(runtime: Runtime, tool: str, **arguments: Any) -> tuple[str, list[dict[str, Any]]]:
    """What came of a run that calls the tool once, and what left its fence."""
    await declare_agent(runtime, tool, arguments)
    result = await runtime.run(f"caller-{tool}", "Do it.")
    return str(result.output), await records(runtime, run_id=result.run_id, moment="egress")


BOTH = pytest.mark.parametrize(
    "runtime", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True
)


@BOTH
async def test_a_program_uses_a_secret_that_it_never_sees(runtime: Runtime, world: World) -> None:
    port = await world.serve(host=HOST)
    await declare(runtime, "Secret", "token", **secret())
    await declare(runtime, "Tool", "fetch", **fetching(port))

    said, (record,) = await ran(runtime, "fetch", url=f"http://{HOST}:{port}/things?x=1")

    assert said.startswith("hello")
    assert "TOKEN=FOLIOT_SECRET_" in said
    assert f"authorization: bearer {TOKEN}".encode() in world.heard[0].lower()
    assert (record["outcome"], record["tool"], record["agent"]) == ("allowed", "fetch", "caller-fetch")
    assert (record["egress"]["host"], record["egress"]["port"], record["egress"]["method"]) == (
        HOST,
        port,
        "GET",
    )
    assert record["egress"]["bytes_in"] > 0 < record["egress"]["bytes_out"]
    journal = b"".join(entry.data for entry in await runtime.inside.runs.journal.read(record["run_id"]))
    everything = str(await records(runtime)) + said + journal.decode("utf-8", "replace")
    assert TOKEN not in everything
    assert "things?x=1" not in str(record), "paths may hold secrets, and are not kept"


@pytest.mark.parametrize(
    ("ceiling", "said", "reasons"),
    [
        ({"network": [{"hosts": ["api.example"]}]}, "403", ["policy"]),
        ({"network": [{"hosts": [HOST], "ports": [1]}]}, "403", ["policy"]),
        ({"network": []}, "curl: ", []),
    ],
)
async def test_a_policy_takes_the_network_away(
    runtime: Runtime, world: World, ceiling: dict[str, Any], said: str, reasons: list[str]
) -> None:
    port = await world.serve(host=HOST)
    await declare(runtime, "Secret", "token", **secret())
    await declare(runtime, "Tool", "fetch", **fetching(port))
    await declare(runtime, "AgentPolicy", "tight", apply_mode="global", sandbox=ceiling)

    told, left = await ran(runtime, "fetch", url=f"http://{HOST}:{port}/")

    assert said in told
    assert world.heard == []
    assert [(each["outcome"], each["decision"]["message"]) for each in left] == [("denied", why) for why in reasons]


async def test_a_secret_goes_only_where_it_may(runtime: Runtime, world: World) -> None:
    port = await world.serve(host=HOST)
    await declare(runtime, "Secret", "token", **secret(), namespace="other")
    with pytest.raises(Denied, match="ReferenceGrant"):
        await declare(runtime, "Tool", "theirs", **_with_secret(fetching(port), "other/token"))
    await declare(runtime, "Secret", "token", **secret(hosts=["api.example"]))
    await declare(runtime, "Tool", "unbound", MALLORY, **fetching(port))
    await declare(runtime, "Secret", "bound", **secret(hosts=[HOST]))
    await declare(runtime, "Tool", "bound", MALLORY, **_with_secret(fetching(port), "bound"))

    told, left = await ran(runtime, "unbound", url=f"http://{HOST}:{port}/")
    assert "hello" not in told
    assert [each["outcome"] for each in left] in (["denied"], ["failed"], []), left
    assert TOKEN.encode() not in b"".join(world.heard)

    told, _ = await ran(runtime, "bound", url=f"http://{HOST}:{port}/")
    assert told.startswith("hello"), told
    assert TOKEN.encode() in world.heard[-1]


@pytest.mark.parametrize("way", ["bash", "runner"])
@pytest.mark.parametrize(("kinds", "sent"), [(["Agent"], True), (["Tool", "McpServer"], False)])
async def test_a_secret_of_another_namespace_is_granted_to_the_kind_that_declares_it(
    runtime: Runtime, world: World, way: str, kinds: list[str], sent: bool
) -> None:
    port = await world.serve(host=HOST)
    await declare(runtime, "Secret", "token", **secret(), namespace="other")
    granted = {"to": [{"kind": "Secret", "name": "token"}], "namespace": "other"}
    await declare(
        runtime, "ReferenceGrant", "share", **granted, **{"from": [{"namespace": "default", "kind": "Agent"}]}
    )
    command = f"{FETCH.partition(';')[0]}; true".replace("$1", f"http://{HOST}:{port}/")
    script = [{"call": {"bash": {"command": command}}}, {"say": "{last_result}"}]
    await declare(runtime, "ModelEndpoint", "brain", provider="scripted", script=script)
    sandbox = _with_secret(fetching(port), "other/token")["sandbox"]
    if way == "bash":
        await declare(runtime, "Agent", "desk", model_ref="brain", tools=["bash"], sandbox=sandbox)
    else:
        runner = {"command": ["sh", "-c", command], "sandbox": sandbox}
        await declare(runtime, "Agent", "desk", runner=runner)
    holders = [{"namespace": "default", "kind": kind} for kind in kinds]
    await declare(runtime, "ReferenceGrant", "share", **granted, **{"from": holders})

    result = await runtime.run("desk", "Do it.", check=False)  # a runner is not even started without its secret
    said = str(result.output)

    assert said.startswith("hello") is sent, result
    assert (TOKEN.encode() in b"".join(world.heard)) is sent


def _with_secret(spec: dict[str, Any], ref: str) -> dict[str, Any]:
    spec["sandbox"]["secrets"][0]["secretRef"] = ref
    return spec


async def test_two_secrets_that_read_alike_are_not_taken_for_each_other(runtime: Runtime, world: World) -> None:
    """As if they came from an older server: the value of one would go to the hosts of the other."""
    port = await world.serve(host=HOST)
    long = "a" * 70
    for each in ("good", "evil"):
        await declare(runtime, "Secret", f"{long}-{each}", **secret(hosts=[HOST]))
    spec = _with_secret(fetching(port), f"{long}-evil")
    spec["sandbox"]["secrets"].append({"secretRef": f"{long}-good", "hosts": [HOST], "variable": "OTHER"})
    await declare(runtime, "Tool", "fetch", MALLORY, **spec)

    told, _ = await ran(runtime, "fetch", url=f"http://{HOST}:{port}/")

    assert "read alike" in told
    assert world.heard == []


def showing(source: Path, **more: Any) -> dict[str, Any]:
    mount = {"source": str(source), "target": "/data", **more}
    return {"type": "cli", "effect": "read", "cli": {"command": ["cat", "/data/note"]}, "sandbox": {"mounts": [mount]}}


async def test_files_of_the_machine_are_shown_to_whom_they_were_granted(runtime: Runtime, tmp_path: Path) -> None:
    granted, private = tmp_path / "granted", tmp_path / "private"
    for folder in (granted, private):
        folder.mkdir()
        (folder / "note").write_text(f"of {folder.name}")
    (granted / "link").symlink_to(private)
    cases = [
        (OPERATOR, showing(private), "of private"),
        (MALLORY, showing(granted), "of granted"),
        (MALLORY, showing(private), "sandbox"),
        (MALLORY, showing(granted / "link"), "may not show"),
        (MALLORY, showing(granted, writable=True), "sandbox"),
    ]

    for number, (by, spec, said) in enumerate(cases):
        await declare(runtime, "Tool", f"t{number}", by, **spec)
        try:
            told, _ = await ran(runtime, f"t{number}")
        except FoliotError as refused:
            told = f"{refused.message} {refused.hint}"
        assert said in told, number
        assert ("of private" in told) == (by is OPERATOR)


async def test_a_policy_takes_files_and_memory_away_and_names_itself(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("seen")
    await declare(runtime, "Tool", "t", **showing(tmp_path))
    hungry = ["/usr/bin/python3", "-c", "print(len(bytearray(200 << 20)))"]
    await declare(runtime, "Tool", "hungry", type="cli", effect="read", cli={"command": hungry})
    assert (await ran(runtime, "t"))[0] == "seen"
    assert (await ran(runtime, "hungry"))[0].strip() == str(200 << 20)

    ceiling = {"mounts": ["/srv/elsewhere"], "limits": {"memory": "64Mi"}}
    await declare(runtime, "AgentPolicy", "tight", apply_mode="global", sandbox=ceiling)

    assert "AgentPolicy/tight does not allow" in (await ran(runtime, "t"))[0]
    assert str(200 << 20) not in (await ran(runtime, "hungry"))[0]


CODE = """
import threading, time, urllib.request

def fetch(url: str) -> str:
    return urllib.request.urlopen(url).read().decode()

def leave(url: str) -> str:
    def insist():
        while True:
            try:
                urllib.request.urlopen(url).read()
            except OSError:
                time.sleep(0.02)
    threading.Thread(target=insist, daemon=True).start()
    return "left"

def plain() -> str:
    return "ran"
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "fenced_desk.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, "fenced_desk", raising=False)
    importlib.invalidate_caches()


def function(name: str, port: int = 0, **more: Any) -> dict[str, Any]:
    network = {"sandbox": {"network": [{"hosts": [HOST], "ports": [port]}]}} if port else {}
    return {"type": "function", "function": f"fenced_desk:{name}", "effect": "read", **network, **more}


async def test_what_leaves_a_warm_function_is_recorded_for_the_call_that_it_serves(
    runtime: Runtime, world: World, desk: None
) -> None:
    port = await world.serve(host=HOST)
    await declare(runtime, "Tool", "fetch", **function("fetch", port))

    await declare_agent(runtime, "fetch", {"url": f"http://{HOST}:{port}/"})
    runs = [await runtime.run("caller-fetch", "Get it.") for _ in range(3)]

    assert [each.output for each in runs] == ["hello"] * 3
    async with asyncio.timeout(60):  # a client may be done before the broker is
        while len(left := await records(runtime, moment="egress", outcome="allowed")) < 3:
            await asyncio.sleep(0)
    assert {each["run_id"] for each in left} == {each.run_id for each in runs}

    await declare(runtime, "AgentPolicy", "tight", apply_mode="global", sandbox={"network": [{"hosts": ["a.example"]}]})
    said, left = await ran(runtime, "fetch", url=f"http://{HOST}:{port}/")
    assert "403" in said
    assert [each["decision"]["message"] for each in left] == ["policy"]


async def test_nothing_leaves_a_warm_function_between_calls(runtime: Runtime, world: World, desk: None) -> None:
    port = await world.serve(host=HOST)
    await declare(runtime, "Tool", "leave", **function("leave", port))

    said, _ = await ran(runtime, "leave", url=f"http://{HOST}:{port}/")

    assert said == "left"
    async with asyncio.timeout(60):
        while not (denied := await records(runtime, moment="egress", outcome="denied")):
            await asyncio.sleep(0)
    heard = len(world.heard)
    async with asyncio.timeout(60):
        while len(more := await records(runtime, moment="egress", outcome="denied")) < len(denied) + 3:
            await asyncio.sleep(0)
    assert len(world.heard) == heard
    assert {each["decision"]["message"] for each in more} == {"between_calls"}


async def test_a_policy_demands_a_fence_and_names_itself(runtime: Runtime, desk: None) -> None:
    await declare(runtime, "Tool", "open", **function("plain"))
    await declare(runtime, "Tool", "fenced", **function("plain", runtime={"isolation_mode": "sandboxed"}))
    await declare(runtime, "AgentPolicy", "walls", apply_mode="global", sandbox={"isolation": "sandboxed"})

    assert "runs without a sandbox" in (await ran(runtime, "open"))[0]
    assert (await ran(runtime, "fenced"))[0] == "ran"
    (refused,) = [each for each in await records(runtime, tool="open") if each["outcome"] == "denied"]
    assert refused["decision"]["rule"] == "AgentPolicy/walls"
