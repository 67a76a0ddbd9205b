"""The filter of system calls: a program for the kernel's packet filter, assembled here for x86-64 and arm64.

Refused is what ordinary programs do not need and what has led out of sandboxes before: tracing, mounting, new
namespaces, kernel modules, keys, clocks, and everything that is newer than this list. Calls of another architecture
kill the process, those of x32 do not exist. A refused call answers EPERM, or ENOSYS where programs know another way
then (`clone3`, whose arguments a filter cannot see, becomes `clone`).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

# Offsets in `struct seccomp_data`. Arguments are 64 bits wide; all that are looked at here are 32-bit numbers to the
# kernel, which takes the lower half too.
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16

_LOAD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_GREATER: Final = 0x25
_JUMP_AT_LEAST: Final = 0x35
_JUMP_BITS: Final = 0x45
_RETURN: Final = 0x06

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000

# x32 calls have this bit in their number; they are another way to the same calls, past any list of numbers.
_X32: Final = 0x40000000
# The newest call that was looked at (mseal, Linux 6.10). What comes later is refused until somebody has.
NEWEST: Final = 462

NEW_NAMESPACES: Final = 0x7E020000
SET_ID_BITS: Final = 0o6000
# Of all that mknod makes, only devices have this bit in their type.
DEVICE_BIT: Final = 0o020000
CREATES: Final = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
UNIX, _INET, _INET6, NETLINK = 1, 2, 10, 16
# The families of sockets that are part of a network namespace, or of none.
FAMILIES: Final = (UNIX, _INET, _INET6)
# The types of pairs that cannot be connected to anything else (SOCK_STREAM, SOCK_SEQPACKET), with each of their flags.
PAIRED: Final = tuple(kind | flags for kind in (1, 5) for flags in (0, 0o4000, 0o2000000, 0o2004000))
# What `personality` may be: the usual one, with fixed addresses, and asking for it.
PERSONALITIES: Final = (0, 8, 0xFFFFFFFF)
# Which argument is the mode of a file, where it is not the second.
MODES: Final[Mapping[str, int]] = {"fchmodat": 2, "mknodat": 2}


class Architecture(NamedTuple):
    """One architecture: the kernel's mark of it, and the numbers of its calls; a call that it has not is left out."""

    mark: int
    numbers: Mapping[str, int]


_COMMON: Final[Mapping[str, int]] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "statmount": 457,
    "listmount": 458,
    "lsm_set_self_attr": 460,
}
_X86_64: Final[Mapping[str, int]] = {
    "open": 2, "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "creat": 85, "chmod": 90, "fchmod": 91,
    "ptrace": 101, "syslog": 103, "mknod": 133, "uselib": 134, "personality": 135, "ustat": 136, "sysfs": 139,
    "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "_sysctl": 156, "adjtimex": 159, "chroot": 161, "acct": 163,
    "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
    "setdomainname": 171, "iopl": 172, "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176,
    "get_kernel_syms": 177, "query_module": 178, "quotactl": 179, "nfsservctl": 180, "getpmsg": 181, "putpmsg": 182,
    "afs_syscall": 183, "tuxcall": 184, "security": 185, "lookup_dcookie": 212, "clock_settime": 227, "vserver": 236,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "openat": 257,
    "mknodat": 259, "fchmodat": 268, "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_ARM64: Final[Mapping[str, int]] = {
    "lookup_dcookie": 18, "ioctl": 29, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42,
    "chroot": 51, "fchmod": 52, "fchmodat": 53, "openat": 56, "vhangup": 58, "quotactl": 60, "acct": 89,
    "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112,
    "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170,
    "adjtimex": 171, "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
    "swapon": 224, "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241,
    "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
    "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "x86_64": Architecture(0xC000003E, {**_X86_64, **_COMMON}),
    "aarch64": Architecture(0xC00000B7, {**_ARM64, **_COMMON}),
}

# Programs find another way when these do not exist.
ABSENT: Final = frozenset({"clone3", "openat2", "fchmodat2", "io_uring_setup", "io_uring_enter", "io_uring_register"})
# Looked at by their arguments, below.
EXAMINED: Final = frozenset(
    {"clone", "socket", "socketpair", "ioctl", "personality", "chmod", "fchmod", "fchmodat", "mknod", "mknodat"}
    | {"open", "openat", "creat"}
)


class Instruction(NamedTuple):
    """One instruction: `taken` and `passed` are how many instructions a jump skips when its test holds, or not."""

    code: int
    value: int
    taken: int = 0
    passed: int = 0


