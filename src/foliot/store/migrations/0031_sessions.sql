-- Conversations that last. A turn of a session is a run; `head` is the turn that the next one goes on after, `turn` the
-- run at work, and at most one is. `arrivals` counts what was said, so that arrival numbers have no gaps.
CREATE TABLE session (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    agent TEXT NOT NULL,
    user_name TEXT NOT NULL,
    channel TEXT NOT NULL,
    kind TEXT NOT NULL,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    options TEXT NOT NULL,
    created_at REAL NOT NULL,
    active_at REAL NOT NULL,
    archived_at REAL,
    head TEXT,
    turn TEXT,
    turns BIGINT NOT NULL,
    arrivals BIGINT NOT NULL
);
CREATE INDEX session_by_activity ON session (namespace, active_at, key);
CREATE INDEX session_of_agent ON session (namespace, agent, active_at, key);
CREATE INDEX session_of_user ON session (namespace, user_name, active_at, key);
CREATE INDEX session_archived ON session (archived_at) WHERE archived_at IS NOT NULL;

-- The active session of an agent, a user and a channel: whoever resolves, rotates or archives locks this row first.
CREATE TABLE session_channel (
    namespace TEXT NOT NULL,
    agent TEXT NOT NULL,
    user_name TEXT NOT NULL,
    channel TEXT NOT NULL,
    active TEXT,
    PRIMARY KEY (namespace, agent, user_name, channel)
);

-- The turns of a session in the order in which they began. `parent` is the number of the turn that one goes on after,
-- 0 for none: an answer that was asked for again leaves the earlier one as a branch.
CREATE TABLE session_turn (
    key INTEGER PRIMARY KEY,
    session BIGINT NOT NULL,
    number BIGINT NOT NULL,
    run_id TEXT NOT NULL,
    parent BIGINT NOT NULL,
    began_at REAL NOT NULL,
    ended_at REAL
);
CREATE UNIQUE INDEX session_turn_number ON session_turn (session, number);
CREATE UNIQUE INDEX session_turn_of_run ON session_turn (run_id);

-- The words of each turn that has ended, under the key of the turn, for whoever searches: words only, the texts
-- themselves are in the journals. Two of the words say whose they are.
-- only: sqlite
CREATE VIRTUAL TABLE session_words USING fts5(
    words, content='', contentless_delete=1, detail=none, tokenize='unicode61 remove_diacritics 0');
-- only: postgres
CREATE TABLE session_words (rowid bigint PRIMARY KEY, words tsvector NOT NULL);
CREATE INDEX session_words_by_word ON session_words USING gin (words);
-- only: both

-- What was said to a session or, outside of sessions, to a run: `owner` is the key of its row. A message that is in a
-- journal by now is not kept here a second time.
CREATE TABLE inbox (
    owner_kind TEXT NOT NULL,
    owner BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    mode TEXT NOT NULL,
    message BLOB,
    digest TEXT NOT NULL,
    by_name TEXT NOT NULL,
    place TEXT NOT NULL,
    details TEXT NOT NULL,
    status TEXT NOT NULL,
    steered BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    run_id TEXT,
    at REAL NOT NULL,
    PRIMARY KEY (owner_kind, owner, seq)
);
CREATE UNIQUE INDEX inbox_by_id ON inbox (owner_kind, owner, id);
CREATE INDEX inbox_open ON inbox (owner_kind, owner, seq) WHERE status IN ('pending', 'offered');
CREATE INDEX inbox_dropped ON inbox (owner_kind, owner, seq) WHERE status = 'dropped' AND message IS NOT NULL;

-- Files that people sent to a session, whose content stays for as long as the session. A piece of a large file has no
-- name.
CREATE TABLE asset (
    session BIGINT NOT NULL,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    size BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (session, digest, name)
);
CREATE INDEX asset_by_digest ON asset (digest);
CREATE INDEX inbox_of_run ON inbox (run_id) WHERE run_id IS NOT NULL;

-- What is to be delivered: the answer of a run to a target, or, under a key of its own in the place of a run, a text. The
-- answer itself stays in the journal of its run. `receipt` is what a channel has delivered of it so far; of a `draft` it
-- is what people see while the answer is written.
CREATE TABLE outbox (
    key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    target TEXT NOT NULL,
    namespace TEXT NOT NULL,
    channel TEXT NOT NULL,
    address TEXT NOT NULL,
    text TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    due_at REAL NOT NULL,
    receipt TEXT NOT NULL,
    error TEXT NOT NULL,
    created_at REAL NOT NULL,
    ended_at REAL,
    holder TEXT
);
CREATE UNIQUE INDEX outbox_of_run ON outbox (run_id, target);
CREATE INDEX outbox_due ON outbox (due_at) WHERE state = 'pending';
CREATE INDEX outbox_waiting ON outbox (target, key) WHERE state = 'pending';
CREATE INDEX outbox_by_namespace ON outbox (namespace, key);

-- Messages that a source has handed on: a channel, a hook, a schedule. Each is taken once, whatever session it goes to.
-- `id` comes from the source and its id for the message. A command has a `target` that it acts on, and is done again
-- only as long as it has no `outcome`.
CREATE TABLE taken_message (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    digest TEXT NOT NULL,
    target TEXT NOT NULL,
    seq BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    reply TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX taken_message_of_source ON taken_message (source);
CREATE INDEX taken_message_by_time ON taken_message (at);

-- Who reads a channel that can be read by one process only, until when, and how far.
CREATE TABLE channel_reader (
    channel TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    lease_until REAL NOT NULL,
    place TEXT NOT NULL,
    error TEXT NOT NULL
);
-- Signals in the order in which they were stored, whatever the clocks of their senders say.
ALTER TABLE signal ADD COLUMN arrival BIGINT NOT NULL DEFAULT 0;

-- The agent that people chose for a chat of a channel.
CREATE TABLE channel_choice (
    channel TEXT NOT NULL,
    chat TEXT NOT NULL,
    agent TEXT NOT NULL,
    PRIMARY KEY (channel, chat)
);
