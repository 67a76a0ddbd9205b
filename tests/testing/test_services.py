"""The private servers: they start, keep their data, explain themselves, and never outlive their owner."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import nats
import pytest

from foliot.dev import nats as nats_module
from foliot.dev import postgres as programs
from foliot.dev import service as base
from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres
from foliot.dev.service import Service, ServiceError, User, is_held
from foliot.dev.session import ServiceSession

WAIT_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s for {what}"
        time.sleep(0.02)


def process_is_running(pid: int) -> bool:
    """False for a zombie too: on a machine whose first process does not reap, those stay, and do nothing."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()  # a system without /proc: the signal's word counts


@pytest.fixture
def synced_postgres(service_session: ServiceSession) -> Iterator[Postgres]:
    """A server that waits for the disk, as those of `foliot dev` do."""
    with service_session.private_postgres() as service:
        yield service


class TestPostgres:
    @pytest.mark.usefixtures("really_migrated")
    async def test_each_test_gets_an_empty_database_with_pgvector_at_hand(self, postgres_url: str) -> None:
        connection = await asyncpg.connect(postgres_url)
        try:
            tables = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
            await connection.execute("CREATE EXTENSION vector")
            distance = await connection.fetchval("SELECT '[0,3]'::vector <-> '[4,0]'::vector")
            version = await connection.fetchval("SHOW server_version_num")
        finally:
            await connection.close()

        assert (tables, distance) == (0, 5.0)
        assert int(version) >= 160_000

    async def test_a_database_is_gone_after_its_test_even_with_connections_open(
        self, service_session: ServiceSession, postgres_url: str
    ) -> None:
        with service_session.database() as url:
            left_open = await asyncpg.connect(url)
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(url)
        left_open.terminate()

    @pytest.mark.services
    @pytest.mark.parametrize("end", [Postgres.stop, Postgres.kill], ids=["stop", "kill"])
    async def test_data_and_address_survive_a_restart(
        self, synced_postgres: Postgres, end: Callable[[Postgres], None]
    ) -> None:
        url, first_pid = synced_postgres.url, synced_postgres.pid
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

        end(synced_postgres)
        with pytest.raises(OSError):
            await asyncpg.connect(url)
        synced_postgres.start()

        connection.terminate()
        connection = await asyncpg.connect(url)
        try:
            assert await connection.fetchval("SELECT answer FROM kept") == 42
            assert await connection.fetchval("SHOW fsync") == "on"
        finally:
            await connection.close()
        assert synced_postgres.pid != first_pid

    async def test_only_loopback_and_only_with_the_password(self, postgres_service: Postgres) -> None:
        wrong = postgres_service.url.replace(postgres_service.state.password, "wrong")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(wrong)

        connection = await asyncpg.connect(postgres_service.url)
        try:
            assert await connection.fetchval("SHOW listen_addresses") == "127.0.0.1"
        finally:
            await connection.close()
        assert (postgres_service.folder / "state.json").stat().st_mode & 0o077 == 0

    def test_it_never_runs_as_root(self, postgres_service: Postgres) -> None:
        assert (postgres_service.folder / "data" / "postmaster.pid").stat().st_uid != 0

    def test_starting_twice_is_starting_once(self, postgres_service: Postgres) -> None:
        pid = postgres_service.pid

        assert Postgres(postgres_service.folder).start().pid == pid

    def test_a_damaged_data_folder_shows_the_end_of_the_log(self, postgres_service: Postgres) -> None:
        postgres_service.stop()
        (postgres_service.folder / "data" / "global" / "pg_control").unlink()

        with pytest.raises(ServiceError, match=r"(?s)ended while starting.*server\.log.*pg_control"):
            postgres_service.start()


