-- Everything that a store holds. One text for both databases (see store/schema.py).
--
-- Times are seconds since 1970 unless a comment says otherwise.
--
-- Lists show the newest first. Their indices end with the negative key, which nothing else is sorted by: PostgreSQL
-- then cannot walk along the keys of all rows instead. Those of filters within a namespace end with `0 - key`:
-- otherwise PostgreSQL takes the index of the namespace when it knows few values of the filter, and goes through all to
-- find a rare one. The namespace stands second where a list over all namespaces has no other index.

-- --- resources -------------------------------------------------------------------------------------------------------

-- What people declare, and every change to it in the order of the commits.

-- Store-wide numbers. 'revision' is the newest change, 'compacted' the newest one that was forgotten. 'task_told' and
-- 'task_dropped' number what watches of tasks were told: see the table task_told.
CREATE TABLE counter (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counter (name, value) VALUES ('revision', 0), ('compacted', 0), ('task_told', 0), ('task_dropped', 0);

-- Store-wide texts, such as the id of the key that an unfinished rotation seals with.
CREATE TABLE setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- Resources. `key` is kind, namespace and name joined by U+001F, which no name may contain and which sorts before every
-- character that one may: so one column orders, pages and addresses resources. `document` is the whole resource as
-- JSON. `owners` says who owns which field: a JSON object of managers, each with the JSON pointers of its fields.
CREATE TABLE resource (
    key       TEXT PRIMARY KEY,
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   BIGINT NOT NULL,
    document  TEXT NOT NULL,
    owners    TEXT NOT NULL
);
CREATE INDEX resource_by_namespace ON resource (namespace, key);

-- Labels apart from the documents, so that `-l app=web` reads what matches and not the whole kind.
CREATE TABLE resource_label (
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    key   TEXT NOT NULL,
    PRIMARY KEY (label, value, key)
) WITHOUT ROWID;

-- One row for each revision; secret values are masked. `previous` is the revision that the resource had before, 0 when
-- it was new.
CREATE TABLE change (
    revision  BIGINT PRIMARY KEY,
    previous  BIGINT NOT NULL,
    action    TEXT NOT NULL,
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    document  TEXT NOT NULL
);
CREATE INDEX change_by_kind ON change (kind, (revision + 0));

-- What was agreed to about each tool of each MCP server, apart from what people declare: no apply, edit or deletion of
-- a Tool or an McpServer touches it. See resources/agreed.py for what the columns mean.
CREATE TABLE mcp_pin (
    namespace  TEXT NOT NULL,
    server     TEXT NOT NULL,
    tool       TEXT NOT NULL,
    name       TEXT NOT NULL,
    pin        TEXT NOT NULL,
    definition TEXT NOT NULL,
    levels     TEXT NOT NULL,
    held       TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, server, tool)
) WITHOUT ROWID;
CREATE INDEX mcp_pin_by_name ON mcp_pin (namespace, name);

-- --- runs ------------------------------------------------------------------------------------------------------------

-- Runs. `key` is a short name for event rows. `epoch` is the fence: it grows whenever the run changes hands. `last_seq`
-- is the newest event: an append moves it on and checks the fence in one statement, for a quarter of the price of
-- looking both up for every event. `root` is the task or the run that it belongs to together with others; a run that
-- began by itself has none. `conversation` is the id of the first turn of its conversation; a turn refers to the ones
-- before it, so none is forgotten while a later one is kept. `pin` is what the run is pinned to: see run_pin.
-- `left_seq` says how whoever wrote the last event came to leave the run: it is the `seq` of that event, and negative where
-- the run was taken without having been released. The first claim behind an event settles it: later ones may be of
-- holders that died, or gave the run back, before they had written anything. It is 0 before the first claim.
-- `cancelling` is 1 once the run was told to end and 2 once who drives it has heard it: nothing is appended in between.
CREATE TABLE run (
    key          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    namespace    TEXT NOT NULL,
    agent        TEXT NOT NULL,
    phase        TEXT NOT NULL,
    epoch        BIGINT NOT NULL,
    last_seq     BIGINT NOT NULL,
    worker       TEXT,
    lease_until  REAL,
    created_at   REAL NOT NULL,
    updated_at   REAL NOT NULL,
    parent       TEXT,
    parent_seq   BIGINT,
    labels       TEXT NOT NULL,
    summary      TEXT NOT NULL,
    root         TEXT,
    conversation TEXT,
    pin          BIGINT NOT NULL,
    cancelling   SMALLINT,
    left_seq     BIGINT NOT NULL DEFAULT 0
);
-- What runs have started: whoever cancels one cancels all below it in the same transaction.
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL AND parent_seq IS NULL;
CREATE INDEX run_by_root ON run (root, phase) WHERE root IS NOT NULL;
CREATE INDEX run_by_conversation ON run (conversation, updated_at) WHERE conversation IS NOT NULL;
CREATE INDEX run_by_pin ON run (pin);
CREATE INDEX run_by_namespace ON run (namespace, (-key));
-- What is over, by the time of its end, is what a purge looks for, however much there is that is young.
CREATE INDEX run_by_end ON run (updated_at, key) WHERE phase IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX run_by_agent ON run (agent, namespace, (0 - key));
-- The phase of a live run changes often; an ended run keeps its phase. Each kind has an index of its own.
CREATE INDEX run_live ON run (phase, namespace, (0 - key)) WHERE phase IN ('pending', 'running', 'waiting');
CREATE INDEX run_ended ON run (phase, namespace, (0 - key)) WHERE phase IN ('succeeded', 'failed', 'cancelled');

