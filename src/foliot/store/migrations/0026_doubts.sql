-- Calls that may have acted and of which nobody has said how they ended. Written by the append that records it, under the
-- lock of the run; a row of a run that has ended is settled by a person, in `decision`, with that run locked.
-- `key` is the idempotency key of the call that may have acted, `call_id` the call of this run that stands for it.
-- `family` is the task or the run that all runs belong to which are held by it, `signature` names tool and arguments.
CREATE TABLE doubt (
    run_id     TEXT NOT NULL,
    key        TEXT NOT NULL,
    call_id    TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    family     TEXT NOT NULL,
    signature  TEXT NOT NULL,
    tool       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    at         REAL NOT NULL,
    until      REAL,
    decision   TEXT NOT NULL DEFAULT '',
    decided_by TEXT NOT NULL DEFAULT '',
    decided_at REAL,
    note       TEXT NOT NULL DEFAULT '',
    result     TEXT,
    late       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, key)
) WITHOUT ROWID;
CREATE INDEX doubt_by_call ON doubt (family, signature);
CREATE INDEX doubt_by_key ON doubt (key);
CREATE INDEX doubt_open ON doubt (at, run_id) WHERE decision = '';

-- The task or the run that a run belongs to together with others; nothing for one that began by itself.
ALTER TABLE run ADD COLUMN root TEXT;
CREATE INDEX run_by_root ON run (root, phase) WHERE root IS NOT NULL;
