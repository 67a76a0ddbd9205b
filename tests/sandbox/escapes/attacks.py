"""Ways out of a sandbox, tried. Each is a program that says how far it came, and how far it may come.

    python -m tests.sandbox.escapes.attacks            run them all and print what became of each, as JSON
    python -m tests.sandbox.escapes.attacks --user N   the same as the ordinary user N, started as root
    python -m tests.sandbox.escapes.attacks --engine podman container|gvisor   the same in containers
    python -m tests.sandbox.escapes.attacks --write    put the table of docs/sandbox.md together anew

No attack does harm where it succeeds: it opens what could be written and writes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from foliot.sandbox.base import Limits, Mount, Sandbox, SandboxPathRefused, SandboxPolicy, SandboxSession
from foliot.sandbox.container import ContainerSandbox
from foliot.sandbox.process import ProcessSandbox
from tests.conformance.sandbox import marked
from tests.sandbox.containers.engines import REAL, folders_for_all, sandbox_of, usable
from tests.sandbox.containers.images import system_image

MIB = 1024 * 1024
PAGE = Path(__file__).parents[3] / "docs" / "sandbox.md"
HEADING = "## What was tried to get out\n"
SOON = 60.0
ORDINARY = 65534


ROOMY = Limits(seconds=SOON)


@dataclass
class World:
    """What an attack may look for outside: secrets, sockets, a process."""

    sandbox: Sandbox
    folder: Path
    canary: str = field(default_factory=lambda: f"canary-{secrets.token_hex(8)}")
    mark: str = field(default_factory=lambda: f"3600.{secrets.randbelow(10**9):09d}")
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    abstract: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX))

    def __post_init__(self) -> None:
        self.abstract.bind(f"\0{self.canary}")
        self.abstract.listen()
        self.workspace = self.folder / "workspace"
        with folders_for_all():
            self.workspace.mkdir(exist_ok=True)
        self.secret = self.folder / "secret.txt"
        self.secret.write_text(self.canary)
        os.environ["FOLIOT_CANARY"] = self.canary
        # A descriptor that a careless parent leaves open for its children.
        self.left_open = os.open(self.secret, os.O_RDONLY)
        os.set_inheritable(self.left_open, True)

    @property
    def facts(self) -> str:
        """What the attacker knows, as the beginning of his program."""
        port = self.listener.getsockname()[1]
        return (
            f"CANARY = {self.canary[::-1]!r}[::-1]\nSECRET = {str(self.secret)!r}\nPORT = {port}\n"
            f"OWNER = {os.getpid()}\nMARK = {self.mark!r}\n{PRELUDE}"
        )

    def close(self) -> None:
        os.environ.pop("FOLIOT_CANARY", None)
        self.listener.close()
        self.abstract.close()
        os.close(self.left_open)


PRELUDE = """
import ctypes, errno, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def name(number):
    return errno.errorcode.get(number, str(number))
def tried(act, *given):
    try:
        return f"did it: {act(*given)!r}"
    except OSError as error:
        return name(error.errno)
def call(number, *given):
    done = libc.syscall(number, *given)
    return f"did it: {done}" if done >= 0 else name(ctypes.get_errno())
def writing(path):
    return tried(os.open, path, os.O_WRONLY)
"""


@dataclass(frozen=True)
class Attack:
    """`code` is Python that runs inside; it has failed to get out when its output is `held`, in full.

    `around` runs it in another way than as one program, and returns the output to be compared.
    """

    name: str
    tried: str
    held: str
    outcome: str
    code: str = ""
    limits: Limits = ROOMY
    around: Callable[[World, Attack], Awaitable[str]] | None = None
    # By backend, where it differs: on a machine or for a user that enforces it in another way.
    otherwise: dict[str, tuple[str, str]] = field(default_factory=dict)


def _python() -> tuple[str, tuple[Mount, ...]]:
    """An interpreter that is there inside: the system's, or that of this process."""
    if os.path.exists("/usr/bin/python3"):
        return "/usr/bin/python3", ()
    return "/opt/python/bin/python3", (Mount(sys.base_prefix, "/opt/python"),)


async def opened(world: World, limits: Limits) -> SandboxSession:
    return await world.sandbox.open(SandboxPolicy(workspace=str(world.workspace), mounts=_python()[1], limits=limits))


