"""Starts one server in the background, and stops it when its owner is gone.

Run as a script by base.py with one JSON argument, so it uses the standard library only and starts in milliseconds. It
detaches itself: the server is nobody's child, so whoever starts it may end, and whoever finds it may stop it.

Two locks tell who lives, because the kernel lets go of them however a process dies:
    alive   held by the server and by this keeper, from before the start until both are gone.
    owner   held by the process on whose behalf the server runs. Free means: stop the server, remove its folder. With
            no owner the server runs until somebody stops it, and no keeper stays behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

ALREADY_RUNNING = 3
PATIENCE_SECONDS = 10.0


class KeeperOrder(TypedDict):
    """The order to a keeper: the command to run, and the process to run it for."""

    command: list[str]
    environment: dict[str, str]
    alive: str
    pid_file: str
    log: str
    owner: str | None
    folder: str
    user: tuple[int, int] | None
    stop_signals: list[int]


def main(order: KeeperOrder) -> int:
    alive = os.open(order["alive"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _take(alive):
        return ALREADY_RUNNING
    Path(order["pid_file"]).unlink(missing_ok=True)
    if os.fork():
        return 0  # the child holds the same lock: there is no moment at which it is free
    os.setsid()  # a Ctrl-C in the owner's terminal is not meant for us
    _log_to(order["log"])
    server = _spawn(order, alive)
    Path(order["pid_file"]).write_text(str(server.pid))
    if order["owner"] is not None:
        _stop_with_owner(server, order, order["owner"])
    os._exit(0)  # without an owner the server runs on, and belongs to init from here


def _take(lock: int) -> bool:
    # Those who only look whether it is free hold it for a moment too, so one refusal is not yet an answer.
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


def _spawn(order: KeeperOrder, alive: int) -> subprocess.Popen[bytes]:
    uid, gid = order["user"] or (None, None)
    return subprocess.Popen(
        order["command"],
        cwd="/",
        env=order["environment"],
        pass_fds=[alive],
        start_new_session=True,
        user=uid,
        group=gid,
        extra_groups=None if uid is None else [],
    )


def _log_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)


def _stop_with_owner(server: subprocess.Popen[bytes], order: KeeperOrder, owner: str) -> None:
    orphaned = threading.Event()

    def leave_with_server() -> None:
        server.wait()
        if not orphaned.is_set():
            os._exit(0)  # somebody else stopped it: its data is theirs

    threading.Thread(target=leave_with_server, daemon=True).start()
    with suppress(FileNotFoundError):
        fcntl.flock(os.open(owner, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_SH)
    orphaned.set()
    _stop(server, order["stop_signals"])
    _remove(Path(order["folder"]), Path(owner))


def _stop(server: subprocess.Popen[bytes], stop_signals: list[int]) -> None:
    for number in (*stop_signals, signal.SIGKILL):
        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(PATIENCE_SECONDS)
            return


def _remove(folder: Path, owner: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # Whoever removes the last service also removes what held the services together.
    if owner.parent == folder.parent and all(path.suffix == ".lock" for path in owner.parent.glob("*")):
        shutil.rmtree(owner.parent, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
