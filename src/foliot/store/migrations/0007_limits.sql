-- Limits on tools that several processes share: rates, places and circuits. `key` is the namespace and name of the tool.

-- A token bucket: `tokens` were in it at the time `at`.
CREATE TABLE tool_bucket (
    key    TEXT PRIMARY KEY,
    tokens REAL NOT NULL,
    at     REAL NOT NULL
);

-- Tokens that a process has taken in advance and may use until `until`. They count as being in the bucket until then, so
-- that what is in all hands together is never more than the bucket holds.
CREATE TABLE tool_lease (
    key    TEXT NOT NULL,
    holder TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    until  REAL NOT NULL,
    PRIMARY KEY (key, holder)
) WITHOUT ROWID;

-- One row for each call under way of a tool whose calls are limited in number.
CREATE TABLE tool_place (
    key    TEXT NOT NULL,
    holder TEXT NOT NULL,
    number BIGINT NOT NULL,
    until  REAL NOT NULL,
    PRIMARY KEY (key, holder, number)
) WITHOUT ROWID;

-- Tools in trouble; one that is well has no row. `opened_at` is set when it is left alone. `probe` is the process that
-- tries it again, until `probe_until`.
CREATE TABLE tool_circuit (
    key         TEXT PRIMARY KEY,
    failures    BIGINT NOT NULL,
    opened_at   REAL,
    probe       TEXT,
    probe_until REAL NOT NULL
);
