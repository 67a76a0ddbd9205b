-- Migrations 0004 and 0008 were edited after builds had made stores with them. Such a store has a column of workers that is
-- never written, and must not be null: no worker could be registered there. And an index that nothing reads by.
DROP INDEX IF EXISTS audit_by_tool;

-- only: postgres
ALTER TABLE worker DROP COLUMN IF EXISTS current;

-- only: sqlite
-- SQLite drops no column that may not be there: the table is made anew.
CREATE TABLE worker_anew (
    name         TEXT PRIMARY KEY,
    identity     TEXT NOT NULL,
    region       TEXT NOT NULL,
    gpu          BIGINT NOT NULL,
    models       TEXT NOT NULL,
    labels       TEXT NOT NULL,
    capacity     BIGINT NOT NULL,
    phase        TEXT NOT NULL,
    started_at   REAL NOT NULL,
    heartbeat_at REAL NOT NULL,
    beats        BIGINT NOT NULL DEFAULT 0,
    clock_off    REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO worker_anew (name, identity, region, gpu, models, labels, capacity, phase, started_at, heartbeat_at, beats, clock_off)
SELECT name, identity, region, gpu, models, labels, capacity, phase, started_at, heartbeat_at, beats, clock_off FROM worker;
DROP TABLE worker;
ALTER TABLE worker_anew RENAME TO worker;
-- only: both
