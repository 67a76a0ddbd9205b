"""`foliot doctor` says what is wrong and what to do, and changes nothing by looking."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from foliot.cli.doctor.surroundings import EXTRAS
from foliot.store.audit.chain import COLUMNS
from foliot.store.audit.log import SqlAuditLog
from foliot.store.sqlite.database import SqliteDatabase
from foliot.store.sqlite.file import prepare
from tests.made_up_migrations import NEWEST, go_by, write_migrations


def examined(foliot, *words: str) -> dict[str, tuple[str, str, str]]:
    """By check: level, message, hint."""
    said = foliot(*words, "doctor", "-o", "json")
    report = json.loads(said.out)
    assert (said.code == 0) == report["healthy"]
    return {each["check"]: (each["level"], each["message"], each["hint"]) for each in report["findings"]}


def changed(home: Path, *statements: str) -> None:
    connection = apsw.Connection(str(home / "foliot.db"))
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.fence
def test_a_healthy_store_has_no_error_and_no_warning(foliot, team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.cli.doctor.store.IN_MEMORY", ())  # where the tests keep their files
    found = examined(foliot)
    assert {level for level, _, _ in found.values()} <= {"ok", "note"}
    assert found["store.fsync"][0] == "ok"
    assert found["rules.default_access"][0] == "note"
    assert foliot("doctor", "--strict").code == 0


def test_every_extra_of_the_package_is_looked_for() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS} == {*declared["optional-dependencies"]} - {"all", "services"}


def test_people_see_what_to_do_and_quiet_shows_only_trouble(foliot, team, home) -> None:
    (home / "foliot.db").chmod(0o644)
    said = foliot("doctor", "--quiet")
    assert said.code == 0
    assert "chmod 600" in said.out
    assert "✓" not in said.out
    assert foliot("doctor", "--strict").code == 1


def test_looking_makes_no_store_and_no_key(foliot, home) -> None:
    found = examined(foliot)
    assert found["store.exists"][0] == "note"
    assert not home.exists() or list(home.iterdir()) == []


def test_looking_brings_no_store_up_to_date(foliot, home, tmp_path, monkeypatch) -> None:
    home.mkdir()
    prepare(home / "foliot.db").close()
    go_by(monkeypatch, write_migrations(tmp_path / "made_up", "CREATE TABLE tag (name TEXT PRIMARY KEY);"))
    assert examined(foliot)["store.schema"][0] == "warning"
    connection = apsw.Connection(str(home / "foliot.db"))
    assert connection.execute("SELECT max(version) FROM schema_version").fetchall() == [(NEWEST,)]
    connection.close()


def test_a_store_of_a_newer_version_is_an_error(foliot, team, home) -> None:
    changed(home, "INSERT INTO schema_version VALUES (9999, 'future')")
    level, _, hint = examined(foliot)["store.schema"]
    assert (level, hint) == ("error", "upgrade foliot")


def test_a_file_that_is_no_store_is_an_error_and_no_traceback(foliot, home) -> None:
    home.mkdir()
    (home / "foliot.db").write_bytes(b"something else " * 500)
    found = examined(foliot)
    assert found["store.reachable"][0] == "error"
    assert "packages.extras" in found, "the other looks go on"


def test_a_missing_key_is_an_error_when_there_are_secrets(foliot, home) -> None:
    assert foliot("create", "secret", "mine", "--from-literal", "a=b").code == 0
    assert examined(foliot)["keys.open"][0] == "ok"
    (home / "secret.key").rename(home / "elsewhere")
    assert examined(foliot)["keys.present"][0] == "error"
    assert not (home / "secret.key").exists()


def test_a_key_that_others_can_read_is_an_error(foliot, home) -> None:
    assert foliot("create", "secret", "mine", "--from-literal", "a=b").code == 0
    (home / "secret.key").chmod(0o644)
    level, message, hint = examined(foliot)["keys.present"]
    assert level == "error"
    assert "0644" in message
    assert "chmod 600" in hint


def test_a_key_that_does_not_open_what_is_stored_is_an_error(foliot, home, monkeypatch) -> None:
    assert foliot("create", "secret", "mine", "--from-literal", "a=b").code == 0
    monkeypatch.setenv("FOLIOT_SECRET_KEY", "11" * 32)
    level, message, _ = examined(foliot)["keys.open"]
    assert level == "error"
    assert "mine" in message


QUEUED = """
INSERT INTO queue (run, run_id, task, namespace, agent, lane, class, priority, line, due_at, held, max_running,
                   requirements)
