-- Who may call the server: tokens. Of a token only a digest is kept; the text is shown once, when it is made.

-- `namespaces` and `roles` are JSON lists; the namespace `*` is all of them. Times are seconds since 1970.
CREATE TABLE api_token (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    digest     TEXT NOT NULL,
    namespaces TEXT NOT NULL,
    roles      TEXT NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    expires_at REAL,
    revoked_at REAL,
    used_at    REAL
) WITHOUT ROWID;
-- A name is free again when its token is revoked.
CREATE UNIQUE INDEX api_token_by_name ON api_token (name) WHERE revoked_at IS NULL;
