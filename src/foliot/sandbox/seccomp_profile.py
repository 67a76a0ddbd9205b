"""The filter of system calls as engines of containers take it: a profile in JSON, of the calls that are allowed.

It refuses what the filter of processes refuses (`sandbox/seccomp.py`), by the same tables. The profiles that engines
bring along differ, and some let programs make user namespaces, use keys and reach the host of a virtual machine.
A profile compares 64 bits where the kernel looks at 32, so each condition is written by bits that must not be set.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from msgspec import json

from foliot.sandbox import seccomp

_MARKS: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
# Calls of both architectures up to `seccomp.NEWEST` that are of no concern; what is not named does not exist.
_PLAIN: Final = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chown clock_adjtime64 clock_getres
clock_gettime clock_gettime64 clock_nanosleep clock_settime64 close close_range connect copy_file_range dup dup2
dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat
exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchown fchownat fcntl
fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat fstatat64 fstatfs
fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_wait futex_waitv futex_wake futimesat
get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage
getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1
inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioprio_get ioprio_set kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr
llistxattr llseek lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules lstat lstat64 madvise
map_shadow_stack mbind membarrier memfd_create mincore mkdir mkdirat mlock mlock2 mlockall mmap mmap2 mprotect
mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd
msync munlock munlockall munmap nanosleep newfstatat pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev pwritev2 read
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat
renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendfile64
sendmmsg sendmsg sendto set_mempolicy set_mempolicy_home_node set_robust_list set_thread_area set_tid_address
setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit
setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice stat
stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill
time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64
umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
"""


@cache
def profile(machine: str | None = None, *, connects: bool = True) -> bytes | None:
    """The profile for a machine as `platform.machine` names it; None for one that has no list here.

    `connects` is as in `seccomp.filter_for`.
    """
    mark = _MARKS.get(machine or platform.machine())
    if mark is None:
        return None
    calls = [
        {"names": sorted(_PLAIN.split()), "action": "SCMP_ACT_ALLOW"},
        {"names": sorted(_refused()), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
        *(rule for name in sorted(seccomp.EXAMINED) for rule in _examined(name, connects)),
    ]
    made = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.ENOSYS, "architectures": [mark]}
    return json.encode({**made, "syscalls": calls})


def _refused() -> set[str]:
    """Names the calls that are refused with EPERM; those that are to be taken for absent are not named at all."""
    known = {name for each in seccomp.ARCHITECTURES.values() for name in each.numbers}
    return known - seccomp.EXAMINED - seccomp.ABSENT


def _examined(name: str, connects: bool) -> Iterator[dict[str, Any]]:
    if name == "clone":
        yield from _without(name, 0, seccomp.NEW_NAMESPACES)
    elif name == "ioctl":
        # Every bit of TIOCSTI but one may be as it is there.
        for bit in (1 << position for position in range(32)):
            yield _allowed(name, _bits(1, bit, ~seccomp.TIOCSTI & bit))
    elif name == "personality":
        for value in seccomp.PERSONALITIES:
            yield _allowed(name, _is(0, value))
    elif name == "socket":
        yield _allowed(name, _is(0, seccomp.NETLINK), _is(2, 0))
        for family in seccomp.FAMILIES if connects else seccomp.FAMILIES[1:]:
            yield _allowed(name, _is(0, family))
    elif name == "socketpair":
        for pair in ([_is(1, kind)] for kind in seccomp.PAIRED) if not connects else ([],):
            yield _allowed(name, _is(0, seccomp.UNIX), *pair)
    elif name in ("open", "openat"):
        flags = 1 if name == "open" else 2
        yield _allowed(name, _bits(flags, seccomp.CREATES, 0))
        yield _allowed(name, _bits(flags + 1, seccomp.SET_ID_BITS, 0))
    else:
        mode = seccomp.MODES.get(name, 1)
        yield from _without(name, mode, seccomp.SET_ID_BITS | (seccomp.DEVICE_BIT if name.startswith("mknod") else 0))


def _without(name: str, index: int, bits: int) -> Iterator[dict[str, Any]]:
    """Allowed when none of the bits is set, and refused with EPERM when one is."""
    yield _allowed(name, _bits(index, bits, 0))
    for bit in (1 << position for position in range(32)):
        if bits & bit:
            refused = {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM}
            yield {**refused, "args": [_bits(index, bit, bit)]}


def _allowed(name: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": list(conditions)}


def _bits(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _is(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}
