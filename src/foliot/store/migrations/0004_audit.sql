-- The audit log: what became of every tool call, in an order that cannot be changed unnoticed.

-- `data` is the record as canonical JSON, with its own number and the hash of the record before it; `hash` is the SHA-256
-- of `data`. The other columns repeat what is in `data`, to search by.
CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY,
    at        REAL NOT NULL,
    moment    TEXT NOT NULL,
    namespace TEXT NOT NULL,
    agent     TEXT NOT NULL,
    tool      TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    call_id   TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    data      TEXT NOT NULL,
    hash      TEXT NOT NULL
);
CREATE INDEX audit_by_run ON audit (run_id, seq);

-- The newest record. One row: writers take turns at it, and a tail that is cut off is missed by it.
CREATE TABLE audit_head (
    name TEXT PRIMARY KEY,
    seq  BIGINT NOT NULL,
    hash TEXT NOT NULL
);
INSERT INTO audit_head (name, seq, hash) VALUES ('head', 0, '');