-- What runs are pinned to, once for all runs of a definition: their first events are stored without its `data` (see
-- store/journal/packing.py), and it owns their `spec`.
CREATE TABLE run_pin (
    key    INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    spec   TEXT NOT NULL,
    data   BLOB NOT NULL
);
CREATE INDEX run_pin_of_spec ON run_pin (spec);

-- An append log with an index takes twice the rows per second of a table clustered by (run, seq). `data` is the encoded
-- event; a large one is in `blob`, under its digest, and `data` is empty. `link` chains it to the event before it
-- (store/journal/chain.py).
CREATE TABLE event (
    run  BIGINT NOT NULL,
    seq  BIGINT NOT NULL,
    at   REAL NOT NULL,
    type TEXT NOT NULL,
    data BLOB NOT NULL,
    blob TEXT,
    link BLOB NOT NULL
);
CREATE UNIQUE INDEX event_by_run ON event (run, seq);

-- What someone without the lease wants the holder to take into the journal. An id is unique within its run. `arrival`
-- is the order of signals, whatever the clocks of their senders say.
CREATE TABLE signal (
    run_id  TEXT NOT NULL,
    id      TEXT NOT NULL,
    at      REAL NOT NULL,
    type    TEXT NOT NULL,
    data    BLOB NOT NULL,
    arrival BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, id)
);

-- Calls that may have acted and of which nobody has said how they ended. Written by the append that records it, under
-- the lock of the run; a row of a run that has ended is settled by a person, in `decision`, with that run locked. `key`
-- is the idempotency key of the call that may have acted, `call_id` the call of this run that stands for it. `family`
-- is the task or the run that all runs belong to which are held by it, `signature` names tool and arguments. `attempt`
-- says which attempt at the call may have acted: a decision about an earlier one says nothing about it. 0: it is not
-- known.
CREATE TABLE doubt (
    run_id     TEXT NOT NULL,
    key        TEXT NOT NULL,
    call_id    TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    family     TEXT NOT NULL,
    signature  TEXT NOT NULL,
    tool       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    at         REAL NOT NULL,
    until      REAL,
    decision   TEXT NOT NULL DEFAULT '',
    decided_by TEXT NOT NULL DEFAULT '',
    decided_at REAL,
    note       TEXT NOT NULL DEFAULT '',
    result     TEXT,
    late       BIGINT NOT NULL DEFAULT 0,
    attempt    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, key)
) WITHOUT ROWID;
CREATE INDEX doubt_by_call ON doubt (family, signature);
CREATE INDEX doubt_by_key ON doubt (key);
CREATE INDEX doubt_open ON doubt (at, run_id) WHERE decision = '';

-- Content stored once under its SHA-256; `blob_use` says which runs need it.
CREATE TABLE blob (
    digest     TEXT PRIMARY KEY,
    data       BLOB NOT NULL,
    created_at REAL NOT NULL
);
-- Old content is found without a look at the content itself, which stands before the other columns.
CREATE INDEX blob_by_age ON blob (created_at, digest);

CREATE TABLE blob_use (
    digest TEXT NOT NULL,
    run    BIGINT NOT NULL,
    PRIMARY KEY (digest, run)
) WITHOUT ROWID;
CREATE INDEX blob_use_by_run ON blob_use (run);

-- --- audit -----------------------------------------------------------------------------------------------------------

-- Records of what was done. `data` is the record as canonical JSON, with its own number and the hash of the record
-- before it; `hash` is the SHA-256 of `data`. The other columns repeat what is in `data`, to search by.
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
CREATE INDEX audit_by_namespace ON audit (namespace, (-seq));
CREATE INDEX audit_by_tool ON audit (namespace, tool, (0 - seq));

