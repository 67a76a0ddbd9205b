"""A store with many rows in every table, for whoever asks how a query is carried out when there is much.

The rows are made by the database itself, one statement a table, out of the columns that the table has: a new table is
filled without being named here. `WORDS` says which columns have few values, and how often each of them occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from foliot.store.schema import Dialect

ROWS: Final = 10_000
FEW: Final = 20
# Tables that are small whatever is stored, each with the reason. They get few rows, and may be gone through.
SMALL: Final[Mapping[str, str]] = {
    "schema_version": "one row a migration",
    "counter": "one row a counter",
    "setting": "one row a setting of the store",
    "store_life": "one row",
    "audit_head": "two rows",
    "setup_token": "one row",
    "worker": "one row a process that works; those that are gone are forgotten",
    "work_limit": "one row a limit that somebody has set",
    "work_class": "one row a class of runs that keep failing",
    "task_ending": "work that is being ended",
    "tool_bucket": "one row a tool with a limit",
    "tool_lease": "one row a process and tool with a limit",
    "tool_place": "one row a call that is at work",
    "tool_circuit": "one row a tool that keeps failing",
    "model_line": "one row a model with a limit",
    "model_limit": "one row a model with a limit",
    "model_use": "the calls of a model within the span of its limit",
    "model_place": "the calls that wait for a model",
    "model_call": "the calls of a model that are at work",
    "schedule_state": "one row a schedule",
    "webhook_endpoint": "one row a webhook",
    "webhook_state": "one row a webhook",
    "channel_reader": "one row a channel",
}
# What a migration has put there.
_THERE: Final = ("schema_version", "counter", "setting", "store_life", "audit_head", "setup_token")

_NAMESPACE = "CASE WHEN i % 20 = 0 THEN 'b' ELSE 'a' END"
# Nearly all rows have one of two values: a database that knows no more of them takes each for frequent.
_FEW = "CASE WHEN i % 1000 = 7 THEN 'few7' ELSE 'few5' END"
# Most of what is stored has ended; what is at work is one in a hundred.
_RUN_PHASE = (
    "CASE i % 200 WHEN 1 THEN 'pending' WHEN 2 THEN 'running' WHEN 3 THEN 'waiting' WHEN 4 THEN 'failed' "
    "WHEN 5 THEN 'cancelled' ELSE 'succeeded' END"
)
_TASK_PHASE = (
    "CASE i % 200 WHEN 1 THEN 'queued' WHEN 2 THEN 'running' WHEN 4 THEN 'failed' WHEN 5 THEN 'dead_lettered' "
    "WHEN 6 THEN 'cancelled' ELSE 'succeeded' END"
)
_SELDOM = "CASE WHEN i % 200 < 3 THEN {} END"
WORDS: Final[Mapping[str, str]] = {
    "namespace": _NAMESPACE,
    "agent": _FEW,
    "target": _FEW,
    "tool": _FEW,
    "lane": _FEW,
    "user_name": "'user' || CASE WHEN i % 2 = 0 THEN 5 ELSE i % 500 END",
    "session.channel": "''",
    "session_channel.user_name": "'user' || i",
    "folder.user_name": "'user' || i",
    "session_staleness.user_name": "'user' || i",
    "labels": "'{\"team\":\"t' || (i % 500) || '\"}'",
    "summary": "'{}'",
    "kind": _FEW,
    "moment": "CASE i % 2 WHEN 0 THEN 'decided' ELSE 'finished' END",
    "outcome": "CASE i % 100 WHEN 0 THEN 'denied' ELSE 'ok' END",
    "run.phase": _RUN_PHASE,
    "task.phase": _TASK_PHASE,
    "task.target_kind": "'agent'",
    "task.idempotency_key": "NULL",
    "task.parent": "CASE WHEN i % 100 = 0 THEN 'parent' || (i % 1000) ELSE '' END",
    "task.spawned_by": "CASE WHEN i % 50 = 0 THEN 'schedule/' || (i % 1000) ELSE '' END",
    "task.ended_at": "CASE WHEN i % 200 IN (1, 2) THEN NULL ELSE 1.0 * i END",
    "task.archived_at": "CASE WHEN i % 50 = 7 THEN 1.0 * i END",
    "task.timer_at": _SELDOM.format("1.0 * i"),
    "task_told.live": "CASE WHEN i % 200 IN (1, 2) THEN 1 ELSE 0 END",
    "task_told.gone": "CASE WHEN i % 50 = 7 THEN 1 ELSE 0 END",
    "worker.phase": "'ready'",
    "run.pin": f"1 + i % {ROWS // 2}",
    "run.worker": _SELDOM.format("'worker' || (i % 4)"),
    "run.lease_until": _SELDOM.format("1.0 * i"),
    "run.parent": "CASE WHEN i % 10 = 0 THEN 'c' || (i - 1) END",
    "run.parent_seq": "CASE WHEN i % 10 = 0 THEN 3 END",
    "run.root": "CASE WHEN i % 3 = 0 THEN 'c' || (i - i % 3) END",
    "run.conversation": "CASE WHEN i % 4 = 0 THEN 'c' || (i - i % 40) END",
    "event.run": "1 + i / 10",
    "event.seq": "1 + i % 10",
    "event.type": "CASE i % 10 WHEN 0 THEN 'run.created' WHEN 5 THEN 'tool.finished' ELSE 'step.started' END",
    "event.blob": "NULL",
    "task_event.task": "1 + i / 5",
    "task_event.seq": "1 + i % 5",
    "audit.run_id": "'c' || (i / 4)",
    "queue.held": "CASE WHEN i % 200 = 2 THEN 1 ELSE 0 END",
    "queue.due_at": "CASE WHEN i % 200 = 3 THEN NULL ELSE 1.0 * i END",
    "queue.let_go": "CASE WHEN i % 200 = 3 THEN 1 ELSE 0 END",
    "task_label.namespace": "'c'",
    "queue.line": "'0' || (i % 50)",
    "queue.max_running": "0",
    "queue.requirements": "'{}'",
    "blob_use.digest": "'c' || (i / 2)",
    "session.archived_at": _SELDOM.format("1.0 * i"),
    "session.turn": _SELDOM.format("'c' || i"),
    "session_turn.session": "1 + i / 10",
    "session_turn.number": "1 + i % 10",
    "inbox.owner_kind": "CASE i % 10 WHEN 0 THEN 'run' ELSE 'session' END",
    "inbox.owner": "1 + i / 10",
    "inbox.seq": "1 + i % 10",
    "inbox.status": (
        "CASE i % 200 WHEN 1 THEN 'pending' WHEN 2 THEN 'offered' WHEN 3 THEN 'dropped' ELSE 'consumed' END"
    ),
    "inbox.run_id": "'c' || i",
    "inbox.message": _SELDOM.format("{blob}"),
    "outbox.state": "CASE i % 200 WHEN 1 THEN 'pending' WHEN 2 THEN 'failed' ELSE 'sent' END",
    "outbox.target": "'target' || (i % 500)",
    "budget_hold.state": "CASE i % 200 WHEN 1 THEN 'held' ELSE 'settled' END",
    "budget_hold.holder": "'worker' || (i % 4)",
    "doubt.decision": "CASE i % 200 WHEN 1 THEN '' ELSE 'happened' END",
    "schedule_slot.schedule": "'a/' || (i % 20)",
    "schedule_slot.state": "CASE WHEN i % 200 = 1 THEN 'due' ELSE 'fired' END",
    "webhook_delivery.webhook": "'a/' || (i % 20)",
    "webhook_event.webhook": "'a/' || (i % 20)",
    "asset.session": "1 + i / 4",
    "change.previous": "i - 1",
    "resource.kind": _FEW,
    "session_words.words": "'word' || (i % 500) || ' said'",
}


def statements(tables: Mapping[str, Iterable[tuple[str, str]]], dialect: Dialect) -> list[str]:
    """Returns one INSERT for each table, given the columns (name and type) of each.

    What two rows may not have both is given to the first of them only.
    """
    sqlite = dialect == "sqlite"
    insert, unless = ("INSERT OR IGNORE", "") if sqlite else ("INSERT", " ON CONFLICT DO NOTHING")
    blob = "x'00'" if sqlite else "'\\x00'::bytea"
    words = "{}" if sqlite else "array_to_tsvector(string_to_array({}, ' '))"
    found: list[str] = []
    for table, columns in tables.items():
        if table in _THERE:
            continue
        rows = FEW if table in SMALL else ROWS
        values = {name: _value(table, name, kind.lower(), blob, words) for name, kind in columns}
        found.append(
            f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
            f'{insert} INTO "{table}" ({", ".join(values)}) SELECT {", ".join(values.values())} FROM n{unless}'
        )
    return found


def _value(table: str, name: str, kind: str, blob: str, words: str) -> str:
    said = WORDS.get(f"{table}.{name}", WORDS.get(name))
    if said is not None:
        text = said.replace("{blob}", blob)
        return words.format(text) if name == "words" else text
    if "blob" in kind or "bytea" in kind:
        return blob
    if "int" in kind:
        return "i"
    if "real" in kind or "double" in kind:
        return "1.0 * i"
    return "'c' || i"
