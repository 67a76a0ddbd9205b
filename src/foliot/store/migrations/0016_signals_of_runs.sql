-- The id of a signal is unique within its run: two runs may be told something under the same id.

CREATE TABLE run_signal (
    run_id TEXT NOT NULL,
    id     TEXT NOT NULL,
    at     REAL NOT NULL,
    type   TEXT NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (run_id, id)
);
INSERT INTO run_signal (run_id, id, at, type, data) SELECT run_id, id, at, type, data FROM signal;
DROP TABLE signal;
ALTER TABLE run_signal RENAME TO signal;
CREATE INDEX signal_by_run ON signal (run_id, at);
