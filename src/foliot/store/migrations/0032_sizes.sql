-- What runs are pinned to, once for all runs of a definition: their first events are stored without its `data`
-- (see store/journal/packing.py), and it owns their `spec`. A run of an older version has its own `spec` instead.
CREATE TABLE run_pin (
    key    INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    spec   TEXT NOT NULL,
    data   BLOB NOT NULL
);
CREATE INDEX run_pin_of_spec ON run_pin (spec);
ALTER TABLE run ADD COLUMN pin BIGINT;
CREATE INDEX run_by_pin ON run (pin) WHERE pin IS NOT NULL;

-- The folder that an agent keeps for a user over all of their sessions and runs; a blank user is for runs that act for
-- nobody. `tree` is the digest of its newest tree, and `life` tells it from one of the same name that was deleted.
CREATE TABLE folder (
    key INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    agent TEXT NOT NULL,
    user_name TEXT NOT NULL,
    life TEXT NOT NULL,
    tree TEXT NOT NULL,
    files BIGINT NOT NULL,
    size BIGINT NOT NULL,
    run_id TEXT NOT NULL,
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

-- Stores that hold much: what is looked for is found by an index, however much there is.

-- 1 once a worker has begun with a run and let it go. Only such a run waits for somebody or something.
ALTER TABLE queue ADD COLUMN let_go BIGINT NOT NULL DEFAULT 0;
UPDATE queue SET let_go = 1 WHERE run IN (SELECT r.key FROM run AS r WHERE r.phase <> 'running' AND r.epoch > 0);
CREATE INDEX queue_let_go ON queue (namespace, (-task)) WHERE let_go = 1;
CREATE INDEX queue_let_go_by_task ON queue ((-task)) WHERE let_go = 1;

-- Lists show the newest first. Their indices end with the negative key, which nothing else is sorted by: PostgreSQL then
-- cannot walk along the keys of all rows instead. Of a run that is at work the phase changes often, and one that has ended
-- keeps it: each kind has an index of its own. The namespace stands second where a list over all of them has no other index.
DROP INDEX run_by_namespace;
DROP INDEX run_by_phase;
CREATE INDEX run_by_namespace ON run (namespace, (-key));
CREATE INDEX run_by_agent ON run (agent, namespace, (-key));
CREATE INDEX run_live ON run (phase, namespace, (-key)) WHERE phase IN ('pending', 'running', 'waiting');
CREATE INDEX run_ended ON run (phase, namespace, (-key)) WHERE phase IN ('succeeded', 'failed', 'cancelled');

DROP INDEX task_by_namespace;
DROP INDEX task_by_phase;
DROP INDEX task_by_parent;
DROP INDEX task_by_spawner;
CREATE INDEX task_by_namespace ON task (namespace, (-key));
CREATE INDEX task_by_phase ON task (phase, (-key));
CREATE INDEX task_by_namespace_phase ON task (namespace, phase, (-key));
CREATE INDEX task_by_target ON task (target, namespace, (-key));
CREATE INDEX task_by_lane ON task (lane, namespace, (-key)) WHERE lane <> '';
CREATE INDEX task_by_parent ON task (parent, (-key)) WHERE parent <> '';
CREATE INDEX task_by_spawner ON task (spawned_by, (-key)) WHERE spawned_by <> '';

-- The beginning of each label of a task as `name=value`; `place` is the negative key of the task. Two labels may begin
-- alike: whoever finds a task here looks at its labels too. Written and removed with the row of the task, by the database
-- itself: whoever stores or forgets a task need not know of it.
CREATE TABLE task_label (
    namespace TEXT NOT NULL,
    label     TEXT NOT NULL,
    place     BIGINT NOT NULL,
    PRIMARY KEY (namespace, label, place)
) WITHOUT ROWID;
-- only: sqlite
INSERT OR IGNORE INTO task_label (namespace, label, place)
SELECT task.namespace, SUBSTR(pair.key || '=' || pair.value, 1, 200), -task.key
  FROM task, json_each(task.labels) AS pair WHERE pair.value IS NOT NULL;
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
INSERT INTO task_label (namespace, label, place)
SELECT task.namespace, hint, -task.key FROM task, task_labels(task.labels) AS hint;
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

CREATE INDEX audit_by_namespace ON audit (namespace, (-seq));
CREATE INDEX audit_by_tool ON audit (namespace, tool, (-seq));

DROP INDEX outbox_by_namespace;
CREATE INDEX outbox_by_namespace ON outbox (namespace, (-key));
CREATE INDEX outbox_by_channel ON outbox (namespace, channel, (-key));
CREATE INDEX outbox_ended ON outbox (namespace, channel, ended_at, key) WHERE state IN ('sent', 'failed');
CREATE INDEX outbox_by_age ON outbox (created_at) WHERE state <> 'pending';

DROP INDEX webhook_delivery_by_webhook;
CREATE INDEX webhook_delivery_by_webhook ON webhook_delivery (webhook, (-key));

-- The words of sessions in fewer pieces, each of which repeats the words of the others. Costs no more time.
-- only: sqlite
INSERT INTO session_words (session_words, rank) VALUES ('automerge', 3);
-- only: postgres
-- New words wait beside the index, by default until they are 4 MB, in which they are searched one by one.
ALTER INDEX session_words_by_word SET (gin_pending_list_limit = 256);
-- only: both

-- What is over, by the time of its end: what a purge looks for, however much there is that is young.
CREATE INDEX task_by_end ON task (ended_at, key) WHERE ended_at IS NOT NULL;
CREATE INDEX run_by_end ON run (updated_at, key) WHERE phase IN ('succeeded', 'failed', 'cancelled');

-- Answers are delivered to channels. What was said in Python, over HTTP or in a terminal names none.
DROP INDEX inbox_of_run;
CREATE INDEX inbox_of_run ON inbox (run_id) WHERE run_id IS NOT NULL AND details LIKE '%channel"%';

-- How often what is warm for the sessions of a user was marked as stale: a process compares it when a turn begins.
CREATE TABLE session_staleness (
    namespace TEXT NOT NULL,
    user_name TEXT NOT NULL,
    stale     BIGINT NOT NULL,
    PRIMARY KEY (namespace, user_name)
);
