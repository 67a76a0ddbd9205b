"""Small WebAssembly modules as text, for tests: each compiled, written to a file, and named by its digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from foliot.sandbox.wasm import WasmModule

IMPORTS = """
(import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_prestat_get" (func $fd_prestat_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "sock_send" (func $sock_send (param i32 i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_open"
  (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
(memory (export "memory") 3)
(func $write (param $fd i32) (param $at i32) (param $size i32)
  (i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $size))
  (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
(func $read (param $fd i32) (result i32)
  (i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 65536))
  (drop (call $fd_read (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
  (i32.load (i32.const 8)))
(func $say (param $number i32)
  (i32.store8 (i32.const 16) (i32.add (i32.const 48) (i32.div_u (local.get $number) (i32.const 10))))
  (i32.store8 (i32.const 17) (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10))))
  (i32.store8 (i32.const 18) (i32.const 32))
  (call $write (i32.const 1) (i32.const 16) (i32.const 3)))
"""


def compiled(text: str) -> bytes:
    import wasmtime

    return bytes(wasmtime.wat2wasm(text))


def digest_of(code: bytes) -> str:
    return f"sha256:{hashlib.sha256(code).hexdigest()}"


def stored(folder: Path, code: bytes, name: str = "") -> tuple[str, str]:
    """The path and the digest of a file with this module."""
    digest = digest_of(code)
    path = folder / (name or f"{digest[7:19]}.wasm")
    path.write_bytes(code)
    return str(path), digest


def system_module(body: str, *, name: str = "run", more: str = "") -> bytes:
    """A module with the functions above, whose entrypoint does this."""
    return compiled(f'(module {IMPORTS} {more} (func (export "{name}") {body}))')


def answering(text: str) -> bytes:
    """A module that answers every request with this text."""
    size, escaped = len(text.encode()), "".join(f"\\{byte:02x}" for byte in text.encode())
    body = f"(drop (call $read (i32.const 0))) (call $write (i32.const 1) (i32.const 1024) (i32.const {size}))"
    return system_module(body, more=f'(data (i32.const 1024) "{escaped}")')


def module(folder: Path, code: bytes, **more: object) -> WasmModule:
    path, digest = stored(folder, code)
    return WasmModule(path, digest, **more)  # type: ignore[arg-type]


ECHO = """(local $n i32) (local.set $n (call $read (i32.const 0)))
(call $write (i32.const 1) (i32.const 65536) (local.get $n))"""
FOREVER = "(loop $again (br $again))"