class TestNats:
    async def test_a_stream_survives_a_kill_and_a_restart(self, nats_service: Nats) -> None:
        client = await nats.connect(nats_service.url, allow_reconnect=False)
        await client.jetstream().add_stream(name="work", subjects=["work.>"])
        await client.jetstream().publish("work.one", b"kept")
        await client.close()

        nats_service.kill()
        nats_service.start()

        client = await nats.connect(nats_service.url, allow_reconnect=False)
        try:
            message = await client.jetstream().get_msg("work", seq=1)
            assert message.data == b"kept"
        finally:
            await client.close()

    @pytest.mark.parametrize("round", [1, 2])
    async def test_the_shared_server_is_empty_for_each_test(self, nats_url: str, round: int) -> None:
        client = await nats.connect(nats_url, allow_reconnect=False)
        try:
            assert await client.jetstream().streams_info() == []
            await client.jetstream().add_stream(name="left_behind", subjects=["left.>"])
        finally:
            await client.close()

    async def test_accounts_do_not_see_each_other(self, nats_service: Nats) -> None:
        nats_service.stop()
        shared = Nats(nats_service.folder, accounts=("a", "b")).start()
        one = await nats.connect(shared.account_url("a"), allow_reconnect=False)
        other = await nats.connect(shared.account_url("b"), allow_reconnect=False)
        try:
            await one.jetstream().add_stream(name="mine", subjects=["s"])
            assert await other.jetstream().streams_info() == []
        finally:
            await one.close()
            await other.close()

    def test_a_port_that_was_taken_meanwhile_is_changed(self, nats_service: Nats) -> None:
        nats_service.stop()
        taken = nats_service.port
        with socket.socket() as intruder:
            intruder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            intruder.bind(("127.0.0.1", taken))
            intruder.listen()
            nats_service.start()

        assert nats_service.port != taken


OWNER = """
import json, signal, sys, time
from foliot.dev.session import ServiceSession
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that are run by nohup would have it ignored
session = ServiceSession.begin({})
with session.private_postgres() as postgres, session.private_nats() as nats:
    facts = {"folder": str(session.folder), "pids": [postgres.pid, nats.pid], "url": postgres.url}
    print(json.dumps(facts), flush=True)
    try:
        time.sleep(600)
    finally:
        session.end()
"""


@pytest.mark.services
class TestOwnership:
    @pytest.fixture
    def owner(self) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            yield process
            process.kill()

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    async def test_however_the_owner_dies_no_process_and_no_file_stays(
        self, owner: subprocess.Popen[str], number: signal.Signals
    ) -> None:
        assert owner.stdout is not None
        facts = json.loads(owner.stdout.readline())
        connection = await asyncpg.connect(facts["url"])  # a busy server must go as well
        try:
            os.killpg(owner.pid, number)
            owner.wait(WAIT_SECONDS)

            wait_until(lambda: not Path(facts["folder"]).exists(), "the folder to be removed")
        finally:
            connection.terminate()
        assert [pid for pid in facts["pids"] if process_is_running(pid)] == []

    def test_a_session_that_ends_leaves_nothing_behind(self) -> None:
        session = ServiceSession.begin({})
        server = Nats(session.folder / "nats", owner=session.owner).start()
        pid = server.pid

        session.end()

        assert not session.folder.exists()
        assert pid is not None
        assert not process_is_running(pid)

    def test_a_server_without_owner_outlives_the_process_that_started_it(self, tmp_path: Path) -> None:
        code = "import sys, pathlib; from foliot.dev.nats import Nats\nNats(pathlib.Path(sys.argv[1])).start()"
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "nats")], check=True, timeout=110)
        server = Nats(tmp_path / "nats")
        try:
            assert server.running
            assert server.pid is not None
        finally:
            server.purge()
        assert not server.running

    def test_the_lock_is_held_until_the_last_process_of_the_server_is_gone(self, postgres_service: Postgres) -> None:
        alive = postgres_service.folder / "alive.lock"

        postgres_service.kill()

        assert not is_held(alive)
        assert postgres_service.pid is None