-- The newest record. One row: writers take turns at it, and a tail that is cut off is missed by it.
CREATE TABLE audit_head (
    name TEXT PRIMARY KEY,
    seq  BIGINT NOT NULL,
    hash TEXT NOT NULL
);
INSERT INTO audit_head (name, seq, hash) VALUES ('head', 0, '');

-- --- tasks -----------------------------------------------------------------------------------------------------------

-- Tasks. `digest` is over the normalised command: the same key with another one is a conflict. `plan` names stored
-- content: the graph and the frozen definitions of its agents. `graph` is the fold of the task's events, kept so that a
-- transaction need not read them all. `revision` grows with every change: each one names the revision it follows.
-- `timer_at` is when somebody must look at the task although nothing happened (a join that waits too long).
CREATE TABLE task (
    key             INTEGER PRIMARY KEY,
    uid             TEXT NOT NULL UNIQUE,
    namespace       TEXT NOT NULL,
    name            TEXT NOT NULL,
    target_kind     TEXT NOT NULL,
    target          TEXT NOT NULL,
    idempotency_key TEXT,
    digest          TEXT NOT NULL,
    phase           TEXT NOT NULL,
    revision        BIGINT NOT NULL,
    attempt         BIGINT NOT NULL,
    priority        BIGINT NOT NULL,
    lane            TEXT NOT NULL,
    spawned_by      TEXT NOT NULL,
    parent          TEXT NOT NULL,
    labels          TEXT NOT NULL,
    command         TEXT NOT NULL,
    plan            TEXT NOT NULL,
    graph           BLOB NOT NULL,
    summary         TEXT NOT NULL,
    timer_at        REAL,
    created_at      REAL NOT NULL,
    updated_at      REAL NOT NULL,
    started_at      REAL,
    ended_at        REAL,
    archived_at     REAL
);
CREATE UNIQUE INDEX task_by_name ON task (namespace, name);
CREATE UNIQUE INDEX task_by_command ON task (namespace, target_kind, target, idempotency_key)
 WHERE idempotency_key IS NOT NULL;
CREATE INDEX task_by_plan ON task (plan);
CREATE INDEX task_by_timer ON task (timer_at) WHERE timer_at IS NOT NULL;
CREATE INDEX task_by_namespace ON task (namespace, (-key));
CREATE INDEX task_by_phase ON task (phase, (-key));
CREATE INDEX task_by_parent ON task (parent, (-key)) WHERE parent <> '';
CREATE INDEX task_by_spawner ON task (spawned_by, (-key)) WHERE spawned_by <> '';
CREATE INDEX task_by_end ON task (ended_at, key) WHERE ended_at IS NOT NULL;
CREATE INDEX task_by_namespace_phase ON task (namespace, phase, (0 - key));
CREATE INDEX task_by_target ON task (target, namespace, (0 - key));
CREATE INDEX task_by_lane ON task (lane, namespace, (0 - key)) WHERE lane <> '';

-- The beginning of each label of a task as `name=value`; `place` is the negative key of the task. Two labels may begin
-- alike: whoever finds a task here looks at its labels too. Written and removed with the row of the task, by the
-- database itself: whoever stores or forgets a task need not know of it.
CREATE TABLE task_label (
    namespace TEXT NOT NULL,
    label     TEXT NOT NULL,
    place     BIGINT NOT NULL,
    PRIMARY KEY (namespace, label, place)
) WITHOUT ROWID;
-- only: sqlite
CREATE TRIGGER task_label_add AFTER INSERT ON task WHEN NEW.labels <> '{}' BEGIN
    INSERT INTO task_label (namespace, label, place)
    SELECT NEW.namespace, SUBSTR(pair.key || '=' || pair.value, 1, 200), -NEW.key
      FROM json_each(NEW.labels) AS pair WHERE pair.value IS NOT NULL
        ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER task_label_remove AFTER DELETE ON task WHEN OLD.labels <> '{}' BEGIN
    DELETE FROM task_label
     WHERE namespace = OLD.namespace AND place = -OLD.key
       AND label IN (SELECT SUBSTR(pair.key || '=' || pair.value, 1, 200) FROM json_each(OLD.labels) AS pair);
END;
-- only: postgres
-- A text with a zero is no text here, and is left out.
CREATE FUNCTION task_labels(labels text) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT DISTINCT left(pair.key || '=' || pair.value, 200)
      FROM json_each_text(CASE WHEN position('\u0000' IN labels) = 0 THEN CAST(labels AS json) END) AS pair
     WHERE pair.value IS NOT NULL
$$;
CREATE FUNCTION task_label_add() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO task_label (namespace, label, place)
    SELECT NEW.namespace, hint, -NEW.key FROM task_labels(NEW.labels) AS hint;
    RETURN NULL;
