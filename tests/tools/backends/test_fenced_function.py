"""A Python function in a fence answers as it does outside, sees nothing of the host, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from foliot.engine.definition.functions import fenced_definition
from foliot.engine.definition.grants import OperatorGrants
from foliot.errors import NotHere
from foliot.resources.validate import validate_document
from foliot.sandbox.egress.rules import EgressRule
from foliot.sandbox.process import ProcessSandbox
from foliot.tools.backends.fenced_function import FencedCode, FencedFunction, FunctionFence, shown, with_code
from foliot.tools.base import (
    AuthSpec,
    Caller,
    Invocation,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolPolicyInvalid,
    ToolRateLimited,
    ToolTimeout,
)
from foliot.tools.fences import FenceRequest, Fences
from foliot.tools.function import tool
from foliot.tools.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.fence

CODE = '''
import asyncio, ctypes, os, socket, subprocess, sys, threading, time
from dataclasses import dataclass
from typing import Annotated, Literal

from foliot import Invocation
from foliot.kernel.messages import Media, Text
from foliot.tools.base import ToolRateLimited
from os import getcwd
import fence_neighbour

raise_on_purpose = RuntimeError

@dataclass
class Point:
    x: int
    y: list[str]

def greet(name: str, times: int = 1, tone: Literal["warm", "cold"] = "warm") -> str:
    """Greets somebody.

    Args:
        name: Who is greeted.
    """
    print("printed, and no answer")
    return f"  {tone} hello {name} " * times

async def point(x: int) -> Point:
    await asyncio.sleep(0)
    return Point(x, ["ä", "\\n"])

def parts() -> list:
    return [Text("a"), Media("image/png", data="aGk=")]

def nothing():
    pass

def key(call: Invocation, more: str | None = None) -> list:
    return [call.idempotency_key, call.namespace, call.agent, call.tool, more]

def wrong(kind: str) -> str:
    if kind == "value":
        raise ValueError("not so")
    if kind == "limit":
        error = ToolRateLimited("later")
        error.retry_after = 7.5
        raise error
    if kind == "exit":
        sys.exit(3)
    if kind == "json":
        return object()
    if kind == "base":
        raise BaseException("odd")

def read(path: str) -> str:
    return open(path).read()

def beside() -> str:
    return fence_neighbour.WORD

def connect(port: int) -> str:
    socket.create_connection(("127.0.0.1", port), timeout=2)

def environment() -> dict:
    return dict(os.environ)

def loop(path: str = "") -> None:
    subprocess.Popen(["sleep", "987654"], start_new_session=True)
    while True:
        pass

def leave() -> None:
    print("last words", flush=True)
    os._exit(7)

def crash() -> None:
    ctypes.string_at(0)

def forge() -> str:
    os.write(1, b"\\0\\0\\0\\x02{}")
    print('{"status": "ok", "request_id": "x"}')
    return "the real one"

def fork() -> str:
    return "child" if os.fork() == 0 else "parent"

def large(size: int) -> str:
    return "x" * size

def flood(size: int) -> int:
    for _ in range(size // 1000):
        print("y" * 999)
    return size

def pid() -> str:
    return os.readlink("/proc/self/ns/pid")

counted = []

def count() -> int:
    counted.append(1)
    return len(counted)
'''


WAY = """
import os, socket, urllib.parse

way = None

def carry(word: str, port: int) -> str:
    global way
    if way is None:
        proxy = urllib.parse.urlparse(os.environ["https_proxy"])
        way = socket.create_connection((proxy.hostname, proxy.port))
        head = f"POST http://svc.example:{port}/ HTTP/1.1\\r\\nHost: svc.example:{port}\\r\\n"
        way.sendall(head.encode() + b"Transfer-Encoding: chunked\\r\\n\\r\\n")
    data = word.encode()
    try:
        way.sendall(b"%x\\r\\n%b\\r\\n" % (len(data), data))
        return way.recv(100).decode()
    except OSError:
        return ""
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "fence_desk.py").write_text(textwrap.dedent(CODE))
    (folder / "fence_way.py").write_text(WAY)
    (folder / "fence_neighbour.py").write_text("WORD = 'found'\n")
    (folder / "private.env").write_text("TOKEN=canary\n")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield folder
    sys.path.remove(str(folder))
    for name in ("fence_desk", "fence_neighbour"):
        sys.modules.pop(name, None)


@pytest.fixture
async def sandbox():
    sandbox = ProcessSandbox()
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def fence(sandbox):
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox))
    yield fence
    await fence.close()
    assert fence.size == 0