async def carried_out(world: World, attack: Attack) -> str:
    """Run an attack; what it said in the end."""
    if attack.around is not None:
        return await attack.around(world, attack)
    session = await opened(world, attack.limits)
    try:
        done = await session.exec([_python()[0], "-I", "-c", world.facts + attack.code])
    finally:
        await session.close()
    if left := marked(world.mark):
        return f"{len(left)} processes are left"
    end = done.ended_by or (f"signal {done.signal}" if done.signal else "")
    text = done.stdout.decode(errors="replace").strip()
    if world.canary in text + done.stderr.decode(errors="replace"):
        return "the canary was found"
    if done.exit_code and not end:
        text += done.stderr.decode(errors="replace")[-300:]
    return " ".join(part for part in (text, end) if part)


async def _flood(world: World, attack: Attack) -> str:
    session = await opened(world, attack.limits)
    try:
        done = await session.exec(["sh", "-c", "yes & yes >&2"])
    finally:
        await session.close()
    kept = max(len(done.stdout), len(done.stderr))
    return f"{done.ended_by}, {'bounded' if kept <= attack.limits.output else f'{kept} bytes kept'}"


async def _links(world: World, attack: Attack) -> str:
    """Make links inside, follow them inside and outside."""
    session = await opened(world, attack.limits)
    try:
        script = f"rm -f link; ln -s {world.secret} link && cat link /proc/self/root{world.secret}"
        inside = await session.exec(["sh", "-c", script])
        try:
            outside = (await session.read("link")).decode()
        except SandboxPathRefused:
            outside = "refused"
    finally:
        await session.close()
    return f"{inside.stdout.decode() or 'nothing'} inside, {outside} outside"


async def _environment(world: World, attack: Attack) -> str:
    """Look at bubblewrap itself: what a policy names must not be in the environment of a process outside."""
    policy = SandboxPolicy(environment={"LD_PRELOAD": "/workspace/evil.so"}, workspace=str(world.workspace))
    session = await world.sandbox.open(policy)
    try:
        process = await session.start(["sleep", world.mark])
        found, until = set[bytes](), time.monotonic() + SOON
        while not found and time.monotonic() < until:
            outside = [pid for pid in marked(world.mark, own=True) if _is_outside(pid)]
            found = {Path(f"/proc/{pid}/environ").read_bytes() for pid in outside}
            await asyncio.sleep(0.01)
        await process.kill()
    finally:
        await session.close()
    if found == {b""}:
        return "empty"
    return "without it" if found and b"evil" not in b"".join(found) else f"with it: {found}"


def _is_outside(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


OWNER = """
import asyncio, sys
from foliot.sandbox.base import SandboxPolicy
from foliot.sandbox.container import ContainerSandbox
from foliot.sandbox.process import ProcessSandbox
async def main():
    cli, runtime, image = sys.argv[2:]
    sandbox = ContainerSandbox(cli=cli, runtime=runtime, image=image) if image else ProcessSandbox()
    session = await sandbox.open(SandboxPolicy())
    script = "(setsid sh -c 'sleep %s & sleep %s' &); echo up; sleep %s" % ((sys.argv[1],) * 3)
    await session.exec(["sh", "-c", script], on_output=lambda *_: print("up", flush=True))
asyncio.run(main())
"""


async def _killed(world: World, attack: Attack) -> str:
    """Kill the owner of a sandbox while programs run in it."""
    made = ("", "", "")
    if isinstance(world.sandbox, ContainerSandbox):
        cli = world.sandbox.cli
        made = (cli.path, cli.runtime, system_image(cli.path))
    owner = await asyncio.create_subprocess_exec(
        "/proc/self/exe",
        "-c",
        OWNER,
        world.mark,
        *made,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _path()},
    )
    assert owner.stdout is not None
    await asyncio.wait_for(owner.stdout.readline(), SOON)
    before = await _left(world)
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    until = time.monotonic() + SOON
    while (left := await _left(world)) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    await world.sandbox.sweep()
    return "all gone" if len(before) > 1 and not left else f"{len(before)} before, {len(left)} left"


async def _left(world: World) -> list[str]:
    """Processes with the mark, and containers of owners other than this one: those of gVisor are not seen otherwise."""
    found = [str(pid) for pid in marked(world.mark, own=True)]
    if isinstance(world.sandbox, ContainerSandbox):
        own = world.sandbox.owner
        found += [each.name for each in await world.sandbox.cli.containers() if each.owner != own]
    return found


def _path() -> str:
    return os.pathsep.join(path for path in sys.path if path)


