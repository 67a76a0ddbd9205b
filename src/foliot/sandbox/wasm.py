"""WebAssembly modules, run in wasmtime: bounded in memory, steps, time and output, without anything of the machine.

A module is named by the digest of its file, and nothing with another digest ever runs. What it was compiled to stays
in the memory of this process, and is never written to a file: to load machine code from a file is to run whatever
somebody put there, and who can write the file can write what vouches for it too.

Each thread that runs modules has an engine of its own. The epoch of an engine is therefore the clock of one call: it
moves on when that call is out of time or cancelled, and the module stops at its next branch backwards or call, whatever
it does. Functions of the system (`wasi.py`) never wait for longer. So no thread is left behind.

Faults are found by checks in the compiled code and not by signals of the processor, which belong to the program that
Foliot is part of.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct, structs

from foliot.sandbox import wasi as system
from foliot.sandbox.base import (
    MIB,
    Enforced,
    Enforcement,
    SandboxGone,
    SandboxPolicyRefused,
    SandboxUnavailable,
)
from foliot.version import install_command

if TYPE_CHECKING:
    import wasmtime

EndedBy: TypeAlias = Literal["", "timeout", "cancelled", "memory", "fuel", "stack", "output", "trap"]

INSTALL: Final = install_command("wasm")
LARGEST_MODULE: Final = 64 * MIB
_MAGIC: Final = b"\0asm\x01\0\0\0"
_COMPONENT: Final = b"\0asm\x0d\0\x01\0"
_ENTRYPOINTS: Final = ("run", "_start")
_STACK: Final = 512 * 1024
_TABLE: Final = 200_000
_NO_FUEL_LIMIT: Final = (1 << 64) - 1
_KEPT_COMPILED: Final = 256 * MIB
_KEPT_READY: Final = 32


def installed() -> bool:
    """Whether wasmtime is there. It is not imported."""
    return find_spec("wasmtime") is not None


class WasmModule(Struct, frozen=True):
    """A module by its file and the digest of that, `sha256:` and 64 hexadecimal digits; and how it is called.

    Without an `entrypoint` it is `run`, or `_start` where there is no such function. With `wasi` the module reads its
    input from the stream 0 and writes to 1; without, it has no imports at all: `alloc(size)` returns an address that
    the input is written to, and the entrypoint takes address and size, and returns `address << 32 | size` of its
    output. `folders` of the host, by the absolute path that they have inside, can be read.
    """

    path: str
    digest: str
    entrypoint: str = ""
    wasi: bool = True
    folders: Mapping[str, str] = {}


class WasmLimits(Struct, frozen=True):
    """The bounds of one call. `fuel` is a number of instructions, 0 for no bound; sizes are in bytes."""

    memory: int = 64 * MIB
    fuel: int = 0
    seconds: float | None = 30.0
    output: int = 1 * MIB


class WasmFinished(Struct, frozen=True):
    """The end of one call. `ended_by` says what ended it before it was done, `why` the same to people."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    ended_by: EndedBy = ""
    why: str = ""
    fuel_used: int = 0
    seconds: float = 0.0


class _Call:
    """One call on its way through a thread. `stop` may come at any moment, from any thread."""

    def __init__(self) -> None:
        self.stopped: EndedBy = ""
        self._lock = threading.Lock()
        self._engine: wasmtime.Engine | None = None
        self._wake: threading.Event | None = None

    def begin(self, engine: wasmtime.Engine, store: wasmtime.Store, wake: threading.Event) -> bool:
        """Give the store its deadline: the next epoch. Returns False for a call that was stopped while it waited."""
        with self._lock:
            if not self.stopped:
                store.set_epoch_deadline(1)
                self._engine, self._wake = engine, wake
            return not self.stopped

    def end(self) -> None:
        with self._lock:
            self._engine = self._wake = None

    def stop(self, why: EndedBy) -> None:
        with self._lock:
            self.stopped = self.stopped or why
            if self._engine is not None and self._wake is not None:
                self._wake.set()
                self._engine.increment_epoch()