def fenced(fence: FunctionFence, folder: Path, name: str, **fields) -> FencedFunction:
    definition = ToolDefinition(name, isolation="sandboxed", **fields)
    return FencedFunction(with_code(definition, FencedCode(f"fence_desk:{name}", str(folder))), fence)


def call(name: str, /, **arguments) -> Invocation:
    return Invocation("run-1", "c1", name, arguments, "key-1", Caller("default", "caller"))


def sleepers() -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"987654" in Path("/proc", pid, "cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


async def both(fence, folder, name: str, /, **arguments):
    """The results of the pipeline: of the call in the fence, and of the same one outside."""
    outside = tool(getattr(importlib.import_module("fence_desk"), name))
    inside = fenced(fence, folder, name)
    results = []
    for each in (inside, outside):
        admitted = await Pipeline([each]).admit(call(name, **arguments))
        results.append(await admitted.run())
    return results


async def test_a_call_gives_the_same_result_as_outside(fence, folder) -> None:
    for name, arguments in (
        ("greet", {"name": "Ada", "times": 2}),
        ("point", {"x": 3}),
        ("parts", {}),
        ("nothing", {}),
        ("key", {"more": "m"}),
    ):
        inside, outside = await both(fence, folder, name, **arguments)
        assert inside.error is None, inside
        assert inside == outside, name


async def test_a_failure_is_the_same_as_outside(fence, folder) -> None:
    for kind in ("value", "limit", "exit", "base"):
        inside, outside = await both(fence, folder, "wrong", kind=kind)
        assert inside.error == outside.error, kind
    inside, outside = await both(fence, folder, "wrong", kind="json")
    assert all(each.error.unknown for each in (inside, outside)), "it has acted"
    with pytest.raises(ToolArgumentsInvalid, match="x: Input should be a valid integer"):
        await fenced(fence, folder, "point").invoke(call("point", x="three"))
    with pytest.raises(ToolRateLimited) as limited:
        await fenced(fence, folder, "wrong").invoke(call("wrong", kind="limit"))
    assert (limited.value.retry_after, limited.value.before_effect) == (7.5, True)


async def test_nothing_of_the_host_is_seen_inside(fence, folder, monkeypatch) -> None:
    monkeypatch.setenv("FENCE_CANARY", "canary-value")
    assert "canary" not in str(await fenced(fence, folder, "environment").invoke(call("environment")))
    assert (await fenced(fence, folder, "beside").invoke(call("beside")))[0].text == "found"
    reading = fenced(fence, folder, "read")
    for path in (str(folder / "private.env"), "/etc/shadow", str(Path(__file__).resolve())):
        with pytest.raises(ToolError, match="FileNotFoundError"):
            await reading.invoke(call("read", path=path))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ToolError, match=r"ConnectionRefused|unreachable"):
            await fenced(fence, folder, "connect").invoke(call("connect", port=port))


async def test_an_endless_call_is_ended_with_all_that_it_started(fence, folder) -> None:
    endless = fenced(fence, folder, "loop", timeout=1.5)
    admitted = await Pipeline([endless]).admit(call("loop"))
    result = await admitted.run()
    assert result.error is not None
    assert (result.error.kind, result.error.unknown) == ("timeout", "timeout")
    assert (sleepers(), fence.size) == ([], 0)
    with pytest.raises(ToolTimeout):
        await endless.invoke(call("loop"))
    assert (sleepers(), fence.size) == ([], 0)


async def test_a_cancelled_call_leaves_nothing(fence, folder) -> None:
    task = asyncio.create_task(fenced(fence, folder, "loop").invoke(call("loop")))
    while not await asyncio.to_thread(sleepers):
        assert not task.done(), task.result()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (sleepers(), fence.size) == ([], 0)


async def test_a_crash_is_said_and_the_next_call_has_a_new_process(fence, folder) -> None:
    for name, how in (("leave", "the code 7"), ("crash", "SIGSEGV")):
        with pytest.raises(ToolError, match=how) as crashed:
            await fenced(fence, folder, name).invoke(call(name))
        said = crashed.value
        assert (said.code, said.kind, said.unknown) == ("execution_failed", "internal", "broken")
        assert name != "leave" or "last words" in said.message
    assert fence.size == 0


async def test_what_is_printed_or_forked_is_no_answer(fence, folder) -> None:
    forging, forking = fenced(fence, folder, "forge"), fenced(fence, folder, "fork")
    assert [(await forging.invoke(call("forge")))[0].text for _ in range(3)] == ["the real one"] * 3
    assert [(await forking.invoke(call("fork")))[0].text for _ in range(2)] == ["parent"] * 2


