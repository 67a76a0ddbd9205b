"""The filter, run call by call through an interpreter of the kernel's packet filter: also for the other machine."""

from __future__ import annotations

import errno
import json
import struct

import pytest

from foliot.sandbox.seccomp import ABSENT, ALLOW, ARCHITECTURES, EXAMINED, KILL, NEWEST, PAIRED, filter_for
from foliot.sandbox.seccomp_profile import profile

MACHINES = sorted(ARCHITECTURES)
ERRNO = 0x00050000


def verdict(machine: str, number: int, *arguments: int, mark: int | None = None, connects: bool = True) -> int:
    """What the kernel would answer; 0 for allowed, KILL, or the number of an error."""
    program = filter_for(machine, connects=connects)
    assert program is not None
    architecture = ARCHITECTURES[machine].mark if mark is None else mark
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    lines = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        code, taken, passed, operand = lines[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            if operand == ALLOW:
                return 0
            return operand if operand == KILL else operand - ERRNO
        else:
            holds = {
                0x15: value == operand,
                0x25: value > operand,
                0x35: value >= operand,
                0x45: bool(value & operand),
            }[code]
            at += taken if holds else passed


def number(machine: str, name: str) -> int:
    return ARCHITECTURES[machine].numbers[name]


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_listed_is_refused_whatever_its_arguments(machine: str) -> None:
    for name, each in ARCHITECTURES[machine].numbers.items():
        if name not in EXAMINED:
            expected = errno.ENOSYS if name in ABSENT else errno.EPERM
            assert verdict(machine, each, 0, 0, 0) == verdict(machine, each, *[2**64 - 1] * 6) == expected, name


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_is_allowed_up_to_the_newest_that_is_known(machine: str) -> None:
    listed = set(ARCHITECTURES[machine].numbers.values())
    assert all(verdict(machine, each) == 0 for each in range(NEWEST + 1) if each not in listed)
    assert all(verdict(machine, each) == errno.ENOSYS for each in (NEWEST + 1, 512, 547, 1000, 2**31, 2**32 - 1))


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_kills_and_x32_does_not_exist(machine: str) -> None:
    i386, arm, other = 0x40000003, 0x40000028, 0
    assert {verdict(machine, 1, mark=mark) for mark in (i386, arm, other)} == {KILL}
    assert all(verdict(machine, 0x40000000 | each) == errno.ENOSYS for each in range(600))


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_are_looked_at(machine: str) -> None:
    def asked(name: str, *arguments: int) -> int:
        return verdict(machine, number(machine, name), *arguments)

    threads, process = 0x3D0F00, 0x1200011
    assert asked("clone", threads) == asked("clone", process) == 0
    for space in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert asked("clone", process | space) == errno.EPERM
    assert [asked("socket", family, 1, 0) for family in (1, 2, 10)] == [0, 0, 0]
    packet, alg, vsock, bluetooth, xdp = 17, 38, 40, 31, 44
    assert {asked("socket", family, 1, 0) for family in (packet, alg, vsock, bluetooth, xdp)} == {errno.EAFNOSUPPORT}
    assert asked("socket", 16, 3, 0) == 0
    assert asked("socket", 16, 3, 9) == errno.EPROTONOSUPPORT  # the audit log
    assert asked("socketpair", 1, 1, 0) == 0
    assert asked("ioctl", 0, 0x5401) == 0
    assert asked("ioctl", 0, 0x5412) == asked("ioctl", 0, 2**32 + 0x541C) == errno.EPERM
    assert asked("personality", 0xFFFFFFFF) == 0
    assert asked("personality", 0x0040000) == errno.EPERM
    assert asked("fchmod", 3, 0o755) == asked("fchmodat", 3, 0, 0o644) == 0
    assert asked("fchmod", 3, 0o4755) == asked("fchmodat", 3, 0, 0o2755) == errno.EPERM
    create, temporary = 0o101, 0o20200002
    assert asked("openat", 3, 0, create, 0o644) == asked("openat", 3, 0, 0, 0o4755) == 0
    assert asked("openat", 3, 0, create, 0o4755) == asked("openat", 3, 0, temporary, 0o2700) == errno.EPERM
    fifo, character, block, regular = 0o010644, 0o020644, 0o060644, 0o100644
    assert asked("mknodat", 3, 0, fifo) == asked("mknodat", 3, 0, regular) == 0
    assert asked("mknodat", 3, 0, character) == asked("mknodat", 3, 0, block) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_without_unix_sockets_only_pairs_are_left_that_are_connected_to_each_other(machine: str) -> None:
    def asked(name: str, *arguments: int) -> int:
        return verdict(machine, number(machine, name), *arguments, connects=False)

    flags = (0, 0o4000, 0o2000000, 0o2004000)
    assert {asked("socket", 1, kind | flag, 0) for kind in range(16) for flag in flags} == {errno.EAFNOSUPPORT}
    assert [asked("socket", family, 1, 0) for family in (2, 10)] == [0, 0]
    assert asked("socketpair", 2, 1, 0) == errno.EAFNOSUPPORT
    for kind in range(16):
        expected = {0} if kind in (1, 5) else {errno.EACCES}
        assert {asked("socketpair", 1, kind | flag, 0) for flag in flags} == expected, kind


def test_containers_are_given_the_same_rule_about_sockets() -> None:
    def allowed(connects: bool, name: str) -> list[list[int]]:
        made = json.loads(profile("x86_64", connects=connects) or b"")
        return [[each["value"] for each in rule["args"]] for rule in made["syscalls"] if rule["names"] == [name]]

    assert [1] in allowed(True, "socket")
    assert [1] not in allowed(False, "socket")
    assert allowed(True, "socketpair") == [[1]]
    assert allowed(False, "socketpair") == [[1, kind] for kind in PAIRED]


def test_the_older_calls_of_x86_are_looked_at_too() -> None:
    for name in ("chmod", "creat", "mknod"):
        assert verdict("x86_64", number("x86_64", name), 0, 0o644) == 0
        assert verdict("x86_64", number("x86_64", name), 0, 0o4644) == errno.EPERM
    assert verdict("x86_64", number("x86_64", "open"), 0, 0o101, 0o4755) == errno.EPERM


def test_a_machine_without_a_list_has_no_filter() -> None:
    assert filter_for("pdp11") is None
