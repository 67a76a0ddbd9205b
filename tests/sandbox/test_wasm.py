"""Modules do what they may, and stop where they must: time, instructions, memory, stack, output, and the machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.sandbox import wasm as engine
from foliot.sandbox.base import SandboxGone, SandboxPolicyRefused, SandboxUnavailable
from foliot.sandbox.wasm import Wasm, WasmFinished, WasmLimits, WasmModule
from tests.sandbox.modules import ECHO, FOREVER, compiled, digest_of, module, stored, system_module

UNBOUND = WasmLimits(seconds=None)
# poll_oneoff with one subscription at 2048: a clock, in an hour.
SLEEP = """(i64.store (i32.const 2072) (i64.const 3600000000000))
(drop (call $poll_oneoff (i32.const 2048) (i32.const 3000) (i32.const 1) (i32.const 4000)))"""


@pytest.fixture
async def wasm() -> AsyncIterator[Wasm]:
    made = Wasm(threads=2)
    yield made
    await made.close()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("foliot-wasm")]


async def test_a_module_reads_its_input_and_writes_its_output(wasm: Wasm, tmp_path: Path) -> None:
    echo = module(tmp_path, system_module(ECHO, name="_start"))
    said = await asyncio.gather(*(wasm.run(echo, f"call {number}".encode()) for number in range(8)))
    assert [each.stdout for each in said] == [f"call {number}".encode() for number in range(8)]
    assert {(each.exit_code, each.ended_by, each.stderr) for each in said} == {(0, "", b"")}


async def test_nothing_of_one_call_is_there_in_the_next(wasm: Wasm, tmp_path: Path) -> None:
    """Each has a memory of its own: a module counts in it, and never gets beyond one."""
    count = """(i32.store (i32.const 512) (i32.add (i32.load (i32.const 512)) (i32.const 1)))
    (call $say (i32.load (i32.const 512)))"""
    counter = module(tmp_path, system_module(count))
    assert [(await wasm.run(counter, b"")).stdout for _ in range(3)] == [b"01 "] * 3


@pytest.mark.parametrize(
    ("body", "limits", "ended", "why"),
    [
        (FOREVER, WasmLimits(seconds=0.05), "timeout", ""),
        (FOREVER, WasmLimits(fuel=100_000, seconds=None), "fuel", "fuel of 100000"),
        (SLEEP + FOREVER, WasmLimits(seconds=0.05), "timeout", ""),
        ("(call $deep)", UNBOUND, "stack", "nested too deeply"),
        (f"(loop $again {SLEEP.replace('3600000000000', '0')} (br $again))", WasmLimits(seconds=0.05), "timeout", ""),
        (
            "(loop $again (call $write (i32.const 1) (i32.const 0) (i32.const 65536)) (br $again))",
            UNBOUND,
            "output",
            "more than 1048576 bytes",
        ),
        ("(unreachable)", UNBOUND, "trap", "unreachable"),
        ("(drop (i32.load (i32.const 0x7fffffff)))", UNBOUND, "trap", "memory out of bounds"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", UNBOUND, "trap", "integer division by zero"),
    ],
    ids=[
        "loop",
        "loop with fuel",
        "sleep",
        "recursion",
        "short sleeps",
        "output",
        "trap",
        "outside memory",
        "division",
    ],
)
async def test_a_module_is_stopped_at_its_limits(
    wasm: Wasm, tmp_path: Path, body: str, limits: WasmLimits, ended: str, why: str
) -> None:
    wild = module(tmp_path, system_module(body, more="(func $deep (call $deep))"))
    finished = await asyncio.wait_for(wasm.run(wild, b"", limits), 60)
    assert (finished.ended_by, why in finished.why) == (ended, True), finished
    # The thread that ran it runs others after it.
    echo = module(tmp_path, system_module(ECHO))
    assert (await wasm.run(echo, b"still here")).stdout == b"still here"


async def test_memory_grows_to_its_limit_and_no_further(wasm: Wasm, tmp_path: Path) -> None:
    """64 KiB a page: 3 of its own and as many as it gets, one after the other."""
    grow = "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (call $say (memory.size))"
    grower = module(tmp_path, system_module(grow))
    assert (await wasm.run(grower, b"", WasmLimits(memory=32 * 65536))).stdout == b"32 "
    whole = module(tmp_path, compiled('(module (memory (export "memory") 2000) (func (export "run")))'))
    finished = await wasm.run(whole, b"")
    assert (finished.ended_by, finished.why) == ("memory", "it needs more than 67108864 bytes of memory")


@pytest.mark.parametrize("body", [FOREVER, SLEEP + FOREVER], ids=["loop", "sleep"])
async def test_a_cancelled_call_leaves_nothing_running(wasm: Wasm, tmp_path: Path, body: str) -> None:
    begun = threading.Event()
    wild = module(tmp_path, system_module(body))
    await wasm.run(wild, b"", WasmLimits(seconds=0.01))  # compiled by now
    begin = engine._Call.begin

    def noted(self: engine._Call, *parts: object) -> bool:
        answer = begin(self, *parts)  # type: ignore[arg-type]
        begun.set()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._Call, "begin", noted)
        running = asyncio.create_task(wasm.run(wild, b"", UNBOUND))
        assert await asyncio.to_thread(begun.wait, 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 60)
    assert not wasm._running


async def test_calls_that_wait_for_a_thread_run_out_of_time_too(wasm: Wasm, tmp_path: Path) -> None:
    wild = module(tmp_path, system_module(FOREVER))
    said = await asyncio.gather(*(wasm.run(wild, b"", WasmLimits(seconds=0.1)) for _ in range(6)))
    assert [each.ended_by for each in said] == ["timeout"] * 6


async def test_closing_stops_what_runs(tmp_path: Path) -> None:
    wasm = Wasm(threads=1)
    wild = module(tmp_path, system_module(FOREVER))
    running = asyncio.create_task(wasm.run(wild, b"", UNBOUND))
    while not wasm._running or wild.digest not in wasm._compiled:
        await asyncio.sleep(0)
    await asyncio.wait_for(wasm.close(), 60)
    assert (await running).ended_by == "cancelled"
    with pytest.raises(SandboxGone):
        await wasm.run(wild, b"")


async def test_what_a_module_says_when_it_ends_holds(wasm: Wasm, tmp_path: Path) -> None:
    """Also when it goes on after it said that it is done."""
    body = "(call $say (i32.const 7)) (call $proc_exit (i32.const 3)) (call $say (i32.const 8)) " + FOREVER
    done = module(tmp_path, system_module(body))
    finished = await wasm.run(done, b"", UNBOUND)
    assert (finished.exit_code, finished.stdout, finished.ended_by) == (3, b"07 ", "")


async def test_of_what_it_says_besides_the_end_is_kept(wasm: Wasm, tmp_path: Path) -> None:
    body = """(local $n i32)
    (loop $again
      (call $write (i32.const 2) (i32.const 1024) (i32.const 60000))
      (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100))))
    (call $say (i32.const 1)) (call $write (i32.const 2) (i32.const 16) (i32.const 3))"""
    finished = await wasm.run(module(tmp_path, system_module(body)), b"", WasmLimits(output=1000))
    assert (finished.ended_by, len(finished.stderr), finished.stderr[-3:]) == ("", 1000, b"01 ")


# --- the machine -----------------------------------------------------------------------------------------------------


async def test_there_is_no_environment_no_folder_no_network_and_no_fine_clock(wasm: Wasm, tmp_path: Path) -> None:
    """No variables; no folder at 3 (bad descriptor, 8); no sockets (not there, 52); whole milliseconds."""
    body = """
    (drop (call $environ_sizes_get (i32.const 32) (i32.const 36)))
    (call $say (i32.load (i32.const 32)))
    (call $say (call $fd_prestat_get (i32.const 3) (i32.const 40)))
    (call $say (call $sock_send (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
    (drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 48)))
    (call $say (i32.wrap_i64 (i64.rem_u (i64.load (i32.const 48)) (i64.const 1000000))))"""
    assert (await wasm.run(module(tmp_path, system_module(body)), b"")).stdout == b"00 08 52 00 "


async def test_addresses_outside_its_memory_are_refused(wasm: Wasm, tmp_path: Path) -> None:
    """A bad address is error 21, wherever it stands: in the arguments, or in a list that they point to."""
    body = """
    (i32.store (i32.const 0) (i32.const -8)) (i32.store (i32.const 4) (i32.const 64))
    (call $say (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 0) (i32.const -8)) (i32.store (i32.const 4) (i32.const 64))
    (call $say (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $say (call $fd_write (i32.const 1) (i32.const -4) (i32.const 1) (i32.const 8)))
    (call $say (call $fd_write (i32.const 1) (i32.const 0) (i32.const -1) (i32.const 8)))
    (call $say (call $environ_sizes_get (i32.const -1) (i32.const -1)))"""
    assert (await wasm.run(module(tmp_path, system_module(body)), b"input")).stdout == b"21 21 21 21 21 "


def opening(path: str, *, how: int = 0, rights: int = 2) -> bytes:
    """A module that opens a path below its first folder, and says the error and what is in the file."""
    size = len(path.encode())
    body = f"""(local $error i32) (local $n i32)
    (local.set $error (call $path_open (i32.const 3) (i32.const 1) (i32.const 1024) (i32.const {size}) (i32.const {how})
      (i64.const {rights}) (i64.const 0) (i32.const 0) (i32.const 64)))
    (call $say (local.get $error))
    (if (i32.eqz (local.get $error)) (then
      (local.set $n (call $read (i32.load (i32.const 64))))
      (call $write (i32.const 1) (i32.const 65536) (local.get $n))))"""
    return system_module(body, more=f'(data (i32.const 1024) "{path}")')


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("notes.txt", b"00 hello"),
        ("sub/../notes.txt", b"00 hello"),
        ("inside", b"00 hello"),
        ("nothing.txt", b"44 "),
        ("../secret.txt", b"76 "),
        ("out", b"76 "),
        ("outside/secret.txt", b"76 "),
        ("/etc/passwd", b"76 "),
        ("pipe", b"76 "),
    ],
)
async def test_only_granted_folders_can_be_read(wasm: Wasm, tmp_path: Path, path: str, said: bytes) -> None:
    shared = tmp_path / "shared"
    (shared / "sub").mkdir(parents=True)
    (shared / "notes.txt").write_text("hello")
    (tmp_path / "secret.txt").write_text("sesame")
    (shared / "inside").symlink_to("notes.txt")
    (shared / "out").symlink_to(tmp_path / "secret.txt")
    (shared / "outside").symlink_to(tmp_path)
    os.mkfifo(shared / "pipe")
    reader = module(tmp_path, opening(path), folders={"/data": str(shared)})
    assert (await wasm.run(reader, b"")).stdout == said


@pytest.mark.parametrize(("how", "rights"), [(1, 2), (8, 2), (0, 64)], ids=["create", "empty", "write"])
async def test_nothing_can_be_written(wasm: Wasm, tmp_path: Path, how: int, rights: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "notes.txt").write_text("hello")
    writer = module(tmp_path, opening("notes.txt", how=how, rights=rights), folders={"/data": str(shared)})
    assert (await wasm.run(writer, b"")).stdout == b"69 "
    assert (shared / "notes.txt").read_text() == "hello"


# --- without a system ------------------------------------------------------------------------------------------------

BARE = """(module (memory (export "memory") 2)
  (func (export "alloc") (param i32) (result i32) (i32.const 4096))
  (func (export "run") (param $at i32) (param $size i32) (result i64) {}))"""


@pytest.mark.parametrize(
    ("body", "ended", "said"),
    [
        ("(i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $size)))",
         "", b"hello"),
        ("(i64.const -1)", "output", b""),
        ("(i64.const 0x7fffffff00000005)", "", b""),
        ("(loop $again (br $again)) (unreachable)", "timeout", b""),
    ],
    ids=["echo", "too large", "outside memory", "loop"],
)  # fmt: skip
async def test_a_module_without_wasi_has_its_memory_alone(
    wasm: Wasm, tmp_path: Path, body: str, ended: str, said: bytes
) -> None:
    bare = module(tmp_path, compiled(BARE.format(body)), wasi=False)
    finished = await wasm.run(bare, b"hello", WasmLimits(seconds=0.1))
    assert (finished.ended_by, finished.stdout) == (ended, said)


# --- what is run -----------------------------------------------------------------------------------------------------


async def refusal(wasm: Wasm, given: WasmModule) -> tuple[str, str]:
    with pytest.raises(SandboxPolicyRefused) as caught:
        await wasm.run(given, b"")
    return caught.value.field, caught.value.message


async def test_a_file_that_changed_is_refused(wasm: Wasm, tmp_path: Path) -> None:
    path, digest = stored(tmp_path, system_module(ECHO), "tool.wasm")
    Path(path).write_bytes(system_module(ECHO + "(unreachable)"))
    field, message = await refusal(wasm, WasmModule(path, digest))
    assert (field, "another file" in message) == ("wasm.digest", True)


async def test_what_was_compiled_stays_what_it_was(wasm: Wasm, tmp_path: Path) -> None:
    """The digest names what runs, and not the file, which nobody reads again; nor is anything written to a file."""
    echo = module(tmp_path, system_module(ECHO))
    await wasm.run(echo, b"")
    assert [each.name for each in tmp_path.iterdir()] == [os.path.basename(echo.path)]
    Path(echo.path).write_bytes(system_module("(unreachable)"))
    assert (await wasm.run(echo, b"same")).stdout == b"same"
    other = WasmModule(echo.path, digest_of(Path(echo.path).read_bytes()))
    assert (await wasm.run(other, b"")).ended_by == "trap"


@pytest.mark.parametrize(
    ("code", "more", "field", "says"),
    [
        (b"hello", {}, "wasm.module", "not a WebAssembly module"),
        (b"\0asm\x0d\0\x01\0rest", {}, "wasm.module", "component"),
        (b"\0asm\x01\0\0\0rest", {}, "wasm.module", "cannot be compiled"),
        ("(module)", {}, "wasm.entrypoint", "run or _start"),
        ('(module (func (export "run")))', {}, "wasm.module", "export its memory"),
        ('(module (memory (export "memory") 1) (func (export "run")))', {"entrypoint": "go"}, "wasm.entrypoint", "go"),
        ('(module (memory (export "memory") 1) (func (export "run") (param i32)))', {}, "wasm.entrypoint", "() -> ()"),
        ('(module (import "env" "f" (func)) (func (export "run")))', {}, "wasm.module", "imports env.f"),
        (system_module(ECHO), {"wasi": False}, "wasm.module", "wasi is off"),
        ('(module (memory (export "memory") 1) (func (export "run")))', {"wasi": False}, "wasm.entrypoint", "i64"),
        ('(module (memory 1) (memory 1) (func (export "run")))', {}, "wasm.module", "cannot be compiled"),
        ('(module (memory i64 1) (func (export "run")))', {}, "wasm.module", "cannot be compiled"),
        ('(module (memory 1 1 shared) (func (export "run")))', {}, "wasm.module", "cannot be compiled"),
    ],
)
async def test_a_module_that_does_not_fit_is_refused_with_its_reason(
    wasm: Wasm, tmp_path: Path, code: bytes | str, more: dict[str, object], field: str, says: str
) -> None:
    made = compiled(code) if isinstance(code, str) else code
    found, message = await refusal(wasm, module(tmp_path, made, **more))
    assert (found, says in message) == (field, True), message


async def test_files_and_folders_that_are_not_there_are_refused(wasm: Wasm, tmp_path: Path) -> None:
    field, message = await refusal(wasm, WasmModule(str(tmp_path / "none.wasm"), "sha256:" + "0" * 64))
    assert (field, "No such file" in message) == ("wasm.module", True)
    lost = module(tmp_path, system_module(ECHO), folders={"/data": str(tmp_path / "none")})
    assert (await refusal(wasm, lost))[0] == "wasm.folders"


async def test_without_wasmtime_it_says_what_to_install(
    wasm: Wasm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = module(tmp_path, system_module(ECHO))
    assert (await wasm.enforces()).available
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(SandboxUnavailable) as caught:
        await wasm.run(echo, b"")
    assert caught.value.hint == "pip install 'foliot-runtime[wasm]'"
    assert (await wasm.enforces()).hint == caught.value.hint


async def test_modules_that_are_pushed_out_are_compiled_again(
    wasm: Wasm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_KEPT_COMPILED", 1)
    monkeypatch.setattr(engine, "_KEPT_READY", 1)
    made = [module(tmp_path, system_module(f"(call $say (i32.const {number}))")) for number in (1, 2)]
    said: list[WasmFinished] = [await wasm.run(each, b"") for each in (*made, *made)]
    assert [each.stdout for each in said] == [b"01 ", b"02 "] * 2
    assert len(wasm._compiled) == 1