async def test_large_output_is_bounded(fence, folder) -> None:
    large = fenced(fence, folder, "large")
    assert len((await large.invoke(call("large", size=3_000_000)))[0].text) == 3_000_000
    with pytest.raises(ToolError, match="are the most") as refused:
        await large.invoke(call("large", size=9_000_000))
    assert (refused.value.kind, refused.value.unknown) == ("too_large", "connection_lost")
    assert (await fenced(fence, folder, "flood").invoke(call("flood", size=5_000_000)))[0].text == "5000000"


async def test_fifty_calls_at_once_share_few_processes(sandbox, folder) -> None:
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox), most=3, most_of_one=2)
    greet, pid = fenced(fence, folder, "greet"), fenced(fence, folder, "pid")
    answers = await asyncio.gather(*(greet.invoke(call("greet", name=str(n))) for n in range(50)))
    assert [each[0].text for each in answers] == [f"  warm hello {n} " for n in range(50)]
    assert fence.size == 2
    namespaces = await asyncio.gather(*(pid.invoke(call("pid")) for _ in range(6)))
    assert len({each[0].text for each in namespaces}) <= 2
    assert fence.size <= 3  # an idle one of the other tool made place
    await fence.close()
    assert fence.size == 0
    with pytest.raises(ToolError, match="closing"):
        await greet.invoke(call("greet", name="late"))


async def test_calls_that_wait_are_woken_one_by_one_in_their_order(sandbox, folder, monkeypatch) -> None:
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox), most=2, most_of_one=1)
    tools = [fenced(fence, folder, name) for name in ("nothing", "greet")]
    looked, order, look = 0, list[tuple[str, int]](), fence._granted

    def counted(key):
        nonlocal looked
        looked += 1
        return look(key)

    async def one(tool: FencedFunction, number: int) -> None:
        name = tool.definition.name
        await tool.invoke(call(name, **({"name": "x"} if name == "greet" else {})))
        order.append((name, number))

    monkeypatch.setattr(fence, "_granted", counted)
    async with asyncio.timeout(60):
        await asyncio.gather(*(one(each, number) for number in range(100) for each in tools))
    for each in tools:
        assert [number for name, number in order if name == each.definition.name] == list(range(100))
    assert looked <= 5 * 200  # with all of them woken each time it would be ten thousand
    assert not fence._waiting
    await fence.close()


async def test_a_call_that_is_cancelled_when_it_is_its_turn_passes_it_on(sandbox, folder) -> None:
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox), most=1)
    greet = fenced(fence, folder, "greet")
    await greet.invoke(call("greet", name="x"))
    (worker,) = fence._workers
    fence._idle.clear()  # as if a call were at work
    waiting = [asyncio.create_task(greet.invoke(call("greet", name=str(n)))) for n in range(4)]
    while sum(map(len, fence._waiting.values())) != 4:
        await asyncio.sleep(0)
    waiting[1].cancel()  # before its turn
    fence._give_back(worker)
    waiting[0].cancel()  # in the moment in which it is its turn
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in answers] == [True, True, False, False]
    assert (fence._taken, fence._waiting) == ({worker.key: 1}, {})
    await fence.close()


async def test_calls_that_wait_are_refused_when_the_runtime_closes(sandbox, folder) -> None:
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox), most=1)
    greet = fenced(fence, folder, "greet")
    await greet.invoke(call("greet", name="x"))
    fence._idle.clear()  # as if a call were at work
    waiting = [asyncio.create_task(greet.invoke(call("greet", name=str(n)))) for n in range(3)]
    while sum(map(len, fence._waiting.values())) != 3:
        await asyncio.sleep(0)
    await fence.close()
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert ["closing" in str(each) for each in refused] == [True] * 3


async def test_a_process_is_kept_and_made_anew_after_some_calls_or_idle_time(sandbox, folder) -> None:
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox), most_calls=2)
    counting = fenced(fence, folder, "count")
    assert [(await counting.invoke(call("count")))[0].text for _ in range(4)] == ["1", "2", "1", "2"]
    await fence.close()
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox), idle_seconds=0.05)
    await fenced(fence, folder, "nothing").invoke(call("nothing"))
    async with asyncio.timeout(20):
        while fence.size:
            await asyncio.sleep(0)
    await fence.close()