class Wasm:
    """Runs modules. One object serves all tools of a runtime; it has no thread until something is called."""

    name = "wasm"

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = threads or max(4, min(32, 2 * (os.cpu_count() or 1)))
        self._pool: ThreadPoolExecutor | None = None
        self._compiler: ThreadPoolExecutor | None = None
        self._local = threading.local()
        # By digest: what a module was compiled to, for any engine.
        self._compiled: OrderedDict[str, bytes] = OrderedDict()
        self._keeping = threading.Lock()
        self._running: set[_Call] = set()
        self._closed = False

    async def enforces(self) -> Enforcement:
        """Say whether modules can be run here, and what holds them. Never raises."""
        if not installed():
            return Enforcement(self.name, False, "wasmtime is not installed", INSTALL)
        by = "it is not among the functions that a module can import"
        features = {
            "filesystem": Enforced(True, "only granted folders, read-only"),
            "network": Enforced(True, by),
            "processes": Enforced(True, by),
            "user": Enforced(True, by),
            "memory": Enforced(True, "the limit of the store"),
            "cpu_seconds": Enforced(True, "fuel, and the epoch of the engine"),
            "owner": Enforced(True, "it runs on a thread of its owner"),
        }
        return Enforcement(self.name, True, features=features)

    async def run(self, module: WasmModule, stdin: bytes, limits: WasmLimits | None = None) -> WasmFinished:
        """Call a module once, in a memory of its own. When cancelled, nothing of it is left running on return.

        Raises `SandboxPolicyRefused` for a module that cannot be run as it is declared, with the field;
        `SandboxUnavailable` without wasmtime, `SandboxGone` after `close`.
        """
        limits = limits or WasmLimits()
        pool, compiler = self._pools()
        loop, began = asyncio.get_running_loop(), time.monotonic()
        call = _Call()
        timer = loop.call_later(limits.seconds, call.stop, "timeout") if limits.seconds is not None else None
        self._running.add(call)
        try:
            if module.digest not in self._compiled:
                # Goes on when the call does not: nothing of the module runs, and the next call finds it done.
                compiling = loop.run_in_executor(compiler, self._compile, module.path, module.digest)
                await asyncio.wait((compiling,), timeout=limits.seconds)
                if not compiling.done():
                    compiling.add_done_callback(_heard)
                    return WasmFinished(ended_by="timeout", why="it was not compiled in time")
                compiling.result()
            if call.stopped:
                return WasmFinished(ended_by=call.stopped, why="it was not begun in time")
            running = loop.run_in_executor(pool, self._called, call, module, stdin, limits)
            try:
                finished = await asyncio.shield(running)
            except asyncio.CancelledError:
                call.stop("cancelled")
                running.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await running
                raise
        finally:
            self._running.discard(call)
            if timer is not None:
                timer.cancel()
        return structs.replace(finished, seconds=time.monotonic() - began)

    async def close(self) -> None:
        """Stop what runs. Doing so twice is harmless."""
        self._closed = True
        for call in tuple(self._running):
            call.stop("cancelled")
        pools, self._pool, self._compiler = (self._pool, self._compiler), None, None
        for pool in pools:
            if pool is not None:
                await asyncio.to_thread(pool.shutdown)

    def _pools(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        if self._closed:
            raise SandboxGone("the runtime that the module belongs to is closed")
        if not installed():
            raise SandboxUnavailable("WebAssembly modules need wasmtime, which is not installed", hint=INSTALL)
        if self._pool is None or self._compiler is None:
            self._pool = ThreadPoolExecutor(self._threads, "foliot-wasm")
            self._compiler = ThreadPoolExecutor(1, "foliot-wasm-compiler")
        return self._pool, self._compiler

    # --- on threads ----------------------------------------------------------------------------------------------

    def _compile(self, path: str, digest: str) -> None:
        """Read the file and compile exactly what was read, if it is what the digest names."""
        if digest in self._compiled or self._closed:
            return
        import wasmtime

        code = read_module(path, digest)
        try:
            compiled = bytes(wasmtime.Module(_engine(), code).serialize())
        except wasmtime.WasmtimeError as error:
            raise SandboxPolicyRefused("wasm.module", f"it cannot be compiled: {_first_line(error)}") from None
        with self._keeping:
            self._compiled[digest] = compiled
            while len(self._compiled) > 1 and sum(map(len, self._compiled.values())) > _KEPT_COMPILED:
                self._compiled.popitem(last=False)

    def _called(self, call: _Call, module: WasmModule, stdin: bytes, limits: WasmLimits) -> WasmFinished:
        if call.stopped:
            return WasmFinished(ended_by=call.stopped, why="it was not begun in time")
        slot: _Slot | None = getattr(self._local, "slot", None)
        if slot is None:
            slot = self._local.slot = _Slot()
        compiled = self._compiled.get(module.digest)
        if compiled is None:  # pushed out by others in this very moment
            self._compile(module.path, module.digest)
            compiled = self._compiled.get(module.digest)
        if compiled is None:
            raise SandboxGone("the runtime that the module belongs to is closed")
        return slot.call(call, slot.ready(module, compiled), module, stdin, limits)


def read_module(path: str, digest: str) -> bytes:
    """The content of a module's file. Raises `SandboxPolicyRefused` unless it has this digest."""
    try:
        with open(path, "rb") as file:
            code = file.read(LARGEST_MODULE + 1)
    except OSError as error:
        raise SandboxPolicyRefused("wasm.module", f"{path} cannot be read: {error.strerror}") from None
    if len(code) > LARGEST_MODULE:
        raise SandboxPolicyRefused("wasm.module", f"{path} has more than {LARGEST_MODULE // MIB} MiB")
    found = f"sha256:{hashlib.sha256(code).hexdigest()}"
    if found != digest:
        raise SandboxPolicyRefused(
            "wasm.digest",
            f"{path} is another file than the one that was declared",
            hint=f"it has {found}: declare that, if the change is meant",
        )
    if code.startswith(_COMPONENT):
        raise SandboxPolicyRefused("wasm.module", "it is a component", hint="build a module for WASI preview 1")
    if not code.startswith(_MAGIC):
        raise SandboxPolicyRefused("wasm.module", f"{path} is not a WebAssembly module")
    return code


def _engine() -> wasmtime.Engine:
    """All engines are alike, so that one takes what another compiled. Nothing is on that needs more than a store."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.signals_based_traps = False
    config.max_wasm_stack = _STACK
    config.wasm_threads = False
    config.wasm_multi_memory = False
    config.wasm_memory64 = False
    config.wasm_gc = False
    config.wasm_exceptions = False
    config.wasm_component_model = False
    config.wasm_relaxed_simd_deterministic = True
    return wasmtime.Engine(config)


class _Ready(Struct, frozen=True):
    """A module that one engine can make instances of."""

    instances: Any
    entrypoint: str
    starts: bool


class _Slot:
    """The part of one thread: an engine, the system for the modules in it, and modules that are ready."""

    def __init__(self) -> None:
        import wasmtime

        self._engine = _engine()
        self._guest: system.Guest | None = None
        self._ready: OrderedDict[tuple[str, str, bool], _Ready] = OrderedDict()
        self._bare = wasmtime.Linker(self._engine)
        self._linker = wasmtime.Linker(self._engine)
        kinds = {"i": wasmtime.ValType.i32, "I": wasmtime.ValType.i64}
        for name, (letters, _) in system.FUNCTIONS.items():
            silent = name == system.WITHOUT_RESULT
            results = [] if silent else [wasmtime.ValType.i32()]
            kind = wasmtime.FuncType([kinds[letter]() for letter in letters], results)
            masks = tuple(0xFFFF_FFFF if letter == "i" else (1 << 64) - 1 for letter in letters)
            served = self._served(name, masks, silent=silent)
            self._linker.define_func(system.MODULE, name, kind, served, access_caller=True)

    def _served(self, name: str, masks: tuple[int, ...], *, silent: bool) -> Callable[..., int | None]:
        def serve(caller: Any, *values: int) -> int | None:
            guest = self._guest
            given = tuple(value & mask for value, mask in zip(values, masks, strict=True))
            answer = guest.serve(name, caller, given) if guest is not None else 0
            return None if silent else answer

        return serve

    def ready(self, module: WasmModule, compiled: bytes) -> _Ready:
        """Raises `SandboxPolicyRefused` for a module that imports or exports something else than it must."""
        import wasmtime

        key = module.digest, module.entrypoint, module.wasi
        found = self._ready.get(key)
        if found is not None:
            self._ready.move_to_end(key)
            return found
        made = wasmtime.Module.deserialize(self._engine, compiled)
        for each in made.imports:
            if not module.wasi or each.module != system.MODULE:
                why = "" if module.wasi or each.module != system.MODULE else ", and wasi is off"
                raise SandboxPolicyRefused(
                    "wasm.module",
                    f"it imports {each.module}.{each.name}, which it does not get{why}",
                    hint=f"build it for WASI preview 1: all it may import is {system.MODULE}",
                )
        exports = {each.name: each.type for each in made.exports}
        names = (module.entrypoint,) if module.entrypoint else _ENTRYPOINTS
        entrypoint = next((name for name in names if isinstance(exports.get(name), wasmtime.FuncType)), "")
        if not entrypoint:
            raise SandboxPolicyRefused("wasm.entrypoint", f"the module exports no function {' or '.join(names)}")
        _check_call(module, exports, entrypoint)
        try:
            instances = (self._linker if module.wasi else self._bare).instantiate_pre(made)
        except wasmtime.WasmtimeError as error:
            raise SandboxPolicyRefused("wasm.module", f"it cannot be linked: {_first_line(error)}") from None
        starts = "_initialize" in exports and entrypoint not in ("_start", "_initialize")
        self._ready[key] = _Ready(instances, entrypoint, starts)
        if len(self._ready) > _KEPT_READY:
            self._ready.popitem(last=False)
        return self._ready[key]

    def call(self, call: _Call, ready: _Ready, module: WasmModule, stdin: bytes, limits: WasmLimits) -> WasmFinished:
        import wasmtime

        store = wasmtime.Store(self._engine)
        try:
            guest = system.Guest(
                stdin,
                output=limits.output,
                folders=module.folders,
                end=self._engine.increment_epoch,
            )
        except OSError as error:
            raise SandboxPolicyRefused("wasm.folders", f"{error.filename} cannot be read: {error.strerror}") from None
        ended: EndedBy = ""
        why = ""
        fuel = limits.fuel or _NO_FUEL_LIMIT
        code: int | None = 0
        try:
            store.set_limits(limits.memory, _TABLE, instances=1, tables=16, memories=1)
            store.set_fuel(fuel)
            if not call.begin(self._engine, store, guest.stopping):
                return WasmFinished(ended_by=call.stopped, why="it was not begun in time")
            self._guest = guest
            try:
                code = _entered(store, ready, module, stdin, limits, guest)
            except wasmtime.Trap as trap:
                ended, why = _why(trap, limits)
            except wasmtime.WasmtimeError as error:
                text = _first_line(error)
                ended = "memory" if "memory" in text else "trap"
                why = f"it needs more than {limits.memory} bytes of memory" if ended == "memory" else text
            finally:
                self._guest = None
                call.end()
            used = fuel - store.get_fuel()
            if guest.exit_code is not None:
                ended, why, code = "", "", guest.exit_code
            elif guest.overflow:
                ended, why = "output", f"it wrote more than {limits.output} bytes"
            elif ended == "trap" and call.stopped:
                ended = call.stopped
            return WasmFinished(code or 0, bytes(guest.stdout), bytes(guest.stderr), ended, why, used)
        finally:
            guest.close()
            store.close()


def _entered(
    store: wasmtime.Store, ready: _Ready, module: WasmModule, stdin: bytes, limits: WasmLimits, guest: system.Guest
) -> int | None:
    exports = ready.instances.instantiate(store).exports(store)
    if ready.starts:
        exports["_initialize"](store)
    if module.wasi:
        code = exports[ready.entrypoint](store)
        return code & 0xFF if isinstance(code, int) else 0
    memory = exports["memory"]
    place = exports["alloc"](store, len(stdin)) & 0xFFFF_FFFF
    if place + len(stdin) <= memory.data_len(store):
        memory.write(store, stdin, place)
        answer = exports[ready.entrypoint](store, place, len(stdin)) & (1 << 64) - 1
        start, size = answer >> 32, answer & 0xFFFF_FFFF
        if size > limits.output:
            guest.overflow = True
        elif start + size <= memory.data_len(store):
            guest.stdout += memory.read(store, start, start + size)
    return 0


def _check_call(module: WasmModule, exports: Mapping[str, Any], entrypoint: str) -> None:
    """Raises `SandboxPolicyRefused` when the functions of a module do not take what they are called with."""
    import wasmtime

    def shape(name: str) -> tuple[list[str], list[str]] | None:
        kind = exports.get(name)
        if not isinstance(kind, wasmtime.FuncType):
            return None
        return [str(each) for each in kind.params], [str(each) for each in kind.results]

    wanted: dict[str, tuple[tuple[list[str], list[str]], ...]] = {entrypoint: (([], []), ([], ["i32"]))}
    if not module.wasi:
        wanted = {entrypoint: ((["i32", "i32"], ["i64"]),), "alloc": ((["i32"], ["i32"]),)}
    elif "_initialize" in exports:
        wanted["_initialize"] = (([], []),)
    for name, shapes in wanted.items():
        if shape(name) not in shapes:
            takes, gives = shapes[0]
            says = f"({', '.join(takes)}) -> ({', '.join(gives)})"
            raise SandboxPolicyRefused("wasm.entrypoint", f"the module must export the function {name} {says}")
    if not isinstance(exports.get("memory"), wasmtime.MemoryType):
        raise SandboxPolicyRefused("wasm.module", "the module must export its memory, as memory")


def _why(trap: wasmtime.Trap, limits: WasmLimits) -> tuple[EndedBy, str]:
    import wasmtime

    try:
        code = trap.trap_code
    except ValueError:
        code = None
    if code is wasmtime.TrapCode.OUT_OF_FUEL:
        return "fuel", f"it used up its fuel of {limits.fuel}"
    if code is wasmtime.TrapCode.STACK_OVERFLOW:
        return "stack", f"its calls are nested too deeply: they need more than {_STACK // 1024} KiB"
    if code is wasmtime.TrapCode.INTERRUPT:
        return "trap", "it was stopped"
    return "trap", code.name.lower().replace("_", " ") if code is not None else _first_line(trap)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _heard(future: asyncio.Future[Any]) -> None:
    """Take note of how it ended, for nobody waits for it."""
    if not future.cancelled():
        future.exception()