class TestMissingPrograms:
    @pytest.fixture(autouse=True)
    def bare_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.setattr(programs, "WHEEL", "no_such_wheel")
        monkeypatch.setattr(programs, "SYSTEM", tmp_path / "nowhere")
        monkeypatch.setattr(nats_module, "PROGRAM", "no-such-nats-server")

    def write_program(self, tmp_path: Path, text: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("postgres", "initdb"):
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)

    def test_without_postgres_the_error_says_what_to_install(self, tmp_path: Path) -> None:
        with pytest.raises(ServiceError, match="no PostgreSQL 16 or newer with pgvector") as caught:
            Postgres(tmp_path / "service").start()
        assert "pip install 'foliot-runtime[services]'" in (caught.value.hint or "")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("echo 'postgres (PostgreSQL) 15.4'", "is PostgreSQL 15.4, older than 16"),
            ("echo 'postgres (PostgreSQL) 17.2 (Debian)'", "has no pgvector"),
            ("exit 1", "does not run"),
            ("echo hello", "does not say its version"),
        ],
    )
    def test_what_was_found_but_cannot_be_used_is_named_with_the_reason(
        self, tmp_path: Path, text: str, reason: str
    ) -> None:
        self.write_program(tmp_path, text)

        with pytest.raises(ServiceError, match=reason) as caught:
            Postgres(tmp_path / "service").start()
        assert str(tmp_path / "bin") in caught.value.message

    def test_without_nats_the_error_says_what_to_install(self, tmp_path: Path) -> None:
        with pytest.raises(ServiceError, match="no-such-nats-server was found neither") as caught:
            Nats(tmp_path / "service").start()
        assert "pip install 'foliot-runtime[services]'" in (caught.value.hint or "")


class TestReach:
    @pytest.mark.services
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
    def test_programs_in_a_private_folder_are_copied_to_where_the_user_can_run_them(
        self, service_session: ServiceSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(programs, "_runs_as", lambda folder, user: "programs" in folder.parts)
        folder = service_session.folder / "copied"

        server = Postgres(folder, owner=service_session.owner).start()
        try:
            assert server.programs.bin.is_relative_to(folder / "programs")
        finally:
            server.purge()

    def test_a_folder_nobody_else_can_enter_is_explained(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(programs, "_runs_as", lambda folder, user: False)
        home = tmp_path / "wheel" / "install"
        (home / "bin").mkdir(parents=True)

        with pytest.raises(ServiceError, match="can reach neither"):
            programs._reachable(home / "bin", User("nobody", 65534, 65534), tmp_path / "copy")

    def test_data_made_by_another_version_is_not_touched(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "PG_VERSION").write_text("12\n")

        with pytest.raises(ServiceError, match="but the data was made by 12"):
            Postgres(tmp_path).start()
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["PG_VERSION"]

    @pytest.mark.parametrize(("mode", "expected"), [(0o711, True), (0o700, False), (0o770, False)])
    def test_whether_a_user_can_enter_depends_on_every_folder_above(self, mode: int, expected: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="foliot-") as outer:  # not in tmp_path, which is private
            inner = Path(outer) / "inner"
            inner.mkdir(mode=0o755)
            Path(outer).chmod(mode)

            entered = programs.can_enter(User("stranger", 64_000, 64_000), inner / "not-there-yet")

        assert entered is expected


class TestNamedServers:
    async def test_a_named_server_is_used_and_nothing_is_started(self, postgres_service: Postgres) -> None:
        session = ServiceSession.begin({"FOLIOT_TEST_POSTGRES_URL": postgres_service.url})
        try:
            with session.database() as url:
                connection = await asyncpg.connect(url)
                await connection.close()
            assert [path.name for path in session.folder.iterdir()] == ["owner.lock"]
        finally:
            session.end()

    def test_a_named_server_that_does_not_answer_is_explained_without_its_password(self) -> None:
        port = base.free_port()
        session = ServiceSession.begin({"FOLIOT_TEST_POSTGRES_URL": f"postgresql://me:hidden@127.0.0.1:{port}/x"})
        try:
            with pytest.raises(ServiceError, match=f"127.0.0.1:{port} does not let") as caught, session.database():
                pass
            assert "hidden" not in str(caught.value)
            assert "FOLIOT_TEST_POSTGRES_URL" in (caught.value.hint or "")
        finally:
            session.end()


def test_a_damaged_state_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    server: Service = Nats(tmp_path)

    with pytest.raises(ServiceError, match=r"state\.json is damaged"):
        server.start()


def test_state_of_a_service_that_never_ran_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="was never started"):
        _ = Nats(tmp_path).url