async def test_no_credential_goes_inside(fence, folder) -> None:
    auth = AuthSpec("bearer", "token")
    with pytest.raises(ToolPolicyInvalid, match="no credential goes inside"):
        fence.check(fenced(fence, folder, "greet", auth=auth).definition)


# --- declared ----------------------------------------------------------------------------------------------------


def document(path: str, **metadata):
    spec = {"type": "function", "function": path, "risk_level": "high"}
    found, problems = validate_document({"kind": "Tool", "metadata": {"name": "t"}, "spec": spec})
    assert found is not None, problems
    found["metadata"] |= metadata
    return found


async def test_the_signature_is_read_and_nothing_imported(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fence_danger.py").write_text(
        "raise SystemExit\nfrom x import Y\n"
        "def act(a: str, b: 'int | None' = None, c: Y = Y(), *, d: list[Y], e: Annotated[str, 'note', Y()] = 'e'):\n"
        "    '''Acts.'''\n"
    )
    definition = fenced_definition(document("fence_danger:act"), OperatorGrants())
    assert "fence_danger" not in sys.modules
    assert definition.description == "Acts."
    assert definition.schema == {
        "additionalProperties": False,
        "properties": {
            "a": {"type": "string"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "c": {"default": None},
            "d": {"items": {}, "type": "array"},
            "e": {"type": "string", "default": "e", "description": "note"},
        },
        "required": ["a", "d"],
        "type": "object",
    }
    known = importlib.import_module("fence_desk")
    for name in ("greet", "point", "key", "nothing"):
        found = fenced_definition(document(f"fence_desk:{name}"), OperatorGrants())
        assert found.schema == tool(getattr(known, name)).definition.schema


async def test_a_module_that_is_missing_or_not_granted_is_refused(fence, folder) -> None:
    with pytest.raises(NotHere, match="fence_nowhere"):
        fenced_definition(document("fence_nowhere:act"), OperatorGrants())
    anybody = {"uid": "u", "declaredBy": {"name": "ada"}}
    with pytest.raises(ToolDenied, match="may not be tools"):
        fenced_definition(document("fence_desk:greet", **anybody), OperatorGrants())
    grants = OperatorGrants(tool_modules=("fence_desk",))
    greet = FencedFunction(fenced_definition(document("fence_desk:greet", **anybody), grants), fence)
    assert (await greet.invoke(call("t", name="Ada")))[0].text == "  warm hello Ada "
    borrowed = FencedFunction(fenced_definition(document("fence_desk:getcwd", **anybody), grants), fence)
    with pytest.raises(ToolDenied, match="posix"):
        await borrowed.invoke(call("t"))


def test_only_python_is_shown_of_the_folder(folder) -> None:
    mounts, paths = shown(FencedCode("fence_desk:greet", str(folder)))
    own = {each.target for each in mounts if each.source.startswith(str(folder))}
    assert own == {f"/opt/foliot-code/fence_{name}.py" for name in ("desk", "neighbour", "way")}
    assert not any(each.writable for each in mounts)
    assert paths[0] == "/opt/foliot-code"


async def test_a_connection_ends_with_the_call_that_made_it_and_carries_nothing_of_the_next(sandbox, folder) -> None:
    came, ended, records = bytearray(), asyncio.Event(), list[tuple[str, int]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                came.extend(data)
                if b"alice" in data:
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        ended.set()
        writer.close()

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fences = Fences(
        lambda backend: sandbox,
        resolve=resolve,
        record=lambda owner, entry: records.append((owner.call_id, entry.bytes_out)),
    )
    fence = FunctionFence(lambda: fences)
    definition = ToolDefinition(
        "carry",
        isolation="sandboxed",
        options={"sandbox": FenceRequest(network=(EgressRule(("svc.example",), (port,)),))},
    )
    carry = FencedFunction(with_code(definition, FencedCode("fence_way:carry", str(folder))), fence)

    (first,) = await carry.invoke(replace(call("carry", word="of alice", port=port), call_id="of-alice"))
    async with asyncio.timeout(60):
        await ended.wait()
    sent = list(records)
    (second,) = await carry.invoke(replace(call("carry", word="of bob", port=port), call_id="of-bob"))
    size = fence.size
    await fence.close()
    server.close()

    assert first.text.startswith("HTTP/1.1 200")
    assert (second.text, size) == ("", 1), "the same process has served both"
    assert b"of alice" in came
    assert b"of bob" not in came
    assert [who for who, _ in records] == ["of-alice"]
    assert records == sent