SMALL = Limits(memory=128 * MIB, processes=64, file_size=8 * MIB, tmp_size=8 * MIB, output=64 * 1024, seconds=SOON)
P, G = "podman", "podman, gVisor"
OWN_KERNEL = "only in gVisor's own kernel"
# fmt: off
ATTACKS = [
    Attack("fork bomb", "fork without end", "stopped below 65", "stopped at the limit of processes", """
n = 0
while True:
    try:
        pid = os.fork()
    except OSError:
        break
    if not pid:
        time.sleep(3600)
    n += 1
print("stopped below 65" if n < 65 else n)
""", limits=SMALL, otherwise={G: ("signal 9", "ended: out of memory, by signal 9")}),
    Attack("memory hog", "take 4 GiB", "memory", "ended: out of memory", """
held = []
try:
    for _ in range(64):
        held.append(bytearray(os.urandom(1024)) * 65536)
except MemoryError:
    held = None
    print("no memory")
else:
    print("got it all")
""", limits=SMALL, otherwise={
    "process, ordinary user": ("no memory", "refused to each process (no control group)"),
    P: ("signal 9", "ended: out of memory, by signal 9"),
    G: ("signal 9", "ended: out of memory, by signal 9"),
}),
    Attack("disk filler", "fill /tmp and /dev/shm", "ENOSPC ENOSPC", "stopped at the size of /tmp", """
def fill(path):
    with open(path, "wb", buffering=0) as file:
        for _ in range(7):
            file.write(b"x" * 2**20)
    with open(path + "2", "wb", buffering=0) as file:
        for _ in range(7):
            file.write(b"x" * 2**20)
print(tried(fill, "/tmp/a"), tried(fill, "/dev/shm/a"))
""", limits=SMALL),
    Attack("large file", "write 1 GiB into one file of the workspace", "EFBIG", "stopped at the size of a file", """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill():
    with open("large", "wb", buffering=0) as file:
        for _ in range(1024):
            file.write(b"x" * 2**20)
print(tried(fill))
os.unlink("large")
""", limits=SMALL),
    Attack("log flood", "print without end on both streams", "timeout, bounded", "the end is kept, the rest dropped",
           limits=Limits(output=64 * 1024, seconds=0.7), around=_flood),
    Attack("other limits", "raise its own limits", "ValueError ValueError", "refused", """
import resource
def more(kind):
    try:
        resource.setrlimit(kind, (2**40, 2**40))
        return "raised"
    except (ValueError, PermissionError) as error:
        return "ValueError"
print(more(resource.RLIMIT_FSIZE), more(resource.RLIMIT_NOFILE))
"""),
    Attack("setsid daemon", "leave a process in a session of its own", "left", "ended with the call", """
import subprocess
subprocess.Popen(["sleep", MARK], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
print("left")
"""),
    Attack("double fork", "leave a process without a parent, that ignores all signals", "left",
           "ended with the call", """
if not os.fork():
    os.setsid()
    if not os.fork():
        for number in range(1, 32):
            if number not in (9, 19):
                signal.signal(number, signal.SIG_IGN)
        os.execvp("sleep", ["sleep", MARK])
    os._exit(0)
os.wait()
print("left")
"""),
    Attack("symbolic link", "link out of the workspace, read it inside and outside", "nothing inside, refused outside",
           "leads nowhere", around=_links),
    Attack("hard link", "link a file of the system, and one of the host, into the workspace", "EXDEV ENOENT", "refused",
           'print(tried(os.link, "/usr/bin/env", "/workspace/env"), tried(os.link, SECRET, "/workspace/secret"))'),
    Attack("system files", "write to /, /usr, /etc, /dev", "EROFS EROFS EROFS EROFS", "read-only", """
def make(path):
    return tried(os.open, path, os.O_CREAT | os.O_WRONLY)
print(make("/new"), make("/usr/bin/new"), make("/etc/new"), make("/dev/new"))
""", otherwise={P: ("EROFS EROFS EROFS EACCES", "read-only; /dev refused"),
                G: ("EACCES EACCES EACCES EACCES", "refused")}),
    Attack("host files", "read /etc/shadow, /root, /home, /var, /sys, /run",
           "ENOENT ENOENT ENOENT ENOENT ENOENT ENOENT", "not there", """
places = ("/etc/shadow", "/root", "/home", "/var", "/sys", "/run")
print(*("there" if os.path.exists(path) else "ENOENT" for path in places))
""", otherwise=dict.fromkeys((P, G), ("ENOENT ENOENT ENOENT ENOENT there there",
                                      "not there; /sys read-only, /run that of the image"))),
    Attack("/proc of the machine", "open core_pattern, sysctls and sysrq for writing", "no no no", "read-only", """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"):
    said = writing(path)
    print("no" if said in ("EROFS", "ENOENT", "EACCES") else said, end=" ")
"""),
    Attack("/proc of others", "see the owner and its environment, go through the root of process 1",
           "1 known, ENOENT no",
           "only its own processes are there", """
seen = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 9]
root = tried(os.stat, "/proc/1/root" + SECRET)  # Landlock does not even let it look
print(len(seen) + 1, "known,", tried(os.stat, f"/proc/{OWNER}/environ"), "no" if root in ("ENOENT", "EACCES") else root)
"""),
    Attack("/proc of its own", "change its own maps of users, and how it is chosen when memory ends", "EROFS EROFS",
           "read-only",
           'print(writing("/proc/self/uid_map"), writing("/proc/self/oom_score_adj"))',
           otherwise=dict.fromkeys((P, G), ("did it: 3 did it: 4", "can be opened; gives it no rights"))),
    Attack("device nodes", "make one, open memory, disks, kvm and the kernel's log",
           "EPERM ENOENT ENOENT ENOENT ENOENT ENOENT", "refused", """
paths = ("/dev/mem", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/kmsg")
print(tried(os.mknod, "/tmp/null", 0o20666, os.makedev(1, 3)), *(tried(os.stat, path) for path in paths))
""", otherwise={G: ("did it: None ENOENT ENOENT ENOENT ENOENT ENOENT", OWN_KERNEL)}),
    Attack("signals", "signal the owner, and everything", "ESRCH alive", "reaches only its own", """
found = tried(os.kill, OWNER, 0) if OWNER > 9 else "ESRCH"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tried(os.kill, -1, signal.SIGTERM)
print(found, "alive")
"""),
    Attack("tracing", "trace process 1, read its memory, take its descriptors", "EPERM EPERM EPERM", "refused", """
numbers = {"x86_64": (101, 310), "aarch64": (117, 270)}[os.uname().machine]
print(call(numbers[0], 16, 1, 0, 0), call(numbers[1], 1, 0, 0, 0, 0, 0), call(438, 1, 0, 0))
""", otherwise={G: ("EPERM ENOSYS ENOSYS", "refused")}),
    Attack("abstract sockets", "connect to one of the host", "ECONNREFUSED", "not there", """
print(tried(socket.socket(socket.AF_UNIX).connect, "\\0" + CANARY))
"""),
    Attack("loopback of the host", "connect to a server on 127.0.0.1", "ECONNREFUSED", "not there",
           'print(tried(socket.socket().connect, ("127.0.0.1", PORT)))'),
    Attack("internet", "connect to 1.1.1.1, send a packet", "ENETUNREACH ENETUNREACH", "no network", """
packet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(tried(socket.socket().connect, ("1.1.1.1", 443)), tried(packet.sendto, b"x", ("1.1.1.1", 443)))
""", otherwise={G: ("EHOSTUNREACH EHOSTUNREACH", "no network")}),
    Attack("DNS", "look a name up, ask a server of names", "no name ENETUNREACH", "no network", """
try:
    found = socket.getaddrinfo("example.com", 80)
except socket.gaierror:
    found = "no name"
packet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(found, tried(packet.sendto, b"x", ("8.8.8.8", 53)))
""", otherwise={G: ("no name EHOSTUNREACH", "no network")}),
    Attack("metadata address", "ask 169.254.169.254 for credentials", "ENETUNREACH", "no network",
           'print(tried(socket.socket().connect, ("169.254.169.254", 80)))',
           otherwise={G: ("EHOSTUNREACH", "no network")}),
    Attack("other families of sockets", "vsock to the host of a virtual machine, raw packets, crypto, audit log",
           "EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT EPROTONOSUPPORT", "refused", """
print(*(tried(socket.socket, *given) for given in ((40, 1), (17, 3), (38, 5), (16, 3, 9))))
""", otherwise={P: ("ENOSYS ENOSYS ENOSYS ENOSYS", "refused"),
                G: ("EAFNOSUPPORT EPERM EAFNOSUPPORT EPROTONOSUPPORT", "refused")}),
    Attack("credentials", "search environment, /proc, descriptors and all files for a secret of the owner", "nothing",
           "nothing found", """
found = [key for key, value in os.environ.items() if CANARY in value]
for folder, folders, files in os.walk("/"):
    folders[:] = [each for each in folders if os.path.join(folder, each) not in ("/usr", "/proc/sys", "/proc/irq")]
    for each in files:
        path = os.path.join(folder, each)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                data = file.read(2**20) or b"" if not path.startswith("/dev/") else b""
        except OSError:
            continue
        # The attacker's own program names it.
        if CANARY.encode() in data and not path.endswith(("/cmdline", "/mem")):
            found.append(path)
print(found or "nothing")
"""),
    Attack("descriptors", "use what its parents left open", "0 1 2", "only its three streams", """
kept = []
for number in range(256):
    try:
        os.fstat(number)
        kept.append(number)
    except OSError:
        pass
print(*kept)
"""),
    Attack("new namespaces", "unshare, setns, clone3", "EPERM EPERM EPERM ENOSYS", "refused", """
numbers = {"x86_64": (272, 308, 56), "aarch64": (97, 268, 220)}[os.uname().machine]
print(call(numbers[0], 0x10000000), call(numbers[1], 0, 0), call(numbers[2], 0x10000011, 0, 0, 0, 0), call(435, 0, 0))
""", otherwise={G: ("did it: 0 ENOTSUP EPERM ENOSYS", OWN_KERNEL)}),
    Attack("mounting", "mount, unmount, chroot, the new calls for that", "EPERM EPERM EPERM EPERM EPERM", "refused", """
numbers = {"x86_64": (165, 166, 161), "aarch64": (40, 39, 51)}[os.uname().machine]
print(call(numbers[0], b"x", b"/tmp", b"tmpfs", 0, 0), call(numbers[1], b"/tmp", 0), call(numbers[2], b"/tmp"),
      call(430, b"tmpfs", 0), call(428, -100, b"/", 0))
""", otherwise={G: ("EPERM EPERM EPERM ENOSYS ENOSYS", "refused")}),
    Attack("kernel", "bpf, perf, userfaultfd, keys, modules, kexec, io_uring",
           "EPERM EPERM EPERM EPERM EPERM EPERM ENOSYS", "refused", """
numbers = {"x86_64": (321, 298, 323, 250, 313, 246), "aarch64": (280, 241, 282, 219, 273, 104)}[os.uname().machine]
print(*(call(number, 0, 0, 0, 0, 0) for number in numbers), call(425, 1, 0))
""", otherwise={G: ("EPERM ENODEV ENOSYS EACCES EPERM EPERM EFAULT", "refused, or there only in gVisor's own kernel")}),
    Attack("other ways to call", "system calls of x32 and of 32 bits", "ENOSYS signal 31",
           "do not exist; the program is killed", """
import mmap, platform
print(call(0x40000000 + 39), flush=True)
if platform.machine() == "x86_64":
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # getpid, the old way
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    print("did it:", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
else:
    os.kill(os.getpid(), 31)
""", otherwise={P: ("signal 31", "the program is killed"), G: ("ENOSYS\ndid it: -9", OWN_KERNEL)}),
    Attack("rights of an administrator", "become root, leave a program that runs as its owner", "EINVAL EPERM EPERM",
           "refused", """
def leave():
    os.close(os.open("/workspace/suid", os.O_CREAT | os.O_WRONLY, 0o755))
    os.chmod("/workspace/suid", 0o4755)
print(tried(os.setuid, 0), tried(leave), tried(os.open, "/workspace/suid2", os.O_CREAT | os.O_WRONLY, 0o4755))
""", otherwise={P: ("EPERM EPERM ENOSYS", "refused"),
                G: ("EPERM did it: None did it: 3", "not root; such a program can be left in the workspace")}),
    Attack("terminal", "type into the terminal of its owner", "EPERM", "refused", """
import fcntl
print(tried(fcntl.ioctl, 0, 0x5412, b"x"))
""", otherwise={P: ("ENOSYS", "refused"), G: ("ENOTTY", "it has none")}),
    Attack("loader", "have a library loaded into bubblewrap, by LD_PRELOAD of a policy", "empty",
           "bubblewrap has no environment", around=_environment,
           otherwise=dict.fromkeys((P, G), ("without it", "podman sees nothing of the policy's environment"))),
    Attack("kill -9 of the owner", "survive it, in sessions of its own", "all gone", "nothing survives",
           around=_killed),
]
# fmt: on


