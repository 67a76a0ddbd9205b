"""What every sandbox must do. Subclass and give a `sandbox` fixture; programs are those of any small Linux system."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from foliot.sandbox.base import (
    FEATURES,
    Limits,
    Mount,
    Sandbox,
    SandboxGone,
    SandboxPathRefused,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxSession,
    SandboxStartFailed,
)
from foliot.tools.processes import forget, note_for

# Long enough for a busy machine; nothing waits for it when all is well.
SOON = 60.0


def marked(mark: str, *, own: bool = False) -> list[int]:
    """The processes of this machine that have `mark` in their command line, wherever they went.

    Without bubblewrap itself, unless `own`: it has the line of its program, and may take a moment to put things away.
    """
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                mine = Path(f"/proc/{name}/comm").read_text() == "bwrap\n"
            except OSError:
                continue
            if mark.encode() in words and (own or not mine):
                found.append(int(name))
    return found


async def until_marked(mark: str, *, most: int = 1) -> None:
    """Returns when so many processes with `mark` are there: a new one has its command line a moment after its start."""
    async with asyncio.timeout(120):
        while len(marked(mark)) < most:
            await asyncio.sleep(0.02)


class SandboxConformance:
    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        folder = tmp_path / "workspace"
        folder.mkdir()
        return folder

    @pytest.fixture
    async def session(self, sandbox: Sandbox, workspace: Path):
        session = await sandbox.open(
            SandboxPolicy(workspace=str(workspace), limits=Limits(output=10_000, seconds=SOON))
        )
        yield session
        await session.close()

    async def test_it_says_of_each_feature_whether_it_is_enforced(self, sandbox: Sandbox) -> None:
        found = await sandbox.enforces()
        assert found.available, found.why
        assert found.features.keys() == FEATURES.keys()
        for name, each in found.features.items():
            assert each.how if each.enforced else each.why, name

    async def test_what_must_be_enforced_is_enforced_or_refused(self, sandbox: Sandbox) -> None:
        found = await sandbox.enforces()
        for name in FEATURES:
            policy = SandboxPolicy(require=frozenset({name}))
            if found.enforces(name):
                await sandbox.check(policy)
            else:
                with pytest.raises(SandboxPolicyRefused) as caught:
                    await sandbox.open(policy)
                assert caught.value.field == "require"

    async def test_what_is_not_there_is_refused_by_its_field(self, sandbox: Sandbox, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        for policy, field in (
            (SandboxPolicy(workspace=missing), "workspace"),
            (SandboxPolicy(mounts=(Mount(missing, "/data"),)), "mounts[0].source"),
            (SandboxPolicy(network="broker", broker_socket=missing), "broker_socket"),
        ):
            with pytest.raises(SandboxPolicyRefused) as caught:
                await sandbox.open(policy)
            assert caught.value.field == field

    async def test_a_program_gets_its_input_and_gives_its_output_and_its_code(self, session: SandboxSession) -> None:
        done = await session.exec(["sh", "-c", "cat; echo wrong >&2; exit 3"], stdin=b"in\0put")
        assert (done.exit_code, done.stdout, done.stderr, done.ended_by) == (3, b"in\0put", b"wrong\n", "")
        assert not done.truncated
        assert done.seconds > 0

    async def test_no_shell_reads_the_arguments(self, session: SandboxSession) -> None:
        done = await session.exec(["printf", "%s|", "$HOME", "; ls", "*", "", "ä\n"])
        assert done.stdout.decode() == "$HOME|; ls|*||ä\n|"

    async def test_a_signal_is_told(self, session: SandboxSession) -> None:
        done = await session.exec(["sh", "-c", "kill -SEGV $$"])
        assert (done.exit_code, done.signal, done.ended_by) == (139, 11, "")

    async def test_a_program_that_cannot_be_started_is_an_error(self, session: SandboxSession) -> None:
        with pytest.raises(SandboxStartFailed, match="no-such-program"):
            await session.exec(["no-such-program"])
        for bad in ([], [""], ["a\0b"], ["echo", "x" * 200_000]):
            with pytest.raises(SandboxStartFailed):
                await session.exec(bad)
        with pytest.raises(SandboxStartFailed, match="folder"):
            await session.exec(["true"], cwd="/no/such/folder")
        assert session.alive

    async def test_the_environment_is_that_of_the_policy_and_of_the_call(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CANARY_OF_THE_WORKER", "secret")
        session = await sandbox.open(SandboxPolicy(environment={"A": "1", "B": "2"}))
        try:
            done = await session.exec(["env"], environment={"B": "3", "LD_PRELOAD": "/nowhere.so"})
        finally:
            await session.close()
        seen = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
        assert (seen["A"], seen["B"]) == ("1", "3")
        assert "CANARY_OF_THE_WORKER" not in seen

    async def test_the_workspace_is_shared_by_all_programs_and_with_the_host(
        self, session: SandboxSession, workspace: Path
    ) -> None:
        await session.write("deep/er/a.txt", b"from outside")
        done = await session.exec(["sh", "-c", "pwd; cat deep/er/a.txt; echo inside > b.txt"])
        assert done.stdout == b"/workspace\nfrom outside"
        assert await session.read("/workspace/b.txt") == b"inside\n" == (workspace / "b.txt").read_bytes()
        assert (await session.exec(["pwd"], cwd="/workspace/deep")).stdout == b"/workspace/deep\n"

    async def test_a_read_only_workspace_is_read_only(self, sandbox: Sandbox, workspace: Path) -> None:
        (workspace / "a.txt").write_text("a")
        session = await sandbox.open(SandboxPolicy(workspace=str(workspace), workspace_access="read_only"))
        try:
            done = await session.exec(["sh", "-c", "cat a.txt; echo b > a.txt; echo c > c.txt; rm a.txt"])
            assert await session.read("a.txt") == b"a"
            with pytest.raises(SandboxPathRefused, match="read-only"):
                await session.write("a.txt", b"b")
        finally:
            await session.close()
        assert done.exit_code != 0
        assert [each.name for each in workspace.iterdir()] == ["a.txt"]

    async def test_without_a_workspace_nothing_of_it_is_seen(self, sandbox: Sandbox, workspace: Path) -> None:
        (workspace / "a.txt").write_text("a")
        session = await sandbox.open(SandboxPolicy(workspace=str(workspace), workspace_access="none"))
        try:
            done = await session.exec(["cat", "/workspace/a.txt"])
            with pytest.raises(SandboxPathRefused):
                await session.read("/workspace/a.txt")
        finally:
            await session.close()
        assert done.exit_code != 0

    async def test_each_program_has_an_empty_folder_of_its_own_for_passing_files(self, session: SandboxSession) -> None:
        for _ in range(2):
            done = await session.exec(["sh", "-c", "ls -A /tmp; cd /tmp && echo mine > a && cat a"])
            assert (done.exit_code, done.stdout) == (0, b"mine\n"), done.stderr

    async def test_mounts_are_where_they_should_be(self, sandbox: Sandbox, tmp_path: Path) -> None:
        for name in ("data", "out"):
            (tmp_path / name).mkdir()
        (tmp_path / "data" / "a").write_text("data")
        mounts = (Mount(str(tmp_path / "data"), "/data"), Mount(str(tmp_path / "out"), "/srv/out", writable=True))
        session = await sandbox.open(SandboxPolicy(mounts=mounts))
        try:
            done = await session.exec(["sh", "-c", "cat /data/a; cat /data/a > /srv/out/b; echo x > /data/a"])
            assert await session.read("/data/a") == b"data"
            with pytest.raises(SandboxPathRefused):
                await session.write("/data/a", b"x")
        finally:
            await session.close()
        assert done.stdout == b"data"
        assert (tmp_path / "out" / "b").read_text() == "data" == (tmp_path / "data" / "a").read_text()

    async def test_files_cannot_be_read_or_written_through_links_that_lead_out(
        self, session: SandboxSession, workspace: Path, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("secret")
        made = f"ln -s {outside} out; ln -s {outside}/secret file; ln -s ../outside up"
        await session.exec(["sh", "-c", f"{made}; mkfifo pipe; ln -s /proc/self/root r"])
        for path in (
            "out/secret",
            "file",
            "up/secret",
            "../outside/secret",
            "r/etc/passwd",
            "/etc/passwd",
            "pipe",
            ".",
        ):
            with pytest.raises(SandboxPathRefused) as caught:
                await session.read(path)
            assert str(tmp_path) not in caught.value.message
        for path in ("out/new", "up/new", "../new", "out/deep/new", "file", "/etc/new", ""):
            with pytest.raises(SandboxPathRefused):
                await session.write(path, b"x")
        assert [each.name for each in outside.iterdir()] == ["secret"]
        assert (outside / "secret").read_text() == "secret"

    async def test_a_file_that_is_too_large_is_not_read(self, session: SandboxSession) -> None:
        await session.write("big", b"x" * 100)
        assert await session.read("big", 100) == b"x" * 100
        with pytest.raises(SandboxPathRefused, match="more than"):
            await session.read("big", 99)

    async def test_output_is_bounded_while_it_streams_and_the_end_is_kept(self, session: SandboxSession) -> None:
        heard = {"stdout": 0, "stderr": 0}

        def hear(stream: str, data: bytes) -> None:
            heard[stream] += len(data)

        script = "head -c 3000000 /dev/zero; echo the end; echo short >&2"
        done = await session.exec(["sh", "-c", script], on_output=hear)
        assert (len(done.stdout), done.stdout[-8:], done.stderr) == (10_000, b"the end\n", b"short\n")
        assert done.truncated == {"stdout"}
        assert (done.stdout_size, heard["stdout"], heard["stderr"]) == (3_000_008, 3_000_008, 6)

    async def test_a_time_out_ends_the_whole_tree(self, session: SandboxSession) -> None:
        mark = f"3600.{time.time_ns() % 10**9:09d}"
        script = f"sleep {mark} & setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &)"
        done = await session.exec(["sh", "-c", f"{script}; echo up; sleep {mark}"], seconds=1.5)
        assert (done.ended_by, done.exit_code) == ("timeout", 137)
        assert marked(mark) == []
        assert session.alive

    async def test_what_a_program_leaves_behind_ends_with_it(self, session: SandboxSession) -> None:
        mark = f"3600.{time.time_ns() % 10**9:09d}"
        done = await session.exec(["sh", "-c", f"(setsid sleep {mark} >/dev/null 2>&1 &); sleep {mark} & exit 0"])
        assert (done.exit_code, done.ended_by) == (0, "")
        assert marked(mark) == []

    async def test_cancelling_ends_the_whole_tree(self, session: SandboxSession) -> None:
        mark, up = f"3600.{time.time_ns() % 10**9:09d}", asyncio.Event()
        script = f"(setsid sleep {mark} &); echo up; sleep {mark}"
        running = asyncio.create_task(session.exec(["sh", "-c", script], on_output=lambda *_: up.set()))
        await asyncio.wait_for(up.wait(), SOON)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert marked(mark) == []
        assert (await session.exec(["echo", "on"])).stdout == b"on\n"

    async def test_killing_a_session_ends_its_programs_and_takes_no_more(
        self, session: SandboxSession, workspace: Path
    ) -> None:
        mark, up = f"3600.{time.time_ns() % 10**9:09d}", asyncio.Event()
        script = f"(setsid sleep {mark} &); echo up; sleep {mark}"
        running = asyncio.create_task(session.exec(["sh", "-c", script], on_output=lambda *_: up.set()))
        await asyncio.wait_for(up.wait(), SOON)
        process = await session.start(["sleep", mark])
        await session.kill()
        assert marked(mark) == []
        assert (await running).ended_by == "killed"
        assert process.finished is not None
        assert process.finished.ended_by == "killed"
        assert not session.alive
        with pytest.raises(SandboxGone):
            await session.exec(["true"])
        with pytest.raises(SandboxGone):
            await session.start(["true"])
        await session.close()
        await session.close()

    async def test_nothing_that_a_sandbox_starts_belongs_to_the_call_that_uses_it(self, sandbox: Sandbox) -> None:
        """A call ends what is its own, and blames its tool, and once over starts nothing, not even to clean up."""
        noted: list[int] = []
        token = note_for(lambda: noted.append(1))
        try:
            session = await sandbox.open(SandboxPolicy())
            assert (await session.exec(["echo", "done"])).stdout == b"done\n"
            assert (await session.exec(["sleep", "3600"], seconds=0.1)).ended_by == "timeout"
            await (await session.start(["sleep", "3600"])).kill()
            await session.start(["sleep", "3600"])
            await session.close()
            await sandbox.sweep()
        finally:
            forget(token)
        assert noted == []

    @pytest.mark.parametrize("how", ["kill", "close", "close_sandbox"])
    async def test_a_session_that_is_over_neither_reads_nor_writes_files(
        self, sandbox: Sandbox, workspace: Path, how: str
    ) -> None:
        (workspace / "here").write_text("x")
        session = await sandbox.open(SandboxPolicy(workspace=str(workspace)))
        assert await session.read("/workspace/here") == b"x"
        await {"kill": session.kill, "close": session.close, "close_sandbox": sandbox.close}[how]()
        with pytest.raises(SandboxGone):
            await session.read("/workspace/here")
        with pytest.raises(SandboxGone):
            await session.write("/workspace/made", b"x")
        assert not (workspace / "made").exists()
        await session.close()

    async def test_closing_the_sandbox_closes_its_sessions(self, sandbox: Sandbox) -> None:
        mark = f"3600.{time.time_ns() % 10**9:09d}"
        session = await sandbox.open(SandboxPolicy())
        await session.start(["sleep", mark])
        await sandbox.close()
        assert not session.alive
        assert marked(mark) == []

    async def test_a_started_program_is_talked_to(self, session: SandboxSession) -> None:
        process = await session.start(["sh", "-c", "read name; echo hello $name; echo bad >&2; cat"])
        process.stdin.write(b"you\n")
        assert await asyncio.wait_for(process.stdout.readline(), SOON) == b"hello you\n"
        assert process.stderr is not None
        assert await asyncio.wait_for(process.stderr.readline(), SOON) == b"bad\n"
        assert process.finished is None
        process.stdin.write(b"x" * 1_000_000)
        process.stdin.write_eof()
        assert len(await asyncio.wait_for(process.stdout.read(), SOON)) == 1_000_000
        done = await process.wait()
        assert (done.exit_code, done.ended_by) == (0, "")
        assert process.finished == done
        await process.kill()

    async def test_a_program_can_have_a_terminal(self, session: SandboxSession) -> None:
        # A change may take a moment to arrive.
        waiting = "until [ \"$(stty size)\" = '33 44' ]; do sleep 0.05; done"
        process = await session.start(
            ["sh", "-c", f"stty -echo; stty size; read x; {waiting}; stty size"], pty=True, rows=11, columns=22
        )
        assert await asyncio.wait_for(process.stdout.readline(), SOON) == b"11 22\r\n"
        process.resize(33, 44)
        process.stdin.write(b"go\n")
        assert await asyncio.wait_for(process.stdout.read(), SOON) == b"33 44\r\n"
        assert (await process.wait()).exit_code == 0
        assert process.stderr is None
        process.resize(1, 1)

    async def test_many_programs_at_once(self, session: SandboxSession) -> None:
        done = await asyncio.gather(*(session.exec(["sh", "-c", f"echo {n}; exit {n}"]) for n in range(8)))
        assert [(each.exit_code, each.stdout) for each in done] == [(n, f"{n}\n".encode()) for n in range(8)]

    async def test_a_program_that_does_not_read_its_input_does_not_hold_anything_up(
        self, session: SandboxSession
    ) -> None:
        assert (await session.exec(["true"], stdin=b"x" * 5_000_000)).exit_code == 0

    async def test_sweeping_leaves_what_is_in_use(self, sandbox: Sandbox, session: SandboxSession) -> None:
        await sandbox.sweep()
        assert (await session.exec(["echo", "on"])).stdout == b"on\n"
