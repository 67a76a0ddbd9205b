-- The limits that endpoints declare on a line (see 0027), as they were when somebody last asked there. All of one line
-- hold together. `version` is that of the endpoint: one that was changed or deleted since counts no more.
CREATE TABLE model_limit (
    endpoint    TEXT NOT NULL,
    model       TEXT NOT NULL,
    key         TEXT NOT NULL,
    version     TEXT NOT NULL,
    requests    BIGINT,
    tokens      BIGINT,
    per         REAL NOT NULL,
    concurrency BIGINT,
    burst       BIGINT,
    PRIMARY KEY (endpoint, model)
) WITHOUT ROWID;

CREATE INDEX model_limit_key ON model_limit (key);