async def attacked(world: World) -> dict[str, str]:
    """Every attack with what became of it; what got out, or what nobody expected, begins with `NOT HELD`."""
    backend = name_of(world.sandbox)
    return {attack.name: judged(attack, await carried_out(world, attack), backend) for attack in ATTACKS}


def judged(attack: Attack, said: str, backend: str) -> str:
    held, outcome = attack.otherwise.get(backend, (attack.held, attack.outcome))
    return outcome if said == held else f"NOT HELD: {said}"


def name_of(sandbox: Sandbox) -> str:
    if isinstance(sandbox, ContainerSandbox):
        return sandbox.cli.kind if sandbox.name == "container" else f"{sandbox.cli.kind}, gVisor"
    return f"{sandbox.name}, {'as root' if os.geteuid() == 0 else 'ordinary user'}"


def outcomes(*how: str) -> tuple[str, dict[str, str]]:
    """Run all attacks in a process of their own: as another user, or on an engine of containers, when `how` says so."""
    words = [sys.executable, "-m", "tests.sandbox.escapes.attacks", *how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, cwd=PAGE.parents[1])
    if done.returncode:
        raise AssertionError(f"the attacks could not be run: {done.stderr[-2000:]}")
    said = json.loads(done.stdout)
    return said["backend"], said["outcomes"]


