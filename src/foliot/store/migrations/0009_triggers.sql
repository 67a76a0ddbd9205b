-- What schedules and webhooks remember: slots that were fired, deliveries that were taken.

-- Since when the slots of a schedule count (`since`, seconds since 1970), under which `timing`. `schedule` is the uid.
-- Whoever decides about slots holds this row, so decisions about one schedule come one after another.
CREATE TABLE schedule_state (
    schedule TEXT PRIMARY KEY,
    timing   TEXT NOT NULL,
    since    REAL NOT NULL
);

-- One row for each slot that somebody decided about. `state`: due (a task is being made), fired, skipped. `slot` is in
-- milliseconds since 1970; `kind`: clock, or manual for a task that a person asked for. `command` is all that is needed
-- to finish what whoever claimed the slot may not have finished.
CREATE TABLE schedule_slot (
    schedule   TEXT NOT NULL,
    slot       BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    task       TEXT NOT NULL,
    command    TEXT NOT NULL,
    claimed_at REAL NOT NULL,
    decided_at REAL,
    PRIMARY KEY (schedule, slot)
) WITHOUT ROWID;
CREATE INDEX schedule_slot_claimed ON schedule_slot (schedule, slot) WHERE state = 'due';

-- The addresses of webhooks: random, and found without looking through webhooks. An address that was replaced may be
-- kept for a while, until `expires_at`.
CREATE TABLE webhook_endpoint (
    endpoint   TEXT PRIMARY KEY,
    webhook    TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL
);
CREATE INDEX webhook_endpoint_by_webhook ON webhook_endpoint (webhook, created_at);

-- What was counted for a webhook, and what came last.
CREATE TABLE webhook_state (
    webhook          TEXT PRIMARY KEY,
    accepted         BIGINT NOT NULL,
    duplicate        BIGINT NOT NULL,
    rejected         BIGINT NOT NULL,
    filtered         BIGINT NOT NULL,
    last_at          REAL NOT NULL,
    last_event       TEXT NOT NULL,
    last_task        TEXT NOT NULL,
    last_error       TEXT NOT NULL
);

-- Events that were taken, each once until it expires. `event` is a digest of the sender's id, or of what was signed.
-- `task` is blank while the task is being made; `taken_at` tells one event from a later one with the same id.
CREATE TABLE webhook_event (
    webhook    TEXT NOT NULL,
    event      TEXT NOT NULL,
    taken_at   BIGINT NOT NULL,
    expires_at REAL NOT NULL,
    task       TEXT NOT NULL,
    PRIMARY KEY (webhook, event)
) WITHOUT ROWID;
CREATE INDEX webhook_event_by_end ON webhook_event (expires_at);

-- The newest deliveries of each webhook. The body is kept only of those that were signed, to be replayed.
CREATE TABLE webhook_delivery (
    key     INTEGER PRIMARY KEY,
    id      TEXT NOT NULL UNIQUE,
    webhook TEXT NOT NULL,
    at      REAL NOT NULL,
    outcome TEXT NOT NULL,
    reason  TEXT NOT NULL,
    detail  TEXT NOT NULL,
    status  BIGINT NOT NULL,
    event   TEXT NOT NULL,
    task    TEXT NOT NULL,
    size    BIGINT NOT NULL,
    digest  TEXT NOT NULL,
    headers TEXT NOT NULL,
    body    BLOB
);
CREATE INDEX webhook_delivery_by_webhook ON webhook_delivery (webhook, key);
