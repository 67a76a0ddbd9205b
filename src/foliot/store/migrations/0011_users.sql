-- People who log in: their accounts, their sessions in browsers, and what makes guessing slow. Times are seconds since
-- 1970. Whatever lets somebody in is kept as a digest only.

-- `password` is an Argon2id hash with its parameters. `grants` is a JSON object: roles by namespace, `*` being all of
-- them. `password_at` is when the password was set, `login_at` when it last let somebody in.
CREATE TABLE user_account (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    password    TEXT NOT NULL,
    grants      TEXT NOT NULL,
    created_at  REAL NOT NULL,
    created_by  TEXT NOT NULL,
    password_at REAL NOT NULL,
    disabled_at REAL,
    login_at    REAL
) WITHOUT ROWID;

-- `digest` is of what the browser holds. `user_id` and `grants`: the account whose roles hold, or with a blank id the
-- roles that an identity provider's word gave. A session ends when it is not used until `idle_until`, and at `ends_at`.
CREATE TABLE login_session (
    digest     TEXT PRIMARY KEY,
    user_id    TEXT NOT NULL,
    name       TEXT NOT NULL,
    grants     TEXT NOT NULL,
    created_at REAL NOT NULL,
    idle_until REAL NOT NULL,
    ends_at    REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX login_session_by_user ON login_session (user_id);
CREATE INDEX login_session_by_end ON login_session (idle_until);

-- The one token with which the first account may be made over HTTP.
CREATE TABLE setup_token (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    expires_at REAL NOT NULL
);

-- Who was sent to an identity provider and is expected back, once. `state` and `browser` are digests.
CREATE TABLE login_flow (
    state      TEXT PRIMARY KEY,
    browser    TEXT NOT NULL,
    return_to  TEXT NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX login_flow_by_end ON login_flow (expires_at);

-- How far ahead of its allowance each peer and each name is: attempts push `busy_until` forward, time catches up.
CREATE TABLE login_attempt (
    subject    TEXT PRIMARY KEY,
    busy_until REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX login_attempt_by_end ON login_attempt (busy_until);