def table(found: dict[str, dict[str, str]]) -> str:
    """The table of the page: attacks, and what became of them in each backend."""
    rows = ["| attack | tried | " + " | ".join(found) + " |", "|---|---|" + "---|" * len(found)]
    for attack in ATTACKS:
        told = " | ".join(each.get(attack.name, "not tried") for each in found.values())
        rows.append(f"| {attack.name} | {attack.tried} | {told} |")
    return "\n".join(rows) + "\n"


def _loads_for_others() -> bool:
    """Whether an ordinary user can start this Python: its library may be where only root reads."""
    words = ["/proc/self/exe", "-c", "import asyncio"]
    return not subprocess.run(words, user=ORDINARY, capture_output=True, env={"PYTHONPATH": _path()}).returncode


def everywhere() -> dict[str, dict[str, str]]:
    """Outcomes by backend: as this user, and as root also as an ordinary one."""
    ways = [(), ("--user", str(ORDINARY))] if os.geteuid() == 0 and _loads_for_others() else [()]
    with ThreadPoolExecutor() as threads:
        return dict(threads.map(lambda how: outcomes(*how), ways))


def in_containers() -> dict[str, dict[str, str]]:
    """Outcomes on the engines of containers that are here."""
    ways = [("--engine", cli, backend) for cli, backend, _ in REAL if usable(cli, backend)[0] != "-"]
    return dict(outcomes(*how) for how in ways)