VALUES (1, 'r1', 1, 'default', 'writer', '', 'c', 0, '999', {0}, 0, 0, '{1}')
"""


def test_work_without_anybody_to_do_it_is_an_error(foliot, team, home) -> None:
    now = time.time()
    changed(
        home,
        QUEUED.format(now - 1000, "{}"),
    )
    found = examined(foliot)
    assert found["work.workers"][0] == "error"
    assert "foliot worker" in found["work.workers"][2]
    assert found["work.queue"][0] == "warning"


def test_work_that_no_worker_can_do_is_a_warning(foliot, team, home) -> None:
    now = time.time()
    needs = '{"lacks":{"me":"module desk"}}'
    changed(
        home,
        "INSERT INTO worker (name, identity, region, gpu, models, labels, capacity, phase, started_at, heartbeat_at) "
        f"VALUES ('wx', 'me', '', 0, '[]', '{{}}', 8, 'ready', {now}, {now + 600})",
        QUEUED.format(now - 9, needs),
    )
    level, message, hint = examined(foliot)["work.placement"]
    assert (level, "default/writer" in message, "foliot why" in hint) == ("warning", True, True)


def test_what_is_stuck_is_named(foliot, team, home) -> None:
    now = time.time()
    run = (
        "INSERT INTO run (key, id, namespace, agent, phase, epoch, last_seq, worker, lease_until, created_at, "
        "updated_at, labels, summary, pin) VALUES ({0}, '{1}', 'default', 'a', '{2}', 1, 1, 'w', {3}, {4}, {4}, "
        "'{{}}', '{5}', 1)"
    )
    waits = json.dumps({"waiting": {"reason": "unknown_effect", "owner": "person"}})
    changed(
        home,
        run.format(1, "lapsed", "running", now - 1000, now - 2000, "{}"),
        run.format(2, "alone", "pending", "NULL", now - 2000, "{}"),
        run.format(3, "asks", "waiting", "NULL", now - 7200, waits),
        "INSERT INTO worker (name, identity, region, gpu, models, labels, capacity, phase, started_at, heartbeat_at) "
        "VALUES ('old', 'id', '', 0, '[]', '{}', 8, 'ready', 1, 1)",
        f"INSERT INTO work_class VALUES ('k', 'default', 'a', '', 9, {now}, {now}, NULL)",
    )
    found = examined(foliot)
    assert "lapsed" in found["work.leases"][1]
    assert "alone" in found["work.pending"][1]
    assert found["work.waiting"][:2] == ("note", "1 run waits for a person, the longest for 2h")
    assert (found["work.workers"][0], found["work.classes"][0]) == ("warning", "warning")
    assert "old" in found["work.workers"][1]


def test_an_approval_about_to_expire_is_a_warning(foliot, team, home) -> None:
    async def ask() -> None:
        from foliot.engine.approval.documents import creation
        from foliot.store.resources.database import SqlResourceStore
        from foliot.store.secrets.keyring import keyring_from_text

        database = await SqliteDatabase.open(home / "foliot.db")
        ends = datetime.fromtimestamp(time.time() + 600, UTC).isoformat()
        document = {
            "apiVersion": "foliot.dev/v1",
            "kind": "ToolApproval",
            "metadata": {"name": "pay-1", "namespace": "default"},
            "spec": {"tool": "pay"},
            "status": {"phase": "Pending", "expires_at": ends},
        }
        store = SqlResourceStore(database, lambda: keyring_from_text("00" * 32))
        for put in creation(document):
            await store.write([put])
        await database.close()

    asyncio.run(ask())
    level, message, _ = examined(foliot)["work.approvals"]
    assert level == "warning"
    assert "pay-1" in message


def test_an_edited_audit_record_is_an_error(foliot, team, home) -> None:
    async def write() -> None:
        database = await SqliteDatabase.open(home / "foliot.db")
        entry = {**dict.fromkeys(COLUMNS, "x"), "at": 1.0}
        await SqlAuditLog(database).append([entry, entry, entry])
        await database.close()

    asyncio.run(write())
    assert examined(foliot)["audit.chain"][0] == "ok"
    changed(home, "UPDATE audit SET data = replace(data, '\"x\"', '\"y\"') WHERE seq = 2")
    assert examined(foliot)["audit.chain"][0] == "error"


async def test_only_the_end_of_a_long_audit_log_is_checked(tmp_path) -> None:
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    try:
        log = SqlAuditLog(database)
        entry = {**dict.fromkeys(COLUMNS, "x"), "at": 1.0}
        await log.append([entry] * 30)
        verified = await log.verify_end(10)
        assert (verified.records, verified.first, verified.broken) == (10, 21, None)
        assert (await log.verify_end(100)).records == 30
        connection = apsw.Connection(str(tmp_path / "foliot.db"))
        connection.execute("UPDATE audit SET data = replace(data, '\"x\"', '\"y\"') WHERE seq = 25")
        connection.close()
        broken = (await log.verify_end(10)).broken
        assert broken is not None
        assert broken.seq == 25
        assert (await log.verify_end(3)).broken is None
    finally:
        await database.close()


def test_a_tool_that_asks_for_a_sandbox_that_is_not_there_is_a_warning(foliot, home, tmp_path) -> None:
    manifest = tmp_path / "tool.yaml"
    manifest.write_text(
        "kind: Tool\nmetadata: {name: shell}\nspec:\n  type: http\n  endpoint: https://example.com/x\n"
        "  runtime: {isolation_mode: container}\n"
    )
    assert foliot("apply", "-f", manifest).code == 0
    level, message, _ = examined(foliot)["rules.sandbox"]
    assert level == "warning"
    assert "shell" in message


def test_nats_that_does_not_answer_is_an_error_and_its_password_is_not_shown(foliot, team, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_NATS", "nats://me:hidden@127.0.0.1:1")
    said = foliot("doctor", "-o", "json")
    report = {each["check"]: each for each in json.loads(said.out)["findings"]}
    assert said.code == 1
    assert report["nats.reachable"]["level"] == "error"
    assert "hidden" not in said.out + said.err


def test_credentials_that_others_can_read_are_a_warning(foliot, team, monkeypatch, tmp_path) -> None:
    file = tmp_path / "nats.creds"
    file.write_text("x")
    file.chmod(0o644)
    monkeypatch.setenv("FOLIOT_NATS_CREDENTIALS", str(file))
    assert examined(foliot)["settings.nats_credentials"][0] == "warning"
    monkeypatch.setenv("FOLIOT_NATS_CREDENTIALS", str(tmp_path / "none"))
    assert examined(foliot)["settings.nats_credentials"][0] == "error"


def test_a_setting_that_is_misspelt_is_a_warning(foliot, team, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_NAMESPCE", "x")
    assert "FOLIOT_NAMESPACE" in examined(foliot)["settings.names"][1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_is_an_error(foliot, team, home) -> None:
    (home / "foliot.db").chmod(0o400)
    assert examined(foliot)["store.write"][0] == "error"


@pytest.mark.services
@pytest.mark.usefixtures("really_migrated")
def test_postgres_is_asked_for_its_clock_and_its_fsync(foliot, postgres_url) -> None:
    found = examined(foliot, "--store", postgres_url)
    assert found["store.schema"][0] == "warning", "an empty database is not brought up to date by looking"
    assert foliot("--store", postgres_url, "get", "agents").code == 0
    found = examined(foliot, "--store", postgres_url)
    assert found["store.schema"][0] == "ok"
    assert found["store.clock"][0] == "ok"
    assert found["store.write"][0] == "ok"


def test_postgres_that_is_away_is_an_error_without_its_password(foliot) -> None:
    said = foliot("--store", "postgresql://me:hidden@127.0.0.1:1/x", "doctor")
    assert said.code == 1
    assert "hidden" not in said.out + said.err


@pytest.mark.services
def test_the_stream_of_tickets_is_looked_at_and_not_made(foliot, team, nats_url, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_NATS", nats_url)
    monkeypatch.setenv("FOLIOT_NATS_STREAM", f"DOCTOR_{os.getpid()}_{time.time_ns()}")
    monkeypatch.setattr("foliot.cli.doctor.surroundings.NATS_WITHIN", 60.0)  # a person has less patience than a test
    found = examined(foliot)
    assert found["nats.reachable"][0] == "ok"
    assert found["nats.stream"][0] == "note"
    assert examined(foliot)["nats.stream"][0] == "note"


# --- what is refused now -----------------------------------------------------------------------------------------

STORED = """
kind: Task
metadata: {name: form, namespace: team-b}
spec: {agent: writer, mode: template, input: {topic: x}}
---
kind: ModelEndpoint
metadata: {name: paid, namespace: team-a}
spec: {provider: openai, default_model: m}
---
kind: ReferenceGrant
metadata: {name: shared, namespace: team-a}
spec: {from: [{namespace: team-b}], to: [{kind: ModelEndpoint}, {kind: Secret}]}
---
kind: Agent
metadata: {name: writer, namespace: team-b}
spec: {model_ref: team-a/paid, prompt: Write.}
---
kind: Tool
metadata: {name: count, namespace: team-b}
spec: {type: function, function: "json:dumps", effect: read}
---
kind: ModelEndpoint
metadata: {name: inside, namespace: team-b}
spec: {provider: openai, base_url: "http://127.0.0.1:9/v1", default_model: m}
---
kind: ModelEndpoint
metadata: {name: keyed, namespace: team-b}
spec: {provider: openai, base_url: "https://models.example.com/v1", default_model: m, auth: {secretRef: key}}
---
kind: Secret
metadata: {name: key, namespace: team-b}
spec: {stringData: {value: something-long-enough}}
---
kind: TaskSchedule
metadata: {name: nightly, namespace: team-b}
spec: {task_ref: form, schedule: "0 0 1 1 *"}
---
kind: TaskWebhook
metadata: {name: hook, namespace: team-b}
spec: {task_ref: form, auth: {profile: generic, secret_ref: key}}
"""


def refused_now(foliot) -> dict[str, list[tuple[str, str]]]:
    """By check: what is said and what to type, of everything about the boundary that is not well."""
    found = json.loads(foliot("doctor", "-o", "json").out)["findings"]
    told: dict[str, list[tuple[str, str]]] = {}
    for each in found:
        if each["area"] == "boundary" and each["level"] != "ok":
            told.setdefault(each["check"], []).append((each["message"], each["hint"]))
    return told


def type_in(foliot, hint: str) -> None:
    """Do what stands in a hint: `… | foliot apply -f -`, the first part said by foliot or by echo."""
    first, rest = hint.split(" | foliot apply -f -")[0], ["apply", "-f", "-"]
    words = shlex.split(first[first.rindex("foliot get") if "foliot get" in first else first.rindex("echo ") :])
    given = words[1] if words[0] == "echo" else foliot(*words[1:]).out
    said = foliot(*rest, stdin=given)
    assert said.code == 0, said.err


def test_what_is_stored_and_refused_now_is_told_with_what_to_type(foliot, home) -> None:
    assert foliot("apply", "-f", "-", stdin=STORED).code == 0
    given = ("approvals", "grant", "-n", "team-b", "--tool", "count", "--when", "args.n < 5", "--until", "2h")
    assert foliot(*given).code == 0
    assert refused_now(foliot) == {}, "whoever owns the store answers for what is declared there"
    assert foliot("delete", "referencegrant", "shared", "-n", "team-a").code == 0
    changed(
        home,
        "UPDATE resource SET document = json_set(document, '$.metadata.declaredBy.operator', json('false'))",
        "UPDATE resource SET document = json_set(document, '$.spec.max_uses', 9) WHERE kind = 'ToolApproval'",
    )

    told = refused_now(foliot)

    assert {check: len(each) for check, each in told.items()} == {
        "boundary.references": 1,
        "boundary.powers": 3,
        "boundary.standing": 1,
    }
    (reference,) = told["boundary.references"]
    assert "Agent/writer" in reference[0]
    assert "ReferenceGrant" in reference[0]
    assert [word for word in ("count", "inside", "keyed") for said, _ in told["boundary.powers"] if word in said] == [
        "count",
        "inside",
        "keyed",
    ]
    (standing,) = told["boundary.standing"]
    assert "--when 'args.n < 5'" in standing[1]

    for check in ("boundary.references", "boundary.powers"):
        for _, hint in told[check]:
            type_in(foliot, hint)
    for command in standing[1].replace("; and to give it anew: ", "\n").replace("DURATION", "2h").splitlines():
        assert foliot(*shlex.split(command)[1:]).code == 0
    assert refused_now(foliot) == {}
    assert foliot("doctor", "--strict", "--quiet").out.count("boundary") == 0


def test_the_name_of_a_secret_is_not_told_and_a_long_list_is_cut(foliot, home) -> None:
    grant = "kind: ReferenceGrant\nmetadata: {name: shared, namespace: team-a}\n"
    grant += "spec: {from: [{namespace: team-b}], to: [{kind: Secret}]}\n"
    one = "---\nkind: ModelEndpoint\nmetadata: {name: m%d, namespace: team-b}\n"
    one += "spec: {provider: openai, default_model: m, auth: {secretRef: team-a/hush-hush}}\n"
    assert (
        foliot("apply", "--allow-missing", "-f", "-", stdin=grant + "".join(one % number for number in range(25))).code
        == 0
    )
    assert foliot("delete", "referencegrant", "shared", "-n", "team-a").code == 0

    told = refused_now(foliot)

    assert len(told["boundary.references"]) == 21
    assert told["boundary.references"][-1][0] == "and 5 more"
    assert "hush" not in str(told)
