-- Runs and their journals.

-- `key` is a short name for event rows. `epoch` is the fence: it grows whenever the run changes hands. `last_seq` is the
-- newest event: an append moves it on and checks the fence in one statement, for a quarter of the price of looking
-- both up for every event.
CREATE TABLE run (
    key         INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    namespace   TEXT NOT NULL,
    agent       TEXT NOT NULL,
    phase       TEXT NOT NULL,
    spec        TEXT NOT NULL,
    epoch       BIGINT NOT NULL,
    last_seq    BIGINT NOT NULL,
    worker      TEXT,
    lease_until REAL,
    created_at  REAL NOT NULL,
    updated_at  REAL NOT NULL,
    parent      TEXT,
    parent_seq  BIGINT,
    labels      TEXT NOT NULL,
    summary     TEXT NOT NULL
);
CREATE INDEX run_by_namespace ON run (namespace, id);
CREATE INDEX run_by_phase ON run (phase, id);

-- An append log with an index takes twice the rows per second of a table clustered by (run, seq).
-- `data` is the encoded event; a large one is in `blob`, under its digest, and `data` is empty.
CREATE TABLE event (
    run  BIGINT NOT NULL,
    seq  BIGINT NOT NULL,
    at   REAL NOT NULL,
    type TEXT NOT NULL,
    data BLOB NOT NULL,
    blob TEXT
);
CREATE UNIQUE INDEX event_by_run ON event (run, seq);

-- What someone without the lease wants the holder to take into the journal.
CREATE TABLE signal (
    id     TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    at     REAL NOT NULL,
    type   TEXT NOT NULL,
    data   BLOB NOT NULL
);
CREATE INDEX signal_by_run ON signal (run_id, at);

-- Content stored once under its SHA-256; `blob_use` says which runs need it.
CREATE TABLE blob (
    digest     TEXT PRIMARY KEY,
    data       BLOB NOT NULL,
    created_at REAL NOT NULL
);
CREATE TABLE blob_use (
    digest TEXT NOT NULL,
    run    BIGINT NOT NULL,
    PRIMARY KEY (digest, run)
) WITHOUT ROWID;
CREATE INDEX blob_use_by_run ON blob_use (run);