async def _main(folder: Path) -> dict[str, object]:
    sandbox: Sandbox = ProcessSandbox()
    if "--engine" in sys.argv:
        at = sys.argv.index("--engine")
        sandbox = await asyncio.to_thread(sandbox_of, *sys.argv[at + 1 : at + 3])
    world = World(sandbox, folder)
    try:
        return {"backend": name_of(sandbox), "outcomes": await attacked(world)}
    finally:
        world.close()
        await sandbox.close()


def main() -> None:
    if "--write" in sys.argv:
        text = PAGE.read_text()
        # Engines that are not here keep what was found where they were.
        found = {**shown(text), **everywhere(), **in_containers()}
        PAGE.write_text(text[: text.index(HEADING) + len(HEADING)] + f"\n{INTRODUCTION}\n{table(found)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        if "--user" in sys.argv:
            number = int(sys.argv[sys.argv.index("--user") + 1])
            os.chown(folder, number, number)
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
        sys.stdout.write(json.dumps(asyncio.run(_main(Path(folder)))))
        # What an ordinary user has made, an ordinary user may remove.


INTRODUCTION = (
    "Each line is an attack that the tests carry out, on a machine with control groups: what it tries, and what became "
    "of it. The table is written by the run\n(`python -m tests.sandbox.escapes.attacks --write`), and a test holds it "
    "against another run.\n"
)


def shown(page: str) -> dict[str, dict[str, str]]:
    """The table of the page, read: outcomes by backend and attack."""
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n"))
        for line in page.partition(HEADING)[2].splitlines()
        if line.startswith("|")
    ]
    head, _, *body = rows
    return {backend: {row[0]: row[at] for row in body} for at, backend in enumerate(head) if at > 1}


if __name__ == "__main__":
    main()
