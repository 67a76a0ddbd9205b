"""Makes stores with real work in them, by the commands of one Foliot, and packs them: `python story.py SOURCE FOLDER`.

SOURCE is the folder `src` of the Foliot that makes them: of an old commit (`git archive COMMIT src | tar x -C FOLDER`),
or of this one. `python tests/store/corpus/story.py` alone adds those of the present schema to this folder. Of Foliot
only the tests' PostgreSQL is imported here, since the one whose commands are used is another one than this file's.

    NNNN.tar.xz            `foliot.db`; `manifest.json`, when that Foliot can make backups; `ledger`, what the tools did
                           to the world; `log`, each command with its exit code
    NNNN.postgres.tar.xz   `dump.sql`, statements that any PostgreSQL takes; `ledger`; `log`

What an old Foliot cannot do is left out of its stores (see `_SINCE`).
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import apsw

HERE = Path(__file__).parent
# 32 bytes that nobody takes for a secret of theirs.
KEY = "00112233445566778899aabbccddeeff" * 2
SECRETS = {"bell": "not-a-secret-bell", "desk": "not-a-secret-desk"}
PASSWORD = "not a secret at all"
_PATIENCE = 60.0

# Stores do not tell on which machine they were made, nor by whom.
_AS_NOBODY = """
import getpass, platform, socket, sys
socket.gethostname = platform.node = lambda: "corpus"
getpass.getuser = lambda: "corpus"
from foliot.cli.__main__ import main
sys.argv[0] = "foliot"
main()
"""

_GRANT = """
apiVersion: foliot.dev/v1
kind: ReferenceGrant
metadata: {name: models, namespace: default}
spec: {from: [{namespace: team, kind: Agent}], to: [{kind: ModelEndpoint, name: script}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: guest, namespace: team}
spec: {model_ref: default/script, prompt: You are a guest.}
"""


class Story:
    """One store in the making. `source` is the Foliot that makes it; it is a file unless `url` names a database."""

    def __init__(self, source: Path, folder: Path, url: str | None = None) -> None:
        self.schema = len([*(source / "foliot/store/migrations").glob("[0-9]*.sql")])
        self.folder = folder
        self.store, self.ledger, self.hold = folder / "foliot.db", folder / "ledger", folder / "hold"
        self.log: list[str] = []
        (folder / "home").mkdir()
        (folder / "home" / "secret.key").write_text(f"{KEY}\n")
        (folder / "home" / "secret.key").chmod(0o600)
        self.hold.mkdir()
        self.ledger.touch()
        for file in ("desk.py", "declared.yaml", "declared_work.yaml"):
            shutil.copy(HERE / file, folder)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.environment = {
            **kept,
            "PYTHONPATH": f"{source}{os.pathsep}{folder}",
            "FOLIOT_HOME": str(folder / "home"),
            "FOLIOT_STORE": url or str(self.store),
            "DESK_LEDGER": str(self.ledger),
            "DESK_HOLD": str(self.hold),
            "USER": "corpus",
            "LOGNAME": "corpus",
            "HOME": str(folder),
            "NO_COLOR": "1",
        }

    def say(self, *words: str, typed: str = "", expect: tuple[int, ...] = (0,)) -> str:
        """One command, until it ends."""
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, *words],
            cwd=self.folder,
            env=self.environment,
            input=typed,
            text=True,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
        self.log.append(f"{done.returncode}  foliot {' '.join(words)}")
        if done.returncode not in expect:
            raise SystemExit(f"{self.log[-1]}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def killed(self, *words: str, tool: str) -> None:
        """One command, until it is inside of `tool`; then its process is killed."""
        marker = self.hold / tool
        marker.touch()
        before = self.ledger.read_text().count(f"holding {tool}")
        process = subprocess.Popen(
            [sys.executable, "-c", _AS_NOBODY, *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            end = time.monotonic() + _PATIENCE
            while self.ledger.read_text().count(f"holding {tool}") == before:
                if process.poll() is not None or time.monotonic() > end:
                    process.kill()
                    raise SystemExit(f"foliot {' '.join(words)} never came to {tool}\n{process.communicate()[1]}")
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            marker.unlink()
        self.log.append(f"killed in {tool}  foliot {' '.join(words)}")

    def has_kind(self, kind: str) -> bool:
        return kind in self.say("explain", kind, expect=(0, 1, 2, 3, 4, 5))


def runs(story: Story) -> None:
    """Resources, a secret, and runs in every state that outlives a process."""
    story.say("apply", "-f", "declared.yaml")
    for name, value in SECRETS.items():
        story.say("create", "secret", name, "--from-literal", "value=-", typed=value)
    story.say("run", "teller", "Is A-1 there?", "--id", "run-done", "--no-wait")
    story.say("run", "small-payer", "Pay A-3", "--id", "run-paid", "--no-wait")
    story.say("run", "payer", "Pay A-2", "--id", "run-approval", "--no-wait", expect=(8,))
    story.killed("run", "small-payer", "Pay A-3 again", "--id", "run-lost", "--no-wait", tool="pay")
    story.killed("run", "teller", "Is A-1 still there?", "--id", "run-parked", "--no-wait", tool="look")
    story.say("run", "failing", "Fail", "--id", "run-failed", "--no-wait", expect=(1,))
    story.say("run", "head", "Have A-1 looked up", "--id", "run-parent", "--no-wait")
    story.killed("run", "head", "Have A-1 looked up again", "--id", "run-delegating", "--no-wait", tool="look")


def work(story: Story) -> None:
    """Tasks in every state, a child run, a schedule, a webhook with a delivery, a budget."""
    story.say("apply", "-f", "declared_work.yaml")
    story.say("run", "asker", "Ask", "--id", "run-question", "--no-wait", expect=(8,))
    story.say("task", "run", "desk", "Look at A-1", "--name", "task-done", "--here", "-q", "--no-wait")
    story.say("task", "run", "failing", "Fail", "--name", "task-dead", "--here", "-q", "--no-wait", expect=(1,))
    story.say("task", "run", "payer", "Pay", "--name", "task-approval", "--here", "-q", "--no-wait", expect=(8,))
    story.say("task", "run", "desk", "Look again", "--name", "task-leased", "--detach")
    story.killed("worker", "--name", "corpus-worker", "--once", tool="look")
    story.say("schedule", "run", "hourly")
    story.say("webhook", "send-test", "bell", "-d", '{"rings": 3}', "--event-id", "ring-1")
    story.say("task", "run", "desk", "Look later", "--name", "task-queued", "--key", "once-only", "--detach")


def tokens(story: Story) -> None:
    """The token itself is shown once, and not kept: it would look like a real one."""
    story.say("tokens", "create", "reader-1", "--role", "reader")


def users(story: Story) -> None:
    story.say("users", "create", "ada", "--role", "operator", "--password-stdin", typed=f"{PASSWORD}\n")


def grants(story: Story) -> None:
    if story.has_kind("ReferenceGrant"):
        (story.folder / "grant.yaml").write_text(_GRANT)
        story.say("apply", "-f", "grant.yaml")


_SINCE = ((1, runs), (9, work), (10, tokens), (11, users), (13, grants))


def taken(story: Story) -> dict[str, bytes]:
    """As a backup by that Foliot, when it can make one; else as the file itself, without a log beside it."""
    if story.schema >= 9:
        story.say("backup", "backup.tar")
        with tarfile.open(story.folder / "backup.tar") as backup:
            return {member.name: _read(backup, member) for member in backup.getmembers()}
    connection = apsw.Connection(str(story.store))
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.close()
    return {"foliot.db": story.store.read_bytes()}


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None
    return stream.read()


def dumped(program: Path, url: str) -> bytes:
    """All of a database as statements, without those that only servers or tools of some versions know."""
    words = ["--inserts", "--rows-per-insert=500", "--no-owner", "--no-privileges", "--no-comments"]
    done = subprocess.run([program, *words, f"--dbname={url}"], text=True, capture_output=True, check=True)
    news = ("SET transaction_timeout", "\\restrict", "\\unrestrict")
    return "\n".join(line for line in done.stdout.split("\n") if not line.startswith(news)).encode()


def pack(story: Story, content: dict[str, bytes], file: Path, *, hidden: str = "") -> None:
    members = {**content, "ledger": story.ledger.read_bytes(), "log": "\n".join(story.log).encode()}
    for name, content_of in members.items():
        if any(each.encode() in content_of for each in (str(story.folder), hidden) if each):
            raise SystemExit(f"{name} tells where it was made")
    with tarfile.open(file, "w:xz", format=tarfile.USTAR_FORMAT, preset=9) as packed:
        for name, content_of in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content_of), 0o600
            packed.addfile(member, io.BytesIO(content_of))


def play(story: Story) -> None:
    for since, part in _SINCE:
        if story.schema >= since:
            part(story)


def make_file(source: Path, target: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="foliot-corpus-") as folder:
        story = Story(source, Path(folder))
        play(story)
        file = target / f"{story.schema:04}.tar.xz"
        pack(story, taken(story), file)
    return file


def make_dump(source: Path, target: Path) -> Path:
    """On a PostgreSQL of its own, with the tools of that."""
    from foliot.dev.postgres import find_postgres
    from foliot.dev.session import ServiceSession

    program = find_postgres(None, copy_to=Path("/nonexistent")).bin / "pg_dump"
    session = ServiceSession.begin()
    try:
        with session.database() as url, tempfile.TemporaryDirectory(prefix="foliot-corpus-") as folder:
            story = Story(source, Path(folder), url)
            play(story)
            file = target / f"{story.schema:04}.postgres.tar.xz"
            pack(story, {"dump.sql": dumped(program, url)}, file, hidden=url.rpartition("/")[2])
    finally:
        session.end()
    return file


if __name__ == "__main__":
    given = [Path(each).resolve() for each in sys.argv[1:]] or [HERE.parents[2] / "src", HERE]
    for made in (make_file(*given), make_dump(*given)):
        sys.stdout.write(f"{made.name}: {made.stat().st_size} bytes\n")
