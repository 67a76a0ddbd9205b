-- Limits on how often models are asked, which all processes of a store keep to together. `key` stands for the address, the
-- key and the model at a provider; it says nothing about the key to whoever reads it.

-- A line. `last` is the number of the place that was given last, `seconds` what a call takes, about. Until `paused_until`
-- the provider wants to hear nothing; `window` is the longest window that anybody counts by.
CREATE TABLE model_line (
    key          TEXT PRIMARY KEY,
    last         BIGINT NOT NULL,
    seconds      REAL NOT NULL,
    paused_until REAL NOT NULL,
    window_size  REAL NOT NULL
);

-- What began in one slot of time, which ends at `at`.
CREATE TABLE model_use (
    key      TEXT NOT NULL,
    at       REAL NOT NULL,
    requests BIGINT NOT NULL,
    tokens   BIGINT NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;

-- Whoever waits, in the order of `number`. Its turn is expected at `due`.
CREATE TABLE model_place (
    key    TEXT NOT NULL,
    number BIGINT NOT NULL,
    asker  TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    due    REAL NOT NULL,
    PRIMARY KEY (key, number)
) WITHOUT ROWID;

CREATE INDEX model_place_asker ON model_place (asker);

-- Calls under way of a model that may only answer so many at a time. A process that dies leaves them until `until`.
CREATE TABLE model_call (
    key   TEXT NOT NULL,
    asker TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (key, asker)
) WITHOUT ROWID;