@cache
def filter_for(machine: str | None = None, *, connects: bool = True) -> bytes | None:
    """Assemble the filter for a machine as `platform.machine` names it; None for one that has no list here.

    Without `connects` programs have no Unix sockets but pairs that are connected already: a filter does not see which
    socket a program would connect to.
    """
    architecture = ARCHITECTURES.get(machine or platform.machine())
    if architecture is None:
        return None
    return b"".join(
        struct.pack("=HBBI", each.code, each.taken, each.passed, each.value)
        for each in _program(architecture, connects)
    )


def _program(architecture: Architecture, connects: bool) -> Sequence[Instruction]:
    numbers = architecture.numbers
    lines = [
        Instruction(_LOAD, _ARCHITECTURE),
        Instruction(_JUMP_EQUAL, architecture.mark, taken=1),
        Instruction(_RETURN, KILL),
        Instruction(_LOAD, _NUMBER),
        Instruction(_JUMP_AT_LEAST, _X32, passed=1),
        _refuse(errno.ENOSYS),
        Instruction(_JUMP_GREATER, NEWEST, passed=1),
        _refuse(errno.ENOSYS),
    ]
    for name in sorted(numbers.keys() - EXAMINED):
        answer = errno.ENOSYS if name in ABSENT else errno.EPERM
        lines += [Instruction(_JUMP_EQUAL, numbers[name], passed=1), _refuse(answer)]
    # Each block ends with a decision: it is reached only for its call.
    for name in sorted(numbers.keys() & EXAMINED):
        block = _examined(name, connects)
        lines += [Instruction(_JUMP_EQUAL, numbers[name], passed=len(block)), *block]
    return [*lines, Instruction(_RETURN, ALLOW)]


def _examined(name: str, connects: bool) -> list[Instruction]:
    if name == "clone":
        return _without_bits(0, NEW_NAMESPACES)
    if name == "ioctl":  # both put text into a terminal as if a person had typed it
        return _without(1, (TIOCSTI, _TIOCLINUX))
    if name == "personality":
        return _only(0, PERSONALITIES, errno.EPERM)
    if name == "socket":
        # Other families are no part of a network namespace (vsock reaches the host of a virtual machine), or have no
        # use here. Netlink of the protocol 0 lists the interfaces.
        return [
            _argument(0),
            Instruction(_JUMP_EQUAL, NETLINK, passed=4),
            _argument(2),
            Instruction(_JUMP_EQUAL, 0, passed=1),
            Instruction(_RETURN, ALLOW),
            _refuse(errno.EPROTONOSUPPORT),
            *_only(0, FAMILIES if connects else FAMILIES[1:], errno.EAFNOSUPPORT),
        ]
    if name == "socketpair":
        if not connects:
            checked = _only(1, PAIRED, errno.EACCES)
            return [_argument(0), Instruction(_JUMP_EQUAL, UNIX, taken=1), _refuse(errno.EAFNOSUPPORT), *checked]
        return _only(0, (UNIX,), errno.EAFNOSUPPORT)
    if name in ("open", "openat"):
        flags = 1 if name == "open" else 2
        return [
            _argument(flags),
            Instruction(_JUMP_BITS, CREATES, taken=1),
            Instruction(_RETURN, ALLOW),
            *_without_bits(flags + 1, SET_ID_BITS),
        ]
    # A file that runs with its owner's rights would do so outside, too.
    mode = MODES.get(name, 1)
    return _without_bits(mode, SET_ID_BITS | (DEVICE_BIT if name.startswith("mknod") else 0))


def _argument(index: int) -> Instruction:
    return Instruction(_LOAD, _ARGUMENTS + 8 * index)


def _refuse(answer: int) -> Instruction:
    return Instruction(_RETURN, _ERRNO | answer)


def _without_bits(index: int, bits: int) -> list[Instruction]:
    return [
        _argument(index),
        Instruction(_JUMP_BITS, bits, passed=1),
        _refuse(errno.EPERM),
        Instruction(_RETURN, ALLOW),
    ]


def _without(index: int, values: Iterable[int]) -> list[Instruction]:
    refused = [part for value in values for part in (Instruction(_JUMP_EQUAL, value, passed=1), _refuse(errno.EPERM))]
    return [_argument(index), *refused, Instruction(_RETURN, ALLOW)]


def _only(index: int, values: Iterable[int], answer: int) -> list[Instruction]:
    allowed = [
        part for value in values for part in (Instruction(_JUMP_EQUAL, value, passed=1), Instruction(_RETURN, ALLOW))
    ]
    return [_argument(index), *allowed, _refuse(answer)]