END $$;
CREATE FUNCTION task_label_remove() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM task_label
     WHERE namespace = OLD.namespace AND place = -OLD.key AND label IN (SELECT task_labels(OLD.labels));
    RETURN NULL;
END $$;
CREATE TRIGGER task_label_add AFTER INSERT ON task
    FOR EACH ROW WHEN (NEW.labels <> '{}') EXECUTE FUNCTION task_label_add();
CREATE TRIGGER task_label_remove AFTER DELETE ON task
    FOR EACH ROW WHEN (OLD.labels <> '{}') EXECUTE FUNCTION task_label_remove();
-- only: both

-- What happened to a task: one numbered fact per row, as runs have.
CREATE TABLE task_event (
    task BIGINT NOT NULL,
    seq  BIGINT NOT NULL,
    at   REAL NOT NULL,
    type TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX task_event_by_task ON task_event (task, seq);

-- Which run does which message of a task.
CREATE TABLE task_run (
    task    BIGINT NOT NULL,
    message TEXT NOT NULL,
    run_id  TEXT NOT NULL,
    PRIMARY KEY (task, message)
) WITHOUT ROWID;
CREATE UNIQUE INDEX task_run_by_run ON task_run (run_id);

-- What the agents of one task share.
CREATE TABLE task_memory (
    task       BIGINT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    by_run     TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (task, name)
) WITHOUT ROWID;

-- How tasks stood when they were last told to somebody who watches, in an order that a watch can go on from.
--
-- Whether a task is queued, running or waiting is read off its runs and written nowhere, so it has no number. Whoever
-- watches compares what there is with what was told, and gives each difference the next number (counter `task_told`). A
-- task has one row, with what was told last; `first` is its first number. `live`: 1 while it has not ended. `gone`: 1
-- when it is not shown any more. Of tasks that ended long ago the rows are dropped: `task_dropped` is the last of their
-- numbers, and a watch cannot go on from before it.
CREATE TABLE task_told (
    task     BIGINT PRIMARY KEY,
    number   BIGINT NOT NULL,
    first    BIGINT NOT NULL,
    live     BIGINT NOT NULL,
    gone     BIGINT NOT NULL,
    document TEXT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX task_told_by_number ON task_told (number);
CREATE INDEX task_told_live ON task_told (task) WHERE live = 1;

-- Work whose Task was deleted and that is still to be ended. Written in the transaction that deletes the Task, so that
-- whoever dies before the work was told leaves a note to others. `at` is when the Task was deleted. Touched only under
-- the lock of the revision.
CREATE TABLE task_ending (
    uid TEXT PRIMARY KEY,
    at  TEXT NOT NULL
) WITHOUT ROWID;

-- --- sessions --------------------------------------------------------------------------------------------------------

-- Conversations that last. A turn of a session is a run; `head` is the turn that the next one goes on after, `turn` the
-- run at work, and at most one is. `arrivals` counts what was said, so that arrival numbers have no gaps.
CREATE TABLE session (
    key         INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    namespace   TEXT NOT NULL,
    agent       TEXT NOT NULL,
    user_name   TEXT NOT NULL,
    channel     TEXT NOT NULL,
    kind        TEXT NOT NULL,
    title       TEXT NOT NULL,
    model       TEXT NOT NULL,
    options     TEXT NOT NULL,
    created_at  REAL NOT NULL,
    active_at   REAL NOT NULL,
    archived_at REAL,
    head        TEXT,
    turn        TEXT,
    turns       BIGINT NOT NULL,
    arrivals    BIGINT NOT NULL
);
CREATE INDEX session_by_activity ON session (namespace, active_at, key);
CREATE INDEX session_of_agent ON session (namespace, agent, active_at, key);
CREATE INDEX session_of_user ON session (namespace, user_name, active_at, key);
CREATE INDEX session_archived ON session (archived_at) WHERE archived_at IS NOT NULL;
-- The sessions with an agent that are not archived: it is not deleted while there are some.
CREATE INDEX session_open ON session (namespace, agent, key) WHERE archived_at IS NULL;

-- The active session of an agent, a user and a channel: whoever resolves, rotates or archives locks this row first.
CREATE TABLE session_channel (
    namespace TEXT NOT NULL,
    agent     TEXT NOT NULL,
    user_name TEXT NOT NULL,
    channel   TEXT NOT NULL,
    active    TEXT,
    PRIMARY KEY (namespace, agent, user_name, channel)
);

-- The turns of a session in the order in which they began. `parent` is the number of the turn that one goes on after, 0
-- for none: an answer that was asked for again leaves the earlier one as a branch.
CREATE TABLE session_turn (
    key      INTEGER PRIMARY KEY,
    session  BIGINT NOT NULL,
    number   BIGINT NOT NULL,
    run_id   TEXT NOT NULL,
    parent   BIGINT NOT NULL,
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
-- The words are kept in few pieces, each of which repeats the words of the others. That costs no more time.
INSERT INTO session_words (session_words, rank) VALUES ('automerge', 3);
-- only: postgres
CREATE TABLE session_words (rowid bigint PRIMARY KEY, words tsvector NOT NULL);
-- New words wait beside the index, by default until they are 4 MB, in which they are searched one by one.
CREATE INDEX session_words_by_word ON session_words USING gin (words) WITH (gin_pending_list_limit = 256);
-- only: both

-- How often what is warm for the sessions of a user was marked as stale: a process compares it when a turn begins.
CREATE TABLE session_staleness (
    namespace TEXT NOT NULL,
    user_name TEXT NOT NULL,
    stale     BIGINT NOT NULL,
    PRIMARY KEY (namespace, user_name)
);

-- What was said to a session or, outside of sessions, to a run: `owner` is the key of its row. A message that is in a
-- journal by now is not kept here a second time.
CREATE TABLE inbox (
    owner_kind TEXT NOT NULL,
    owner      BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    id         TEXT NOT NULL,
    mode       TEXT NOT NULL,
    message    BLOB,
    digest     TEXT NOT NULL,
    by_name    TEXT NOT NULL,
    place      TEXT NOT NULL,
    details    TEXT NOT NULL,
    status     TEXT NOT NULL,
    steered    BIGINT NOT NULL,
    outcome    TEXT NOT NULL,
    reason     TEXT NOT NULL,
    run_id     TEXT,
    at         REAL NOT NULL,
    PRIMARY KEY (owner_kind, owner, seq)
);
CREATE UNIQUE INDEX inbox_by_id ON inbox (owner_kind, owner, id);
CREATE INDEX inbox_open ON inbox (owner_kind, owner, seq) WHERE status IN ('pending', 'offered');
CREATE INDEX inbox_dropped ON inbox (owner_kind, owner, seq) WHERE status = 'dropped' AND message IS NOT NULL;
-- Answers are delivered to channels. What was said in Python, over HTTP or in a terminal names no channel.
CREATE INDEX inbox_of_run ON inbox (run_id) WHERE run_id IS NOT NULL AND details LIKE '%channel"%';

-- Files that people sent to a session, whose content stays for as long as the session. A piece of a large file has no
-- name.
CREATE TABLE asset (
    session    BIGINT NOT NULL,
    digest     TEXT NOT NULL,
    name       TEXT NOT NULL,
    size       BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    at         REAL NOT NULL,
    PRIMARY KEY (session, digest, name)
);
CREATE INDEX asset_by_digest ON asset (digest);

-- The folder that an agent keeps for a user over all of their sessions and runs; a blank user is for runs that act for
-- nobody. `tree` is the digest of its newest tree, and `life` tells it from one of the same name that was deleted.
CREATE TABLE folder (
    key        INTEGER PRIMARY KEY,
    namespace  TEXT NOT NULL,
    agent      TEXT NOT NULL,
    user_name  TEXT NOT NULL,
    life       TEXT NOT NULL,
    tree       TEXT NOT NULL,
    files      BIGINT NOT NULL,
    size       BIGINT NOT NULL,
    run_id     TEXT NOT NULL,
    created_at REAL NOT NULL,
    changed_at REAL NOT NULL
);
CREATE UNIQUE INDEX folder_of_user ON folder (namespace, agent, user_name);

-- All content of that tree: it stays for as long as the folder has it.
CREATE TABLE folder_content (
    folder BIGINT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (folder, digest)
) WITHOUT ROWID;
CREATE INDEX folder_content_by_digest ON folder_content (digest);

-- --- channels --------------------------------------------------------------------------------------------------------

-- What is to be delivered: the answer of a run to a target, or, under a key of its own in the place of a run, a text.
-- The answer itself stays in the journal of its run. `receipt` is what a channel has delivered of it so far; of a
-- `draft` it is what people see while the answer is written.
CREATE TABLE outbox (
    key        INTEGER PRIMARY KEY,
    run_id     TEXT NOT NULL,
    target     TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    channel    TEXT NOT NULL,
    address    TEXT NOT NULL,
    text       TEXT NOT NULL,
    state      TEXT NOT NULL,
    attempts   BIGINT NOT NULL,
    due_at     REAL NOT NULL,
    receipt    TEXT NOT NULL,
    error      TEXT NOT NULL,
    created_at REAL NOT NULL,
    ended_at   REAL,
    holder     TEXT
);
CREATE UNIQUE INDEX outbox_of_run ON outbox (run_id, target);
CREATE INDEX outbox_due ON outbox (due_at) WHERE state = 'pending';
CREATE INDEX outbox_waiting ON outbox (target, key) WHERE state = 'pending';
CREATE INDEX outbox_by_namespace ON outbox (namespace, (-key));
CREATE INDEX outbox_by_channel ON outbox (namespace, channel, (-key));
CREATE INDEX outbox_ended ON outbox (namespace, channel, ended_at, key) WHERE state IN ('sent', 'failed');
CREATE INDEX outbox_by_age ON outbox (created_at) WHERE state <> 'pending';

-- Messages that a source has handed on: a channel, a hook, a schedule. Each is taken once, whatever session it goes to.
-- `id` comes from the source and its id for the message. A command has a `target` that it acts on, and is done again
-- only as long as it has no `outcome`.
CREATE TABLE taken_message (
    id      TEXT PRIMARY KEY,
    source  TEXT NOT NULL,
    digest  TEXT NOT NULL,
    target  TEXT NOT NULL,
    seq     BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    reply   TEXT NOT NULL,
    at      REAL NOT NULL
);
CREATE INDEX taken_message_of_source ON taken_message (source);
CREATE INDEX taken_message_by_time ON taken_message (at);

-- Who reads a channel that can be read by one process only, until when, and how far.
CREATE TABLE channel_reader (
    channel     TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,
    lease_until REAL NOT NULL,
    place       TEXT NOT NULL,
    error       TEXT NOT NULL
);

-- The agent that people chose for a chat of a channel.
CREATE TABLE channel_choice (
    channel TEXT NOT NULL,
    chat    TEXT NOT NULL,
    agent   TEXT NOT NULL,
    PRIMARY KEY (channel, chat)
);

-- People who have linked what they are called on a channel to their account here, by a code that the channel showed.
-- `terms` are those of the channel at that time: who declared it, and who vouches for its senders. `owner`: whoever
-- linked it owns the installation, and has all roles in it.
CREATE TABLE channel_link (
    id        TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    channel   TEXT NOT NULL,
    sender    TEXT NOT NULL,
    user_name TEXT NOT NULL,
    owner     BIGINT NOT NULL,
    terms     TEXT NOT NULL,
    at        REAL NOT NULL
);
CREATE UNIQUE INDEX channel_link_of_sender ON channel_link (channel, sender);
CREATE INDEX channel_link_by_namespace ON channel_link (namespace, id);
CREATE INDEX channel_link_of_user ON channel_link (namespace, user_name, id);

-- Codes that wait to be entered, one for each sender. Only their digests are kept.
CREATE TABLE channel_code (
    digest     TEXT PRIMARY KEY,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    channel    TEXT NOT NULL,
    sender     TEXT NOT NULL,
    terms      TEXT NOT NULL,
    expires_at REAL NOT NULL
);
CREATE UNIQUE INDEX channel_code_of_sender ON channel_code (channel, sender);

-- --- queue and workers -----------------------------------------------------------------------------------------------

-- The queue holds the runs of tasks that have not ended. It stays small however many runs have ended.

-- Runs that a worker may take, now or later. `due_at` is when: now, after a pause, when a timer of the run goes off, or
-- when the lease of whoever holds it is over. NULL: not before somebody signals. `held` is 1 while a worker has it.
-- `max_running` is how many runs of its agent may be held at once (0: any number), frozen with the agent's definition.
-- `line` puts runs that are alike (priority, namespace, agent, lane, class, requirements) behind one another, urgent
-- lines first: a worker looks at lines, not at runs, so what it may not take costs it one look however much of it
-- waits. `let_go` is 1 once a worker has begun with the run and let it go: only such a run waits for somebody or
-- something. `place` is the place of a run in its line while somebody holds it: since when it was due. `lost` counts
-- holders that died.
CREATE TABLE queue (
    run          BIGINT PRIMARY KEY,
    run_id       TEXT NOT NULL UNIQUE,
    task         BIGINT NOT NULL,
    namespace    TEXT NOT NULL,
    agent        TEXT NOT NULL,
    lane         TEXT NOT NULL,
    class        TEXT NOT NULL,
    priority     BIGINT NOT NULL,
    line         TEXT NOT NULL,
    due_at       REAL,
    held         BIGINT NOT NULL,
    max_running  BIGINT NOT NULL,
    requirements TEXT NOT NULL,
    let_go       BIGINT NOT NULL DEFAULT 0,
    place        REAL,
    lost         BIGINT NOT NULL DEFAULT 0
) WITHOUT ROWID;
-- only: postgres
-- Every run passes through, so dead rows gather at the head of every line: clear them away early.
ALTER TABLE queue SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
                       autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 2000);
-- only: both
CREATE INDEX queue_by_line ON queue (held, line, due_at, run) WHERE due_at IS NOT NULL;
CREATE INDEX queue_held_by_due ON queue (due_at) WHERE held = 1;
CREATE INDEX queue_by_task ON queue (task);
CREATE INDEX queue_held_by_agent ON queue (namespace, agent) WHERE held = 1;
CREATE INDEX queue_held_by_lane ON queue (namespace, lane) WHERE held = 1;
CREATE INDEX queue_let_go ON queue (namespace, (-task)) WHERE let_go = 1;
CREATE INDEX queue_let_go_by_task ON queue ((-task)) WHERE let_go = 1;

-- How many runs may be held at once: scope namespace (name `ns`), agent (`ns/agent`), lane (`ns/lane`), or definition,
-- whose rows only serve as locks for `queue.max_running`. What is held is counted, never stored: it cannot drift.
CREATE TABLE work_limit (
    scope       TEXT NOT NULL,
    name        TEXT NOT NULL,
    max_running BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

-- Execution classes of which the last runs failed; a class that is well has no row. `failures` are consecutive.
-- `opened_at`: nothing of the class is given out since then, but for one run at a time after a while, `probe`.
CREATE TABLE work_class (
    key       TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    agent     TEXT NOT NULL,
    lane      TEXT NOT NULL,
    failures  BIGINT NOT NULL,
    failed_at REAL NOT NULL,
    opened_at REAL,
    probe     BIGINT
) WITHOUT ROWID;
CREATE INDEX work_class_open ON work_class (opened_at) WHERE opened_at IS NOT NULL;

-- Processes that take runs. `identity` is the process; the same name started again replaces it. `beats` counts signs of
-- life, and never goes back while a process has the name. `clock_off` is by how many seconds the clock of its machine
-- is ahead of the store's. `isolation` is what it can enforce around programs, as a JSON list: `process`,
-- `process+memory`, `gvisor`, … (see placement.py).
CREATE TABLE worker (
    name         TEXT PRIMARY KEY,
    identity     TEXT NOT NULL,
    region       TEXT NOT NULL,
    gpu          BIGINT NOT NULL,
    models       TEXT NOT NULL,
    labels       TEXT NOT NULL,
    capacity     BIGINT NOT NULL,
    phase        TEXT NOT NULL,
    started_at   REAL NOT NULL,
    heartbeat_at REAL NOT NULL,
    beats        BIGINT NOT NULL DEFAULT 0,
    clock_off    REAL NOT NULL DEFAULT 0,
    isolation    TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;

-- --- schedules and webhooks ------------------------------------------------------------------------------------------

-- Since when the slots of a schedule count (`since`), under which `timing`. `schedule` is the uid. Whoever decides
-- about slots holds this row, so decisions about one schedule come one after another.
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
    webhook    TEXT PRIMARY KEY,
    accepted   BIGINT NOT NULL,
    duplicate  BIGINT NOT NULL,
    rejected   BIGINT NOT NULL,
    filtered   BIGINT NOT NULL,
    last_at    REAL NOT NULL,
    last_event TEXT NOT NULL,
    last_task  TEXT NOT NULL,
    last_error TEXT NOT NULL
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
CREATE INDEX webhook_delivery_by_webhook ON webhook_delivery (webhook, (-key));

-- --- budgets and limits ----------------------------------------------------------------------------------------------

-- Budgets in money: what was reserved and what was spent. One row for each budget, payer and span of time: `key` is
-- these joined by U+001F. Money is in millionths of a US dollar.
CREATE TABLE budget_account (
    key             TEXT PRIMARY KEY,
    namespace       TEXT NOT NULL,
    budget          TEXT NOT NULL,
    payer           TEXT NOT NULL,
    period          TEXT NOT NULL,
    spent           BIGINT NOT NULL,
    reserved        BIGINT NOT NULL,
    spent_tokens    BIGINT NOT NULL,
    reserved_tokens BIGINT NOT NULL,
    updated_at      REAL NOT NULL
);
CREATE INDEX budget_account_by_budget ON budget_account (namespace, budget, period);

-- One row for each act that costs something: `act` names it within its run. While it is `held`, its amount is part of
-- `reserved` of every account in `accounts` (a JSON array of keys) and belongs to the process `holder` until `until`.
-- Afterwards the row stays for a while, so that settling twice is known from settling once.
CREATE TABLE budget_hold (
    run_id   TEXT NOT NULL,
    act      TEXT NOT NULL,
    holder   TEXT NOT NULL,
    state    TEXT NOT NULL,
    until    REAL NOT NULL,
    amount   BIGINT NOT NULL,
    tokens   BIGINT NOT NULL,
    accounts TEXT NOT NULL,
    PRIMARY KEY (run_id, act)
) WITHOUT ROWID;
CREATE INDEX budget_hold_by_state ON budget_hold (state, until);
CREATE INDEX budget_hold_by_holder ON budget_hold (holder, state);

-- Limits on tools that several processes share: rates, places and circuits. `key` is the namespace and name of the
-- tool.

-- A token bucket: `tokens` were in it at the time `at`.
CREATE TABLE tool_bucket (
    key    TEXT PRIMARY KEY,
    tokens REAL NOT NULL,
    at     REAL NOT NULL
);

-- Tokens that a process has taken in advance and may use until `until`. They count as being in the bucket until then,
-- so that what is in all hands together is never more than the bucket holds.
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

-- Limits on how often models are asked, which all processes of a store keep to together. `key` stands for the address,
-- the key and the model at a provider; it says nothing about the key to whoever reads it.

-- A line. `last` is the number of the place that was given last, `seconds` what a call takes, about. Until
-- `paused_until` the provider wants to hear nothing; `window` is the longest window that anybody counts by.
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

-- The limits that endpoints declare on a line of the table model_line, as they were when somebody last asked there. All
-- of one line hold together. `version` is that of the endpoint: one that was changed or deleted since counts no more.
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

-- --- callers ---------------------------------------------------------------------------------------------------------

-- Whatever lets somebody in is kept as a digest only. The text of a token is shown once, when it is made.

-- Tokens. `namespaces` and `roles` are JSON lists; the namespace `*` is all of them. `owner` is the account that made
-- the token, which ends with it; it is blank for one that was made on the store itself.
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
    used_at    REAL,
    owner      TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
-- A name is free again when its token is revoked.
CREATE UNIQUE INDEX api_token_by_name ON api_token (name) WHERE revoked_at IS NULL;
-- Tokens are kept when they are revoked or over.
CREATE INDEX api_token_ever_named ON api_token (lower(name));
CREATE INDEX api_token_of_owner ON api_token (owner, name);

-- The accounts of people who log in. `password` is an Argon2id hash with its parameters. `grants` is a JSON object:
-- roles by namespace, `*` being all of them. `password_at` is when the password was set, `login_at` when it last let
-- somebody in.
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

-- The sessions of people in browsers. `digest` is of what the browser holds. `user_id` and `grants`: the account whose
-- roles hold, or with a blank id the roles that an identity provider's word gave. A session ends when it is not used
-- until `idle_until`, and at `ends_at`.
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

-- Each name of a caller belongs to one sort of caller, for ever: records, budgets and approvers go by names. `sort` is
-- 'account' or 'token'; `name` is in small letters. Two transactions that give the same name meet here.
CREATE TABLE caller_name (
    name TEXT PRIMARY KEY,
    sort TEXT NOT NULL
);

-- Requests that came with an `Idempotency-Key`, so that each is done once by however many servers. `id` is a digest of
-- who sent it and of the key, `request` one of what was asked for. `claim` is who does it, believed until `held_until`.
-- `status`, `headers` and `body` are what was answered; without a status it is under way, or was broken off. It is all
-- forgotten at `forget_at`.
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

-- --- store -----------------------------------------------------------------------------------------------------------

-- What a store is, beside its contents: one row. `incarnation` is drawn when the store is made, and again when it is
-- put back from a backup: processes that knew another one hold what this store has never heard of. `set_back_at` is
-- when a process last found the store older than what it had seen itself, and `set_back` what it found. `boot` and
-- `boot_offset` are of a store that is one file on one machine: what to add to the clock that counts from that boot, so
-- that all processes judge leases by one clock, whatever is done to the clock of the machine. `place` says where the
-- database of a store on PostgreSQL is: its cluster, database, table and timeline. A store that finds itself elsewhere
-- was restored or copied, and begins a new incarnation (store/incarnation.py).
CREATE TABLE store_life (
    id          BIGINT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    boot        TEXT NOT NULL DEFAULT '',
    boot_offset REAL NOT NULL DEFAULT 0,
    set_back_at REAL,
    set_back    TEXT NOT NULL DEFAULT '',
    place       TEXT NOT NULL DEFAULT ''
);
-- only: sqlite
INSERT INTO store_life (id, incarnation) VALUES (1, lower(hex(randomblob(16))));
-- only: postgres
INSERT INTO store_life (id, incarnation)
VALUES (1, md5(random()::text || clock_timestamp()::text || txid_current()::text));
-- only: both

