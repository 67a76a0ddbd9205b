"""Landlock: a second wall around the files of a program, which it cannot take down and its children inherit.

The mount namespace decides what is there; Landlock says once more what may be written, and keeps signals and abstract
sockets within the program. A process can only restrict itself, and bubblewrap must still mount: so a launcher stands
between it and the program. The launcher is a few system calls in a row, assembled here into a program of about a
kilobyte for each call, because no language that every system has could be loaded as quickly:

    create a ruleset; for each rule open its path and add it; restrict itself; become the program, where it is found

When one of them fails it writes the number of the error to a pipe and ends. The pipe closes when the program begins.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from foliot.sandbox.base import WORKSPACE, SandboxPolicy

_CREATE: Final = 444
_VERSION: Final = 1
# Rights on files and on folders, by the version of Landlock that knows them (`linux/landlock.h`).
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE: Final = 0b1_1111_1111 << 4
_REFER, _TRUNCATE, _DEVICE_COMMANDS = 1 << 13, 1 << 14, 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_COMMANDS
_SINCE: Final = {2: _REFER, 3: _TRUNCATE, 5: _DEVICE_COMMANDS}
# Abstract sockets and signals stay within the program, since version 6.
_SCOPED: Final = 0b11
_SCOPED_SINCE: Final = 6

_OPEN_PATH: Final = os.O_CLOEXEC | 0o10000000
_BASE: Final = 0x400000
_HEADERS: Final = 64 + 56


class Rule(Struct, frozen=True):
    """A path inside, and what may be done with it and with all that is below."""

    path: str
    rights: int


@cache
def version() -> int:
    """Returns the version of Landlock that the kernel has; 0 where it cannot be used."""
    if platform.machine() != "x86_64":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))))


def why_not() -> str:
    """Returns the reason why it cannot be used here."""
    if platform.machine() != "x86_64":
        return f"the launcher that sets it up is written for x86-64, and this is {platform.machine()}"
    return "the kernel has no Landlock, or it is not among its security modules (lsm=)"


def handled(known: int) -> int:
    """Returns all rights that a version knows: what no rule gives is refused."""
    rights = _READ | _WRITE_FILE | _REMOVE_AND_MAKE
    for since, right in _SINCE.items():
        if known >= since:
            rights |= right
    return rights


def rules_of(policy: SandboxPolicy, known: int) -> list[Rule]:
    """Returns the rules of a policy: everything that is there may be read and run, and written what is meant to be."""
    every = handled(known)
    devices = (_READ | _WRITE_FILE | _TRUNCATE | _DEVICE_COMMANDS) & every
    rules = [Rule("/", _READ), Rule("/tmp", every), Rule("/dev", devices), Rule("/dev/shm", every)]
    if policy.shows_workspace and policy.workspace_access == "read_write":
        rules.append(Rule(WORKSPACE, every))
    for mount in policy.mounts:
        if mount.writable:
            rules.append(Rule(mount.target, every if os.path.isdir(mount.source) else every & _OF_A_FILE))
    return rules


def launcher(rules: Sequence[Rule], paths: Sequence[str], report: int, known: int) -> bytes:
    """Assembles the program that restricts itself by `rules` and becomes the first of `paths` that exists.

    Its arguments are those of the other, after its own name. It writes the number of an error to the descriptor
    `report`, and sees to it that the other does not have that.
    """
    scoped = _SCOPED if known >= _SCOPED_SINCE else 0
    attributes = struct.pack("<QQQ", handled(known), 0, scoped)
    size = 8 if known < 4 else (16 if known < _SCOPED_SINCE else 24)
    code = _Code()
    code.put("4c8d642408")  # lea r12, [rsp+8]: argv
    code.put("488b0424", "4d8d6cc408")  # mov rax, [rsp]; lea r13, [r12+rax*8+8]: the environment
    code.put("4883ec10")  # sub rsp, 16: room for a rule
    code.call(72, edi=report, esi=2, edx=1)  # fcntl(report, F_SETFD, FD_CLOEXEC)
    code.call(_CREATE, edi=attributes[:size], esi=size, edx=0)
    code.put("4989c6")  # mov r14, rax: the ruleset
    for rule in rules:
        code.call(2, edi=os.fsencode(rule.path) + b"\0", esi=_OPEN_PATH)  # open
        code.put("89c3", "89442408")  # mov ebx, eax; mov [rsp+8], eax
        code.put("48c70424", struct.pack("<I", rule.rights))  # mov qword [rsp], rights
        code.put("4489f7", "4889e2", "4531d2")  # mov edi, r14d; mov rdx, rsp; xor r10d, r10d
        code.call(_CREATE + 1, esi=1)  # landlock_add_rule(ruleset, PATH_BENEATH, rsp, 0)
        code.put("89df")  # mov edi, ebx
        code.call(3)  # close
    code.put("4489f7")  # mov edi, r14d
    code.call(_CREATE + 2, esi=0)  # landlock_restrict_self(ruleset, 0)
    for path in paths:
        code.put("498d742408", "4c89ea")  # lea rsi, [r12+8]; mov rdx, r13
        code.call(59, edi=os.fsencode(path) + b"\0", checked=False)  # execve, which returns only when it fails
        code.put("83f8fe", "7405", "e9")  # cmp eax, -ENOENT; je over the jump; jmp
        code.jump()
    code.failed()
    code.put("f7d8", "890424", "4889e6")  # neg eax; mov [rsp], eax; mov rsi, rsp
    code.call(1, edi=report, edx=4, checked=False)  # write
    code.call(60, edi=127, checked=False)  # exit
    return code.program()


class _Code:
    """Machine code for x86-64, whose data and jumps find their places at the end."""

    _REGISTERS: Final = {"edi": 0xBF, "esi": 0xBE, "edx": 0xBA}

    def __init__(self) -> None:
        self._code = bytearray()
        self._data: list[tuple[int, bytes]] = []
        self._jumps: list[int] = []
        self._failed = 0

    def put(self, *parts: str | bytes) -> None:
        for part in parts:
            self._code += bytes.fromhex(part) if isinstance(part, str) else part

    def call(self, number: int, *, checked: bool = True, **registers: int | bytes) -> None:
        """A system call; bytes stand for their address. When `checked`, a failure jumps to `failed`."""
        for name, value in registers.items():
            self._code.append(self._REGISTERS[name])
            if isinstance(value, bytes):
                self._data.append((len(self._code), value))
                value = 0
            self._code += struct.pack("<I", value)
        self.put("b8", struct.pack("<I", number), "0f05")  # mov eax, number; syscall
        if checked:
            self.put("4885c0", "0f88")  # test rax, rax; js
            self.jump()

    def jump(self) -> None:
        """The distance of a jump to `failed`."""
        self._jumps.append(len(self._code))
        self._code += bytes(4)

    def failed(self) -> None:
        """Mark the place where failures go on."""
        self._failed = len(self._code)

    def program(self) -> bytes:
        """The whole as an executable file (ELF), one segment that is read and run."""
        code, data = bytearray(self._code), bytearray()
        for place in self._jumps:
            struct.pack_into("<i", code, place, self._failed - place - 4)
        for place, value in self._data:
            struct.pack_into("<I", code, place, _BASE + _HEADERS + len(code) + len(data))
            data += value + bytes(-len(value) % 8)
        size = _HEADERS + len(code) + len(data)
        head = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
        head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 4096)
        return head + segment + bytes(code) + bytes(data)
