-- The queue: runs of tasks that have not ended. It stays small however many runs have ended.

-- `due_at` is when a worker may take the run: now, after a pause, when a timer of the run goes off, or when the lease of
-- whoever holds it is over. NULL: not before somebody signals. `held` is 1 while a worker has it. `max_running` is how
-- many runs of its agent may be held at once (0: any number), frozen with the agent's definition.
-- `line` puts runs that are alike (priority, namespace, agent, lane, class, requirements) behind one another, urgent
-- lines first: a worker looks at lines, not at runs, so what it may not take costs it one look however much of it waits.
CREATE TABLE queue (
    run          BIGINT PRIMARY KEY,
    run_id       TEXT NOT NULL UNIQUE,
    task         BIGINT NOT NULL,
    namespace    TEXT NOT NULL,
    agent        TEXT NOT NULL,
    lane         TEXT NOT NULL,
    class        TEXT NOT NULL,
    priority     BIGINT NOT NULL,
    line         TEXT NOT NULL,
    due_at       REAL,
    held         BIGINT NOT NULL,
    max_running  BIGINT NOT NULL,
    requirements TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX queue_by_line ON queue (held, line, due_at, run) WHERE due_at IS NOT NULL;
CREATE INDEX queue_held_by_due ON queue (due_at) WHERE held = 1;
CREATE INDEX queue_by_task ON queue (task);
CREATE INDEX queue_held_by_agent ON queue (namespace, agent) WHERE held = 1;
CREATE INDEX queue_held_by_lane ON queue (namespace, lane) WHERE held = 1;
-- only: postgres
-- Every run passes through, so dead rows gather at the head of every line: clear them away early.
ALTER TABLE queue SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
                       autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 2000);
-- only: both

-- How many runs may be held at once: scope namespace (name `ns`), agent (`ns/agent`), lane (`ns/lane`), or definition,
-- whose rows only serve as locks for `queue.max_running`. What is held is counted, never stored: it cannot drift.
CREATE TABLE work_limit (
    scope       TEXT NOT NULL,
    name        TEXT NOT NULL,
    max_running BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

-- Execution classes of which the last runs failed; a class that is well has no row. `failures` are consecutive.
-- `opened_at`: nothing of the class is given out since then, but for one run at a time after a while, `probe`.
CREATE TABLE work_class (
    key        TEXT PRIMARY KEY,
    namespace  TEXT NOT NULL,
    agent      TEXT NOT NULL,
    lane       TEXT NOT NULL,
    failures   BIGINT NOT NULL,
    failed_at  REAL NOT NULL,
    opened_at  REAL,
    probe      BIGINT
) WITHOUT ROWID;
CREATE INDEX work_class_open ON work_class (opened_at) WHERE opened_at IS NOT NULL;

-- Processes that take runs. `identity` is the process; the same name started again replaces it.
CREATE TABLE worker (
    name         TEXT PRIMARY KEY,
    identity     TEXT NOT NULL,
    region       TEXT NOT NULL,
    gpu          BIGINT NOT NULL,
    models       TEXT NOT NULL,
    labels       TEXT NOT NULL,
    capacity     BIGINT NOT NULL,
    phase        TEXT NOT NULL,
    started_at   REAL NOT NULL,
    heartbeat_at REAL NOT NULL
) WITHOUT ROWID;
