-- The queue: runs of tasks that have not ended. It stays small however many runs have ended.

-- `due_at` is when a worker may take the run: now, after a pause, when a timer of the run goes off, or when the lease of
-- whoever holds it is over. NULL: not before somebody signals. `held` is 1 while a worker has it.
CREATE TABLE queue (
    run          BIGINT PRIMARY KEY,
    run_id       TEXT NOT NULL UNIQUE,
    task         BIGINT NOT NULL,
    namespace    TEXT NOT NULL,
    agent        TEXT NOT NULL,
    lane         TEXT NOT NULL,
    class        TEXT NOT NULL,
    priority     BIGINT NOT NULL,
    due_at       REAL,
    held         BIGINT NOT NULL,
    requirements TEXT NOT NULL
);
CREATE INDEX queue_by_due ON queue (namespace, priority, due_at, run);
CREATE INDEX queue_by_class ON queue (class, held);
