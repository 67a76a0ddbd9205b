"""Control groups: bounds on memory, processes and processor time of a whole session, where this process may set them.

Version 2, version 1 and both at once are found by looking: a group is made below that of this process (or, in version
2, beside it, where a service manager delegates that), and a limit counts as enforced when it could be written. Groups
are named after their owner, so that those of dead owners are found and removed.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

PREFIX: Final = "foliot-fence."
CONTROLLERS: Final = ("memory", "pids", "cpu")
_PERIOD: Final = 100_000
# How long a group may take to become empty once its processes are killed, and how often that is looked at.
_EMPTY_WITHIN: Final = 2.0
_LOOK_EVERY: Final = 0.005


class _Place(NamedTuple):
    """The folder that groups with one controller are made in, and the version of its interface."""

    folder: Path
    version: int


class Group:
    """The control groups of one session: one folder in version 2, one for each controller in version 1."""

    def __init__(self, folders: Mapping[str, Path], places: Mapping[str, _Place]) -> None:
        self._folders = folders
        self._places = places

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self._folders)

    def add(self, pid: int) -> None:
        """Move a process, and what it starts from now on, into the group. Raises `OSError`."""
        for folder in set(self._folders.values()):
            _write(folder / "cgroup.procs", str(pid))

    def out_of_memory(self) -> int:
        """How often a process was killed because the memory of the group was full."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        name = "memory.events" if self._places["memory"].version == 2 else "memory.oom_control"
        with suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill":
                    return int(count)
        return 0

    def pids(self) -> set[int]:
        return {pid for folder in set(self._folders.values()) for pid in _pids(folder)}

    def is_removed(self) -> bool:
        """Remove it if nothing is in it any more; False when something still is."""
        for folder in set(self._folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def remove(self) -> None:
        """Kill what is in it, and remove it. Blocks while anything takes its time to end."""
        _remove(set(self._folders.values()))


class Cgroups:
    """The control groups that this process can use. `missing` says for each other controller why not."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._places: dict[str, _Place] = {}
        self.missing: dict[str, str] = {}
        if os.name != "posix" or not (proc / "self" / "cgroup").exists():
            self.missing = dict.fromkeys(CONTROLLERS, "this system has no control groups")
            return
        candidates = _candidates(proc)
        for controller in CONTROLLERS:
            problems: list[str] = []
            for place in candidates.get(controller, []):
                problem = _problem(place, controller)
                if not problem:
                    self._places[controller] = place
                    break
                problems.append(problem)
            else:
                self.missing[controller] = (
                    "; ".join(dict.fromkeys(problems)) or f"no control group has the controller {controller}"
                )

    def version(self, controller: str) -> int | None:
        place = self._places.get(controller)
        return place.version if place is not None else None

    def make(self, *, memory: int | None, processes: int | None, cpus: float | None) -> Group | None:
        """Make the groups of one session, with those of its limits that can be enforced. None when there is nothing to.

        Raises `OSError`.
        """
        wanted = {"memory": memory, "pids": processes, "cpu": cpus}
        places = {
            name: self._places[name] for name, value in wanted.items() if value is not None and name in self._places
        }
        if not places:
            return None
        own = f"{PREFIX}{_owner()}.{secrets.token_hex(6)}"
        folders = {name: place.folder / own for name, place in places.items()}
        try:
            for folder in set(folders.values()):
                folder.mkdir()
            for name, place in places.items():
                value = wanted[name]
                assert value is not None
                _limit(folders[name], name, value, place.version)
        except BaseException:
            _remove(set(folders.values()))
            raise
        return Group(folders, places)

    def sweep(self) -> int:
        """Kill and remove the groups whose owner is dead. How many sessions that were."""
        left: dict[str, set[Path]] = {}
        for place in set(self._places.values()):
            with suppress(OSError):
                for folder in place.folder.glob(f"{PREFIX}*"):
                    if _is_orphan(folder.name):
                        left.setdefault(folder.name, set()).add(folder)
        for folders in left.values():
            _remove(folders)
        return len(left)


def _candidates(proc: Path) -> dict[str, list[_Place]]:
    """The places where groups with each controller may be made, best first."""
    found: dict[str, list[_Place]] = {}
    mounts = dict(_mounts(proc))
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names:
            for name in names.split(","):
                if name in CONTROLLERS and name in mounts:
                    found.setdefault(name, []).append(_Place(_below(mounts[name], path), 1))
        elif "" in mounts:
            here = _below(mounts[""], path)
            beside = [here] if here == mounts[""][0] else [here, here.parent]
            for name in CONTROLLERS:
                found.setdefault(name, []).extend(_Place(each, 2) for each in beside)
    return found


def _below(mount: tuple[Path, str], path: str) -> Path:
    """The folder of a group: containers often see only a part of the tree, mounted as if it were all of it."""
    point, root = mount
    return point / path.removeprefix(root.rstrip("/")).lstrip("/")


def _mounts(proc: Path) -> Iterator[tuple[str, tuple[Path, str]]]:
    """Each controller of version 1 with its mount point and the group seen there; version 2 under the empty name."""
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            yield "", (Path(point), root)
        elif kind == "cgroup":
            yield from ((name, (Path(point), root)) for name in options.split(","))


def _problem(place: _Place, controller: str) -> str:
    """Why no group with this controller can be made there; empty when one was."""
    probe = place.folder / f"{PREFIX}{_owner()}.{secrets.token_hex(6)}"
    try:
        if place.version == 2:
            if controller not in (place.folder / "cgroup.controllers").read_text().split():
                return f"the control group of this process has no controller {controller}"
            if controller not in (place.folder / "cgroup.subtree_control").read_text().split():
                _write(place.folder / "cgroup.subtree_control", f"+{controller}")
        probe.mkdir()
        try:
            _limit(probe, controller, {"memory": 1 << 30, "pids": 64, "cpu": 1.0}[controller], place.version)
        finally:
            probe.rmdir()
    except OSError as error:
        return f"the control group of this process cannot be divided ({error.strerror})"
    return ""


def _limit(folder: Path, controller: str, value: float, version: int) -> None:
    if controller == "pids":
        _write(folder / "pids.max", str(int(value)))
    elif controller == "cpu":
        quota = max(1000, int(value * _PERIOD))
        if version == 2:
            _write(folder / "cpu.max", f"{quota} {_PERIOD}")
        else:
            _write(folder / "cpu.cfs_period_us", str(_PERIOD))
            _write(folder / "cpu.cfs_quota_us", str(quota))
    elif version == 2:
        _write(folder / "memory.max", str(int(value)))
        with suppress(OSError):  # without swap there is nothing to bound
            _write(folder / "memory.swap.max", "0")
        with suppress(OSError):  # a tree that lost one of its processes is of no use
            _write(folder / "memory.oom.group", "1")
    else:
        _write(folder / "memory.limit_in_bytes", str(int(value)))
        with suppress(OSError):
            _write(folder / "memory.memsw.limit_in_bytes", str(int(value)))


def _write(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _pids(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _remove(folders: Iterable[Path]) -> None:
    until = time.monotonic() + _EMPTY_WITHIN
    for folder in folders:
        while True:
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > until:
                    break
            for pid in _pids(folder):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_EVERY)


# --- owners ----------------------------------------------------------------------------------------------------------


def _owner() -> str:
    """This process: its PID namespace, number and start, which tell it from a later one with the same number."""
    return f"{_namespace()}.{os.getpid()}.{_started(os.getpid())}"


def _is_orphan(name: str) -> bool:
    """Whether the owner of a group is certainly dead: it was of this PID namespace, and is not there any more."""
    parts = name.removeprefix(PREFIX).split(".")
    if len(parts) != 4 or parts[0] != _namespace() or not parts[1].isdigit():
        return False
    return _started(int(parts[1])) != parts[2]


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return "0"


def _started(pid: int) -> str:
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[19]
    return ""
