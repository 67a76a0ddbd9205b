-- Tasks: accepted requests for work, what happened to each, and what they remember.

-- `digest` is over the normalised command: the same key with another one is a conflict. `plan` names stored content:
-- the graph and the frozen definitions of its agents. `graph` is the fold of the task's events, kept so that a
-- transaction need not read them all. `revision` grows with every change: each one names the revision it follows.
-- `timer_at` is when somebody must look at the task although nothing happened (a join that waits too long).
CREATE TABLE task (
    key             INTEGER PRIMARY KEY,
    uid             TEXT NOT NULL UNIQUE,
    namespace       TEXT NOT NULL,
    name            TEXT NOT NULL,
    target_kind     TEXT NOT NULL,
    target          TEXT NOT NULL,
    idempotency_key TEXT,
    digest          TEXT NOT NULL,
    phase           TEXT NOT NULL,
    revision        BIGINT NOT NULL,
    attempt         BIGINT NOT NULL,
    priority        BIGINT NOT NULL,
    lane            TEXT NOT NULL,
    spawned_by      TEXT NOT NULL,
    parent          TEXT NOT NULL,
    labels          TEXT NOT NULL,
    command         TEXT NOT NULL,
    plan            TEXT NOT NULL,
    graph           BLOB NOT NULL,
    summary         TEXT NOT NULL,
    timer_at        REAL,
    created_at      REAL NOT NULL,
    updated_at      REAL NOT NULL,
    started_at      REAL,
    ended_at        REAL,
    archived_at     REAL
);
CREATE UNIQUE INDEX task_by_name ON task (namespace, name);
CREATE UNIQUE INDEX task_by_command ON task (namespace, target_kind, target, idempotency_key)
 WHERE idempotency_key IS NOT NULL;
CREATE INDEX task_by_namespace ON task (namespace, key);
CREATE INDEX task_by_phase ON task (phase, key);
CREATE INDEX task_by_plan ON task (plan);
CREATE INDEX task_by_timer ON task (timer_at) WHERE timer_at IS NOT NULL;
CREATE INDEX task_by_parent ON task (parent, key) WHERE parent <> '';
CREATE INDEX task_by_spawner ON task (spawned_by, key) WHERE spawned_by <> '';

-- What happened to a task: one numbered fact per row, as runs have.
CREATE TABLE task_event (
    task BIGINT NOT NULL,
    seq  BIGINT NOT NULL,
    at   REAL NOT NULL,
    type TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX task_event_by_task ON task_event (task, seq);

-- Which run does which message of a task.
CREATE TABLE task_run (
    task    BIGINT NOT NULL,
    message TEXT NOT NULL,
    run_id  TEXT NOT NULL,
    PRIMARY KEY (task, message)
) WITHOUT ROWID;
CREATE UNIQUE INDEX task_run_by_run ON task_run (run_id);

-- What the agents of one task share.
CREATE TABLE task_memory (
    task       BIGINT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    by_run     TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (task, name)
) WITHOUT ROWID;
