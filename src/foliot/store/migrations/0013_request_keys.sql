-- Requests that came with an `Idempotency-Key`, so that each is done once by however many servers. Times are seconds
-- since 1970.

-- `id` is a digest of who sent it and of the key, `request` one of what was asked for. `claim` is who does it, believed
-- until `held_until`. `status`, `headers` and `body` are what was answered; without a status it is under way, or was
-- broken off. It is all forgotten at `forget_at`.
CREATE TABLE request_key (
    id         TEXT PRIMARY KEY,
    request    TEXT NOT NULL,
    claim      TEXT NOT NULL,
    held_until REAL NOT NULL,
    forget_at  REAL NOT NULL,
    status     BIGINT,
    headers    TEXT,
    body       BLOB
) WITHOUT ROWID;
CREATE INDEX request_key_by_end ON request_key (forget_at);
