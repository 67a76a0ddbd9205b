"""The one database on which pairs are played: seeded once, put back between plays, looked at after each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from foliot.errors import FoliotError
from foliot.store.postgres.driver import PostgresConnection, connect
from simulators.pairs.tables import all_tables

# --- invariants ------------------------------------------------------------------------------------------------------

# What must be true of a store after any number of transactions, whatever their order.
#
# Each invariant is a query that gives the offenders, so it is one round trip to ask for all of them.

_ENDED: Final = "('succeeded', 'failed', 'cancelled')"
_TASK_ENDED: Final = "('succeeded', 'failed', 'cancelled', 'dead_lettered')"

# The offenders' names as `who`.
INVARIANTS: Final[Mapping[str, str]] = {
    "a parked run has a signal that nobody will take": f"""
        SELECT r.id AS who FROM run AS r JOIN queue AS q ON q.run = r.key
         WHERE r.phase NOT IN {_ENDED} AND q.held = 0 AND q.due_at IS NULL
           AND EXISTS (SELECT 1 FROM signal AS s WHERE s.run_id = r.id)""",
    "a signal to a run that has ended or is gone": f"""
        SELECT s.id AS who FROM signal AS s LEFT JOIN run AS r ON r.id = s.run_id
         WHERE r.id IS NULL OR r.phase IN {_ENDED}""",
    "a run without its frozen definition": f"""
        SELECT r.id AS who FROM run AS r
         WHERE r.phase NOT IN {_ENDED} AND NOT EXISTS (
             SELECT 1 FROM blob AS b
              WHERE b.digest = (SELECT p.spec FROM run_pin AS p WHERE p.key = r.pin))""",
    "a run that is pinned to something that is gone": """
        SELECT r.id AS who FROM run AS r LEFT JOIN run_pin AS p ON p.key = r.pin
         WHERE r.pin IS NOT NULL AND p.key IS NULL""",
    "content in use that is gone": """
        SELECT u.digest AS who FROM blob_use AS u LEFT JOIN blob AS b ON b.digest = u.digest WHERE b.digest IS NULL""",
    "content used by a run that is gone": """
        SELECT u.digest AS who FROM blob_use AS u LEFT JOIN run AS r ON r.key = u.run WHERE r.key IS NULL""",
    "a task without its plan": """
        SELECT t.name AS who FROM task AS t WHERE NOT EXISTS (SELECT 1 FROM blob AS b WHERE b.digest = t.plan)""",
    "a queue row without its run": """
        SELECT q.run_id AS who FROM queue AS q LEFT JOIN run AS r ON r.key = q.run WHERE r.key IS NULL""",
    "a queue row of a run that has ended": f"""
        SELECT q.run_id AS who FROM queue AS q JOIN run AS r ON r.key = q.run WHERE r.phase IN {_ENDED}""",
    "a queue row without its task": """
        SELECT q.run_id AS who FROM queue AS q LEFT JOIN task AS t ON t.key = q.task WHERE t.key IS NULL""",
    "a live run of a task that is not in the queue": f"""
        SELECT r.id AS who FROM task_run AS m JOIN run AS r ON r.id = m.run_id
         WHERE r.phase NOT IN {_ENDED} AND NOT EXISTS (SELECT 1 FROM queue AS q WHERE q.run = r.key)""",
    "a run of a task that is gone": """
        SELECT m.run_id AS who FROM task_run AS m LEFT JOIN task AS t ON t.key = m.task WHERE t.key IS NULL""",
    "a message of a live task whose run is gone": f"""
        SELECT m.run_id AS who FROM task_run AS m JOIN task AS t ON t.key = m.task
         WHERE t.phase NOT IN {_TASK_ENDED} AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = m.run_id)""",
    "a held queue row whose run nobody holds": """
        SELECT q.run_id AS who FROM queue AS q JOIN run AS r ON r.key = q.run
         WHERE q.held = 1 AND (r.phase <> 'running' OR r.worker IS NULL)""",
    "a run at work without an owner or an end of its lease": """
        SELECT r.id AS who FROM run AS r WHERE r.phase = 'running' AND (r.worker IS NULL OR r.lease_until IS NULL)""",
    "a run that rests and has an owner": """
        SELECT r.id AS who FROM run AS r
         WHERE r.phase <> 'running' AND (r.worker IS NOT NULL OR r.lease_until IS NOT NULL)""",
    "a live task for which nobody works": f"""
        SELECT t.name AS who FROM task AS t
         WHERE t.phase NOT IN {_TASK_ENDED} AND t.timer_at IS NULL
           AND NOT EXISTS (SELECT 1 FROM queue AS q WHERE q.task = t.key)""",
    "a live run of a task that has ended, which nobody told": f"""
        SELECT q.run_id AS who FROM queue AS q JOIN task AS t ON t.key = q.task
         WHERE t.phase IN {_TASK_ENDED} AND NOT EXISTS (SELECT 1 FROM signal AS s WHERE s.run_id = q.run_id)""",
    "a journal with a gap": """
        SELECT r.id AS who FROM run AS r LEFT JOIN event AS e ON e.run = r.key
         GROUP BY r.key, r.id, r.last_seq HAVING COUNT(e.seq) <> r.last_seq OR COALESCE(MAX(e.seq), 0) <> r.last_seq""",
    "events of a run that is gone": """
        SELECT DISTINCT CAST(e.run AS TEXT) AS who FROM event AS e LEFT JOIN run AS r ON r.key = e.run
         WHERE r.key IS NULL""",
    "a task whose events do not end at its revision": """
        SELECT t.name AS who FROM task AS t LEFT JOIN task_event AS e ON e.task = t.key
         GROUP BY t.key, t.name, t.revision
        HAVING COUNT(e.seq) <> t.revision OR COALESCE(MAX(e.seq), 0) <> t.revision""",
    "events or memory of a task that is gone": """
        SELECT DISTINCT CAST(e.task AS TEXT) AS who
          FROM (SELECT task FROM task_event UNION ALL SELECT task FROM task_memory) AS e
          LEFT JOIN task AS t ON t.key = e.task WHERE t.key IS NULL""",
    "reservations that are not the sum of what is held": """
        SELECT a.key AS who FROM budget_account AS a
         WHERE (a.reserved, a.reserved_tokens) <> (
             SELECT COALESCE(SUM(h.amount), 0), COALESCE(SUM(h.tokens), 0)
               FROM budget_hold AS h, json_array_elements_text(CAST(h.accounts AS json)) AS n(key)
              WHERE h.state = 'held' AND n.key = a.key)""",
    "an account below zero": """
        SELECT key AS who FROM budget_account
         WHERE reserved < 0 OR spent < 0 OR reserved_tokens < 0 OR spent_tokens < 0""",
    "changes with a gap": """
        SELECT CAST(r.value AS TEXT) AS who FROM counter AS r, counter AS c
         WHERE r.name = 'revision' AND c.name = 'compacted'
           AND (r.value - c.value) <> (SELECT COUNT(*) FROM change AS x
                                        WHERE x.revision BETWEEN c.value + 1 AND r.value)""",
    "a resource newer than the newest change": """
        SELECT s.key AS who FROM resource AS s, counter AS r WHERE r.name = 'revision' AND s.version > r.value""",
    "a label of a resource that is gone": """
        SELECT l.key AS who FROM resource_label AS l LEFT JOIN resource AS s ON s.key = l.key WHERE s.key IS NULL""",
    "an audit log with a gap": """
        SELECT 'head' AS who FROM audit_head AS h WHERE h.name = 'head' AND (
             h.seq - COALESCE((SELECT b.seq FROM audit_head AS b WHERE b.name = 'base'), 0)
                <> (SELECT COUNT(*) FROM audit AS a
                     WHERE a.seq > COALESCE((SELECT b.seq FROM audit_head AS b WHERE b.name = 'base'), 0)))""",
    "an audit record that does not follow the one before": """
        SELECT CAST(a.seq AS TEXT) AS who FROM audit AS a
          LEFT JOIN (SELECT seq, hash FROM audit UNION SELECT seq, hash FROM audit_head WHERE name = 'base'
                     UNION SELECT 0 AS seq, '' AS hash) AS b ON b.seq = a.seq - 1
         WHERE a.seq > COALESCE((SELECT h.seq FROM audit_head AS h WHERE h.name = 'base'), 0)
           AND POSITION(COALESCE(b.hash, 'none') IN a.data) = 0""",
    "a head that is not the newest record": """
        SELECT 'head' AS who FROM audit_head AS h WHERE h.name = 'head' AND h.seq > 0
           AND h.hash <> COALESCE((SELECT a.hash FROM audit AS a WHERE a.seq = h.seq), '')
           AND h.seq <> COALESCE((SELECT b.seq FROM audit_head AS b WHERE b.name = 'base'), 0)""",
    "a name of both an account and a token": """
        SELECT u.name AS who FROM user_account AS u JOIN api_token AS t ON lower(t.name) = u.name""",
    "a session of an account that is disabled": """
        SELECT u.name AS who FROM login_session AS s JOIN user_account AS u ON u.id = s.user_id
         WHERE u.disabled_at IS NOT NULL""",
    "a slot of a schedule that is forgotten": """
        SELECT DISTINCT s.schedule AS who
          FROM schedule_slot AS s LEFT JOIN schedule_state AS t ON t.schedule = s.schedule
         WHERE t.schedule IS NULL""",
    "a session with a turn that is no run, or has ended": f"""
        SELECT s.id AS who FROM session AS s LEFT JOIN run AS r ON r.id = s.turn
         WHERE s.turn IS NOT NULL AND (r.id IS NULL OR r.phase IN {_ENDED})""",
    "two turns of a session at work": """
        SELECT s.id AS who FROM session AS s JOIN session_turn AS t ON t.session = s.key AND t.ended_at IS NULL
         GROUP BY s.key, s.id HAVING COUNT(*) > 1""",
    "turns of a session with a gap": """
        SELECT s.id AS who FROM session AS s LEFT JOIN session_turn AS t ON t.session = s.key
         GROUP BY s.key, s.id, s.turns HAVING COUNT(t.key) <> s.turns""",
    "inputs of a session with a gap": """
        SELECT s.id AS who FROM session AS s LEFT JOIN inbox AS i ON i.owner_kind = 'session' AND i.owner = s.key
         GROUP BY s.key, s.id, s.arrivals HAVING COUNT(i.seq) <> s.arrivals""",
    "an input that is offered to no turn": """
        SELECT i.id AS who FROM inbox AS i LEFT JOIN session AS s ON s.key = i.owner
         WHERE i.owner_kind = 'session' AND i.status = 'offered' AND (s.turn IS NULL OR s.turn <> i.run_id)""",
    "an input that is answered by no turn": """
        SELECT i.id AS who FROM inbox AS i LEFT JOIN session_turn AS t ON t.run_id = i.run_id
         WHERE i.owner_kind = 'session' AND i.status = 'consumed' AND t.key IS NULL""",
    "a place whose active session is archived or gone": """
        SELECT c.channel AS who FROM session_channel AS c LEFT JOIN session AS s ON s.id = c.active
         WHERE c.active IS NOT NULL AND (s.key IS NULL OR s.archived_at IS NOT NULL)""",
    "words, turns or inputs of a session that is gone": """
        SELECT CAST(t.key AS TEXT) AS who FROM session_turn AS t LEFT JOIN session AS s ON s.key = t.session
         WHERE s.key IS NULL
        UNION SELECT CAST(w.rowid AS TEXT) FROM session_words AS w LEFT JOIN session_turn AS t ON t.key = w.rowid
         WHERE t.key IS NULL
        UNION SELECT i.id FROM inbox AS i LEFT JOIN session AS s ON s.key = i.owner
         WHERE i.owner_kind = 'session' AND s.key IS NULL""",
    "a webhook with two addresses": """
        SELECT webhook AS who FROM webhook_endpoint WHERE expires_at IS NULL GROUP BY webhook HAVING COUNT(*) > 1""",
}

# All of them as one query of two columns.
PROBLEMS: Final = " UNION ALL ".join(
    f"SELECT '{name}' AS name, found.who AS row FROM ({query}) AS found" for name, query in INVARIANTS.items()
)


# --- stage -----------------------------------------------------------------------------------------------------------

# Random bits: ids, digests, uuids. Those of the seeded state keep their names, every other one is as good as the next.
_RANDOM: Final = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,64}|[A-Za-z0-9_-]{43}|\b[a-z0-9]{12}\b"
)
_ANY: Final = "~"
# Most rows are as they were in the play before.
MOST_KEPT: Final = 20_000
# Columns that hold the key of a run, or of a task: a number that depends on who came first.
_RUN_KEYS: Final = {
    "run": ("key",),
    "event": ("run",),
    "blob_use": ("run",),
    "queue": ("run",),
    "work_class": ("probe",),
}
_TASK_KEYS: Final = {
    "task": ("key",),
    "task_event": ("task",),
    "task_run": ("task",),
    "task_memory": ("task",),
    "task_told": ("task",),
    "queue": ("task",),
}
_COUNTED: Final = {"webhook_delivery": "key", "run_pin": "key"}
# What is deflated is as random as the ids in it.
_DEFLATED: Final = ("\\x01", "\\x03")


class Snapshot:
    """Some tables as they are, in a form that can be compared; and what is wrong with them."""

    def __init__(self, rows: dict[str, list[str]], problems: list[str]) -> None:
        self.rows = rows
        self.problems = problems
        self.text = "\n".join(f"{table} {row}" for table, found in sorted(rows.items()) for row in found)

    def difference(self, other: Snapshot, mine: Sequence[str], his: Sequence[str]) -> str:
        """How a state and its results differ from another one and its, in one line."""
        told: list[str] = []
        for label, here, there in zip("AB", mine, his, strict=True):
            if here != there:
                told.append(f"{label} gave {here}, not {there}")
        for table in sorted(self.rows):
            here, there = set(self.rows[table]), set(other.rows.get(table, ()))
            mine, his = sorted(here - there), sorted(there - here)
            if len(mine) == len(his) == 1:
                told.append(f"{table}: {_changed(mine[0], his[0])}")
                continue
            told += [f"+{table} {row[:200]}" for row in mine]
            told += [f"-{table} {row[:200]}" for row in his]
        return "; ".join(told)[:1500]

    def distance(self, other: Snapshot) -> int:
        """How many rows differ."""
        return sum(len(set(rows) ^ set(other.rows.get(table, ()))) for table, rows in self.rows.items())


def _changed(mine: str, his: str) -> str:
    here: dict[str, Any] = msgspec.json.decode(mine)
    there: dict[str, Any] = msgspec.json.decode(his)
    return ", ".join(
        f"{name} is {str(here[name])[:80]!r}, not {str(there[name])[:80]!r}"
        for name in here
        if here[name] != there.get(name)
    )


class Stage:
    """`url` names a database of which nobody else uses anything."""

    def __init__(
        self, url: str, connection: PostgresConnection, known: frozenset[str], numbers: Mapping[str, int]
    ) -> None:
        """Use `set_up`."""
        self.url = url
        self.tables = all_tables()
        self._connection = connection
        self._known = known
        self._numbers = numbers
        self._dirty: frozenset[str] = self.tables
        self._resets: dict[frozenset[str], str] = {}
        self._looks: dict[frozenset[str], str] = {}
        self._plains: dict[str, str] = {}

    @classmethod
    async def set_up(cls, url: str) -> Stage:
        """Keep what is in the database now as the state from which every play begins."""
        connection = await connect(url, within=30.0)
        await connection.execute("DROP SCHEMA IF EXISTS seed CASCADE")
        await connection.execute("CREATE SCHEMA seed")
        numbers: dict[str, int] = {}
        for table in sorted(all_tables()):
            await connection.execute(f"CREATE TABLE seed.{table} AS TABLE public.{table}")
            for row in await connection.fetch(
                "SELECT column_name AS name FROM information_schema.columns WHERE table_schema = 'public' "
                "AND table_name = $1 AND (is_identity = 'YES' OR column_default LIKE 'nextval%')",
                table,
            ):
                newest = await connection.fetchval(f"SELECT COALESCE(MAX({row['name']}), 0) FROM {table}")
                where = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", table, row["name"])
                numbers[f"{table} {where}"] = newest + 1
        stage = cls(url, connection, frozenset(), numbers)
        whole = await connection.fetch(stage._look_text(stage.tables))
        known = {bits for row in whole for bits in _RANDOM.findall(row["row"] or "")}
        return cls(url, connection, frozenset(known), numbers)

    async def close(self) -> None:
        await self._connection.close()

    async def in_transaction(self, statement: str) -> None:
        """Change the seeded state (in the schema `seed`)."""
        await self._connection.execute(statement)

    def touched(self, tables: frozenset[str]) -> None:
        """Marks tables that may differ from the seed."""
        self._dirty |= tables

    async def reset(self) -> None:
        """Put back what was touched."""
        tables, self._dirty = self._dirty, frozenset[str]()
        if tables:
            await self._connection.execute(self._reset_text(tables))

    def _reset_text(self, tables: frozenset[str]) -> str:
        text = self._resets.get(tables)
        if text is None:
            parts = [
                f"DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE seed.{table};"
                for table in sorted(tables)
            ]
            parts += [
                f"SELECT setval('{name.partition(' ')[2]}', {number}, false);"
                for name, number in self._numbers.items()
                if name.partition(" ")[0] in tables
            ]
            text = self._resets[tables] = "BEGIN; " + " ".join(parts) + " COMMIT"
        return text

    async def look(self, tables: frozenset[str]) -> Snapshot:
        """Reads these tables as they are now, and the broken invariants of the whole state."""
        found: dict[str, list[dict[str, Any]]] = {table: [] for table in tables}
        problems: set[str] = set()
        for row in await self._connection.fetch(self._look_text(tables | {"run", "task", "run_pin"})):
            if row["name"] in INVARIANTS:
                problems.add(f"{row['name']}: {row['row']}")
            else:
                found.setdefault(row["name"], []).append(msgspec.json.decode(row["row"]))
        runs = {row["key"]: row["id"] for row in found["run"]}
        tasks = {row["key"]: row["uid"] for row in found["task"]}
        pins = {row["key"]: row["digest"] for row in found["run_pin"]}
        shown: dict[str, list[str]] = {}
        for table in sorted(tables):
            for row in found[table]:
                for column in _RUN_KEYS.get(table, ()):
                    row[column] = runs.get(row[column], row[column])
                for column in _TASK_KEYS.get(table, ()):
                    row[column] = tasks.get(row[column], row[column])
                if table == "run":
                    row["pin"] = pins.get(row["pin"])
                if table == "event" and row["data"].startswith(_DEFLATED):
                    row["data"] = _ANY
                if table in _COUNTED:
                    row.pop(_COUNTED[table])
            shown[table] = sorted(self._plain(msgspec.json.encode(row).decode()) for row in found[table])
        return Snapshot(shown, sorted(problems))

    def told(self, result: object) -> str:
        """Describes the result of an act in a form that can be compared."""
        if isinstance(result, FoliotError):
            return f"{type(result).__name__} {self._plain(result.message)}"
        if isinstance(result, BaseException):
            return type(result).__name__
        return self._plain(repr(result))

    def _plain(self, text: str) -> str:
        plain = self._plains.get(text)
        if plain is None:
            plain = _RANDOM.sub(lambda found: found[0] if found[0] in self._known else _ANY, text)
            if len(self._plains) < MOST_KEPT:
                self._plains[text] = plain
        return plain

    def _look_text(self, tables: frozenset[str]) -> str:
        text = self._looks.get(tables)
        if text is None:
            parts = [
                f"SELECT '{table}' AS name, to_jsonb(each)::text AS row FROM {table} AS each"
                for table in sorted(tables)
            ]
            text = self._looks[tables] = " UNION ALL ".join([*parts, PROBLEMS])
        return text
