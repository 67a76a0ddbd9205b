"""What a call of a WebAssembly tool costs, beside a plain function, through the same pipeline, taking turns.

    python benchmarks/bench_wasm.py [--rounds N] [--at-once N]

The module reads its request and writes an answer, in a memory of its own that is new for each call. The aim is 1 ms
after the first call, which compiles.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import resource
import statistics
import tempfile
import time
from typing import Any

import wasmtime
from verdict import Verdict

from foliot.tools.backends.wasm import WasmIsolation, WasmTool
from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.function import tool
from foliot.tools.pipeline.pipeline import Pipeline

VERDICT = Verdict()

AIM = 0.001
ANSWER = '{"contract_version":"v1","status":"ok","output":"done"}'
TEXT = f"""(module
(import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(memory (export "memory") 2)
(data (i32.const 1024) "{ANSWER.replace('"', chr(92) + '"')}")
(func (export "run")
  (i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 65536))
  (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
  (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const {len(ANSWER)}))
  (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"""


@tool(effect="read")
async def plain(width: int) -> str:
    """The same as a function."""
    return "done"


def declared(folder: str) -> ToolDefinition:
    code = bytes(wasmtime.wat2wasm(TEXT))
    path = os.path.join(folder, "bench.wasm")
    with open(path, "wb") as file:
        file.write(code)
    options = {"wasm": {"module": path, "digest": f"sha256:{hashlib.sha256(code).hexdigest()}"}}
    return ToolDefinition("module", type="wasm", isolation="wasm", effect="read", options=options)


async def measured(rounds: int, at_once: int, folder: str) -> None:
    isolation = WasmIsolation()
    pipeline = Pipeline([WasmTool(declared(folder), isolation), plain])

    async def call(name: str, number: int) -> float:
        invocation = Invocation("run-1", f"c{number}", name, {"width": 3}, f"k{name}{number}")
        began = time.perf_counter()
        result: Any = await pipeline.call(invocation)
        assert result.text == "done", result
        return time.perf_counter() - began

    first = await call("module", 0)
    times: dict[str, list[float]] = {"plain": [], "module": []}
    for number in range(1, rounds + 1):
        for name, kept in times.items():
            kept.append(await call(name, number))
    print(f"{'first call of the module, with compiling':42} {first * 1e6:8.0f} us")
    for name, kept in times.items():
        middle, late = statistics.median(kept), statistics.quantiles(kept, n=20)[-1]
        print(f"{name:42} {middle * 1e6:8.0f} us in the middle, {late * 1e6:.0f} us for 19 of 20")
    began = time.perf_counter()
    await asyncio.gather(*(call("module", rounds + number) for number in range(1, at_once + 1)))
    took, memory = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{f'{at_once} modules at once':42} {took * 1e6:8.0f} us in all, {memory:.0f} MiB at most")
    await isolation.close()
    VERDICT.hold("a call of a module after the first", statistics.median(times["module"]), "s", most=AIM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measured(given.rounds, given.at_once, folder))
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
