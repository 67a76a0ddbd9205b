-- Tasks, what happened to them, and the runs that do their work. See migrations/0001_schema.sql for the columns.

-- name: task_add
-- locks: -
-- apart: uid
INSERT INTO task (uid, namespace, name, target_kind, target, idempotency_key, digest, phase, revision, attempt, priority,
                  lane, spawned_by, parent, labels, command, plan, graph, summary, timer_at,
                  created_at, updated_at, started_at, ended_at, archived_at)
VALUES (:uid, :namespace, :name, :target_kind, :target, :idempotency_key, :digest, :phase, :revision, 1, :priority,
        :lane, :spawned_by, :parent, :labels, :command, :plan, :graph, :summary, :timer_at,
        :now, :now, NULL, NULL, NULL)
ON CONFLICT DO NOTHING
RETURNING key;

-- name: task_end_new
-- locks: -
-- Of a row that the same transaction has added.
UPDATE task SET phase = :phase, ended_at = :now WHERE key = :key;

-- name: task_by_command
SELECT namespace, name, digest, command FROM task
 WHERE namespace = :namespace AND target_kind = :target_kind AND target = :target AND idempotency_key = :idempotency_key;

-- name: task_named
SELECT key, uid, namespace, name, target_kind, target, phase, revision, attempt, priority, lane, spawned_by, parent,
       labels, summary, timer_at, created_at, updated_at, started_at, ended_at, archived_at, command
  FROM task WHERE namespace = :namespace AND name = :name;

-- name: task_content
SELECT key, uid, priority, lane, command, plan, digest, idempotency_key
  FROM task WHERE namespace = :namespace AND name = :name;

-- name: task_keys
-- reads: many
-- A list begins with keys, newest first, by one query for each index: a text that holds for all filters would be answered by
-- looking at every task. The index ends with the negative key, and so does the order: then PostgreSQL cannot walk along all
-- keys instead, in the hope of meeting some soon. That of a filter within a namespace ends with `0 - key`, so that it is not
-- exchanged for that of the namespace either. Where several filters hold, `task_keys_matching` says for which of the keys
-- that one of them gives the others hold too.
SELECT t.key AS key FROM task AS t
 WHERE t.namespace = :namespace AND -t.key > -CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY -t.key LIMIT :count;

-- name: task_keys_everywhere
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.key < :before
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY t.key DESC LIMIT :count;

-- name: task_keys_in_phases
-- reads: many
-- Of all phases at one moment: a task that goes on from one to the next meanwhile must not be missed by both. :phases is a
-- JSON array of those that are stored. What a worker has begun with is stored as queued until its first run has ended: with
-- :begun, tasks with a run that was begun and let go (only such a task can wait) are found too; with :held, those with a run
-- that a worker has now, never more than workers have places.
SELECT DISTINCT found.key AS key FROM (
        SELECT task.key AS key FROM json_each(:phases) AS wanted CROSS JOIN task
         WHERE task.key IN (SELECT t.key FROM task AS t
                WHERE t.phase = wanted.value AND t.namespace = :namespace AND 0 - t.key > 0 - CAST(:before AS BIGINT)
                  AND t.created_at >= :after_time AND t.created_at <= :before_time
                  AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
                ORDER BY 0 - t.key LIMIT :count)
UNION ALL SELECT let_go.key FROM (SELECT -(-q.task) AS key FROM queue AS q CROSS JOIN task AS t
                WHERE CAST(:begun AS BIGINT) = 1 AND q.let_go = 1 AND q.namespace = :namespace
                  AND -q.task > -CAST(:before AS BIGINT) AND t.key = q.task
                  AND t.created_at >= :after_time AND t.created_at <= :before_time
                  AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
                GROUP BY -q.task ORDER BY -q.task LIMIT :count) AS let_go
UNION ALL SELECT held.key FROM (SELECT t.key AS key FROM queue AS q CROSS JOIN task AS t
                WHERE CAST(:held AS BIGINT) = 1 AND q.held = 1 AND q.namespace = :namespace AND +q.task < :before AND t.key = q.task
                  AND t.created_at >= :after_time AND t.created_at <= :before_time
                  AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)) AS held) AS found
 ORDER BY found.key DESC LIMIT :count;

-- name: task_keys_in_phases_everywhere
-- reads: many
SELECT DISTINCT found.key AS key FROM (
        SELECT task.key AS key FROM json_each(:phases) AS wanted CROSS JOIN task
         WHERE task.key IN (SELECT t.key FROM task AS t
                WHERE t.phase = wanted.value AND -t.key > -CAST(:before AS BIGINT)
                  AND t.created_at >= :after_time AND t.created_at <= :before_time
                  AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
                ORDER BY -t.key LIMIT :count)
UNION ALL SELECT let_go.key FROM (SELECT -(-q.task) AS key FROM queue AS q CROSS JOIN task AS t
                WHERE CAST(:begun AS BIGINT) = 1 AND q.let_go = 1 AND -q.task > -CAST(:before AS BIGINT) AND t.key = q.task
                  AND t.created_at >= :after_time AND t.created_at <= :before_time
                  AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
                GROUP BY -q.task ORDER BY -q.task LIMIT :count) AS let_go
UNION ALL SELECT held.key FROM (SELECT t.key AS key FROM queue AS q CROSS JOIN task AS t
                WHERE CAST(:held AS BIGINT) = 1 AND q.held = 1 AND +q.task < :before AND t.key = q.task
                  AND t.created_at >= :after_time AND t.created_at <= :before_time
                  AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)) AS held) AS found
 ORDER BY found.key DESC LIMIT :count;

-- name: task_keys_of_target
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.namespace = :namespace AND t.target = :target AND 0 - t.key > 0 - CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY 0 - t.key LIMIT :count;

-- name: task_keys_of_target_everywhere
-- reads: many
-- By namespaces: see run_keys_in_phases_everywhere.
WITH RECURSIVE space (name) AS (
    SELECT MIN(t.namespace) FROM task AS t
    UNION ALL
    SELECT (SELECT MIN(t.namespace) FROM task AS t WHERE t.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT task.key AS key FROM space AS s CROSS JOIN task
 WHERE task.key IN (SELECT t.key FROM task AS t
        WHERE t.target = :target AND t.namespace = s.name AND 0 - t.key > 0 - CAST(:before AS BIGINT)
          AND t.created_at >= :after_time AND t.created_at <= :before_time
          AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
        ORDER BY 0 - t.key LIMIT :count)
 ORDER BY task.key DESC LIMIT :count;

-- name: task_keys_of_target_any_order
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.target = :target AND 0 - t.key > 0 - CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY t.target, t.namespace, 0 - t.key LIMIT :count;

-- name: task_keys_of_label
-- reads: many
-- :label is how it begins: whoever asks looks at the labels of what is found.
SELECT t.key AS key FROM task_label AS l CROSS JOIN task AS t
 WHERE l.namespace = :namespace AND l.label = :label AND l.place > -CAST(:before AS BIGINT) AND t.key = -l.place
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY l.place LIMIT :count;

-- name: task_keys_of_label_everywhere
-- reads: many
-- By namespaces: see run_keys_in_phases_everywhere.
WITH RECURSIVE space (name) AS (
    SELECT MIN(t.namespace) FROM task AS t
    UNION ALL
    SELECT (SELECT MIN(t.namespace) FROM task AS t WHERE t.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT task.key AS key FROM space AS s CROSS JOIN task
 WHERE task.key IN (SELECT t.key FROM task_label AS l CROSS JOIN task AS t
        WHERE l.namespace = s.name AND l.label = :label AND l.place > -CAST(:before AS BIGINT) AND t.key = -l.place
          AND t.created_at >= :after_time AND t.created_at <= :before_time
          AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
        ORDER BY l.place LIMIT :count)
 ORDER BY task.key DESC LIMIT :count;

-- name: task_keys_named
-- :names is a JSON array. Each name is looked up, whatever the order of the list.
SELECT t.key AS key FROM json_each(:names) AS wanted CROSS JOIN task AS t
 WHERE t.namespace = :namespace AND t.name = wanted.value AND t.key < CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY t.key DESC LIMIT :count;

-- name: task_keys_named_everywhere
-- reads: many
WITH RECURSIVE space (name) AS (
    SELECT MIN(t.namespace) FROM task AS t
    UNION ALL
    SELECT (SELECT MIN(t.namespace) FROM task AS t WHERE t.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT task.key AS key FROM space AS s CROSS JOIN task
 WHERE task.key IN (SELECT t.key FROM json_each(:names) AS wanted CROSS JOIN task AS t
        WHERE t.namespace = s.name AND t.name = wanted.value AND t.key < CAST(:before AS BIGINT)
          AND t.created_at >= :after_time AND t.created_at <= :before_time
          AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
        ORDER BY t.key DESC LIMIT :count)
 ORDER BY task.key DESC LIMIT :count;

-- name: task_labels
-- reads: many
-- The labels alone: of many tasks, those that are wanted are found without reading all that was asked of them.
SELECT t.key AS key, t.labels AS labels FROM task AS t
 WHERE t.key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: task_keys_of_lane
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.namespace = :namespace AND t.lane = :lane AND t.lane <> '' AND 0 - t.key > 0 - CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY 0 - t.key LIMIT :count;

-- name: task_keys_of_lane_everywhere
-- reads: many
-- By namespaces: see run_keys_in_phases_everywhere.
WITH RECURSIVE space (name) AS (
    SELECT MIN(t.namespace) FROM task AS t
    UNION ALL
    SELECT (SELECT MIN(t.namespace) FROM task AS t WHERE t.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT task.key AS key FROM space AS s CROSS JOIN task
 WHERE task.key IN (SELECT t.key FROM task AS t
        WHERE t.lane = :lane AND t.lane <> '' AND t.namespace = s.name AND 0 - t.key > 0 - CAST(:before AS BIGINT)
          AND t.created_at >= :after_time AND t.created_at <= :before_time
          AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
        ORDER BY 0 - t.key LIMIT :count)
 ORDER BY task.key DESC LIMIT :count;

-- name: task_keys_of_lane_any_order
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.lane = :lane AND t.lane <> '' AND 0 - t.key > 0 - CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY t.lane, t.namespace, 0 - t.key LIMIT :count;

-- name: task_keys_of_spawner
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.spawned_by = :spawned_by AND t.spawned_by <> '' AND -t.key > -CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY -t.key LIMIT :count;

-- name: task_keys_of_parent
-- reads: many
SELECT t.key AS key FROM task AS t
 WHERE t.parent = :parent AND t.parent <> '' AND -t.key > -CAST(:before AS BIGINT)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (CAST(:archived AS BIGINT) = 1 OR t.archived_at IS NULL)
 ORDER BY -t.key LIMIT :count;

-- name: task_keys_matching
-- reads: many
-- Those of some keys for which all filters hold. Empty texts mean any; :phases and :labels are JSON arrays, a label as it
-- stands in the stored text.
SELECT t.key AS key FROM task AS t
 WHERE t.key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
   AND (:namespace = '' OR t.namespace = :namespace)
   AND (:target = '' OR t.target = :target)
   AND (:lane = '' OR t.lane = :lane)
   AND (:spawned_by = '' OR t.spawned_by = :spawned_by)
   AND (:parent = '' OR t.parent = :parent)
   AND COALESCE(t.phase, '') IN (SELECT value FROM json_each(:phases) AS wanted)
   AND NOT EXISTS (SELECT 1 FROM json_each(:labels) AS pair WHERE REPLACE(t.labels, pair.value, '') = t.labels);

-- name: task_lock
-- locks: task key
-- Everything that changes a task begins here: PostgreSQL lets one transaction at a time pass.
SELECT key, uid, namespace, name, phase, revision, attempt, priority, lane, labels, command, plan, graph, summary,
       timer_at, created_at, started_at, archived_at
  FROM task WHERE key = :key /*for_update*/;

-- name: task_change
-- locks: task key
UPDATE task
   SET phase = :phase, revision = :revision, attempt = :attempt, graph = :graph, summary = :summary,
       timer_at = :timer_at, updated_at = :now, ended_at = :ended_at, started_at = COALESCE(started_at, :started_at)
 WHERE key = :key AND revision = :expected;

-- name: task_archive
-- locks: task key
UPDATE task SET archived_at = :now WHERE key = :key AND archived_at IS NULL;

-- name: task_timers
-- Behind :at and :key: what cannot be dealt with keeps its timer, and must not stand before all others.
SELECT key, timer_at FROM task
 WHERE timer_at IS NOT NULL AND timer_at <= :now AND (timer_at > :at OR (timer_at = :at AND key > :key))
 ORDER BY timer_at, key LIMIT :count;

-- name: task_next_timer
SELECT MIN(timer_at) AS at FROM task WHERE timer_at > :now;

-- name: task_ending_add
-- locks: -
INSERT INTO task_ending (uid, at)
SELECT uid, :at FROM task WHERE namespace = :namespace AND name = :name
    ON CONFLICT (uid) DO NOTHING;

-- name: task_ending_revoke
-- locks: -
DELETE FROM task_ending WHERE uid IN (SELECT uid FROM task WHERE namespace = :namespace AND name = :name);

-- name: task_ending_find
SELECT e.at AS at FROM task AS t JOIN task_ending AS e ON e.uid = t.uid WHERE t.namespace = :namespace AND t.name = :name;

-- name: task_endings
-- Those of which nobody has said for a while that they are done with; no name when the task is forgotten.
SELECT e.uid AS uid, t.namespace AS namespace, t.name AS name
  FROM task_ending AS e LEFT JOIN task AS t ON t.uid = e.uid
 WHERE e.at < :before AND e.uid > :after ORDER BY e.uid LIMIT :count;

-- name: task_ending_done
-- locks: -
DELETE FROM task_ending WHERE uid = :uid;

-- name: task_event_add
-- locks: -
INSERT INTO task_event (task, seq, at, type, data) VALUES (:task, :seq, :at, :type, :data);

-- name: task_event_read
SELECT e.seq AS seq, e.at AS at, e.type AS type, e.data AS data
  FROM task AS t JOIN task_event AS e ON e.task = t.key
 WHERE t.namespace = :namespace AND t.name = :name AND e.seq > :after
 ORDER BY e.seq LIMIT :count;

-- name: task_open_for
-- reads: many
-- Tasks that have not ended and that an agent or a system has work in, oldest first; a few of them. The
-- plus sign keeps SQLite from walking along those that have ended.
SELECT t.name AS name FROM task AS t
 WHERE t.namespace = :namespace AND t.phase IN ('queued', 'running')
   AND ((t.target_kind = :kind AND t.target = :name)
        OR (:kind = 'agent' AND EXISTS (SELECT 1 FROM queue AS q WHERE q.task = t.key AND q.agent = :name)))
 ORDER BY +t.key LIMIT 6;

-- name: task_run_add
-- locks: -
INSERT INTO task_run (task, message, run_id) VALUES (:task, :message, :run_id);

-- name: task_archived_of_run
SELECT t.name AS name FROM task_run AS m JOIN task AS t ON t.key = m.task
 WHERE m.run_id = :run_id AND t.archived_at IS NOT NULL;

-- name: task_run_find
SELECT r.key AS key FROM task_run AS m JOIN run AS r ON r.id = m.run_id WHERE m.task = :task AND m.message = :message;

-- name: task_runs
SELECT m.message AS message, m.run_id AS run_id, r.agent AS agent, r.phase AS phase, r.worker AS worker,
       r.lease_until AS lease_until, r.created_at AS created_at, r.updated_at AS updated_at, r.summary AS summary,
       q.due_at AS due_at, q.held AS held, q.requirements AS requirements, q.class AS class,
       q.max_running AS max_running, (SELECT MIN(w.name) FROM worker AS w WHERE w.identity = r.worker) AS worker_name,
       (SELECT MAX(w.heartbeat_at) FROM worker AS w WHERE w.identity = r.worker) AS heartbeat_at
  FROM task AS t JOIN task_run AS m ON m.task = t.key JOIN run AS r ON r.id = m.run_id
  LEFT JOIN queue AS q ON q.run = r.key
 WHERE t.namespace = :namespace AND t.name = :name
 ORDER BY r.key;

-- name: task_of_run
SELECT t.key AS key, t.uid AS uid, t.namespace AS namespace, t.name AS name, t.plan AS plan, t.command AS command,
       t.priority AS priority, t.lane AS lane, t.labels AS labels, m.message AS message
  FROM task_run AS m JOIN task AS t ON t.key = m.task
 WHERE m.run_id = :run_id;

-- name: task_live
-- Of these tasks (a JSON array of keys as text): how their live runs are. `begun` counts those that were ever taken;
-- `worker` is one of those that hold a run of it; `paused` counts the runs that go on by themselves at a time: a model
-- is asked again, its turn comes, or nothing more is said; `asks` is the summary of one that does not, `let_go` of one that nobody holds.
SELECT q.task AS task, COUNT(*) AS runs, SUM(CASE WHEN r.phase = 'waiting' THEN 1 ELSE 0 END) AS waiting,
       SUM(CASE WHEN r.epoch > 0 THEN 1 ELSE 0 END) AS begun,
       SUM(CASE WHEN r.phase = 'waiting' AND r.summary LIKE '%"owner"_"timer"%' THEN 1 ELSE 0 END) AS paused,
       MIN(CASE WHEN r.phase = 'waiting' AND r.summary NOT LIKE '%"owner"_"timer"%' THEN r.summary END) AS asks,
       MIN(CASE WHEN q.held = 0 AND r.epoch > 0 THEN r.summary END) AS let_go,
       MIN(CASE WHEN q.held = 0 AND r.epoch > 0 AND q.due_at > r.updated_at
                     AND (r.phase = 'pending' OR r.summary LIKE '%"owner"_"timer"%') THEN q.due_at END) AS next_at,
       MIN(CASE WHEN q.held = 1 THEN (SELECT MIN(w.name) FROM worker AS w WHERE w.identity = r.worker) END) AS worker,
       MIN(CASE WHEN q.held = 1 THEN r.lease_until END) AS lease_until,
       MAX(CASE WHEN q.held = 1 THEN (SELECT MAX(w.heartbeat_at) FROM worker AS w WHERE w.identity = r.worker) END)
           AS heartbeat_at,
       MIN(CASE WHEN q.held = 1 THEN r.updated_at END) AS claimed_at
  FROM json_each(:tasks) AS wanted JOIN queue AS q ON q.task = CAST(wanted.value AS BIGINT)
  JOIN run AS r ON r.key = q.run
 GROUP BY q.task;

-- name: task_asking_below
-- Of these tasks (a JSON array of keys as text): the runs that their runs have started and that wait for people or a budget.
SELECT t.key AS task, r.id AS id, r.summary AS summary
  FROM json_each(:tasks) AS wanted JOIN task AS t ON t.key = CAST(wanted.value AS BIGINT)
  JOIN run AS r ON r.root = t.namespace || '/task/' || t.uid
 WHERE r.phase = 'waiting' AND r.parent IS NOT NULL AND r.parent_seq IS NULL AND r.summary NOT LIKE '%"owner"_"timer"%'
 ORDER BY r.key;

-- name: task_live_runs
-- The runs of these tasks (a JSON array of keys as text) that have not ended.
SELECT q.task AS task, r.id AS id, r.phase AS phase
  FROM json_each(:tasks) AS wanted JOIN queue AS q ON q.task = CAST(wanted.value AS BIGINT)
  JOIN run AS r ON r.key = q.run
 ORDER BY r.key;

-- name: task_begun
SELECT 1 AS begun FROM queue AS q JOIN run AS r ON r.key = q.run WHERE q.task = :key AND r.epoch > 0 LIMIT 1;

-- name: task_purge_find
-- reads: many
-- Behind :since and :after: what was passed over, and what PostgreSQL has not cleared away, is not looked at again.
SELECT key, ended_at FROM task
 WHERE ended_at IS NOT NULL AND ended_at < :before AND ended_at >= :since AND (ended_at > :since OR key > :after)
 ORDER BY ended_at, key LIMIT :count;

-- name: task_purge_lock
-- One that is requeued right now is not among them.
SELECT key FROM task
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted) AND ended_at < :before
 ORDER BY key /*skip_locked*/;

-- name: task_purge_runs
-- The runs of tasks, which go with them.
SELECT r.key AS key, r.id AS id FROM task_run AS m JOIN run AS r ON r.id = m.run_id
 WHERE m.task IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
 ORDER BY r.key;

-- name: task_delete
DELETE FROM task WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: task_delete_events
DELETE FROM task_event WHERE task IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: task_delete_runs
DELETE FROM task_run WHERE task IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: task_delete_memory
DELETE FROM task_memory WHERE task IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: memory_put
INSERT INTO task_memory (task, name, value, by_run, updated_at) VALUES (:task, :name, :value, :by_run, :now)
ON CONFLICT (task, name) DO UPDATE SET value = excluded.value, by_run = excluded.by_run, updated_at = excluded.updated_at;

-- name: memory_get
SELECT value, by_run, updated_at FROM task_memory WHERE task = :task AND name = :name;

-- name: memory_list
SELECT name, value, by_run, updated_at FROM task_memory WHERE task = :task AND name > :after ORDER BY name LIMIT :count;

-- name: memory_count
SELECT COUNT(*) AS count, COALESCE(SUM(LENGTH(value)), 0) AS size FROM task_memory WHERE task = :task;

-- name: memory_forget
DELETE FROM task_memory WHERE task = :task AND name = :name;

-- name: task_identity
SELECT namespace, name, digest, command FROM task WHERE namespace = :namespace AND name = :name;

-- name: task_by_key
SELECT namespace, name FROM task WHERE key = :key;

-- name: task_find
-- Tasks whose names begin so, from :name on up to :high, which is behind them.
SELECT name FROM task WHERE namespace = :namespace AND name >= :name AND name < :high ORDER BY name LIMIT 6;

-- name: task_find_end
-- reads: many
-- Those of the newest :count tasks whose names end so (what is generated stands at the end).
SELECT newest.name AS name
  FROM (SELECT t.name AS name FROM task AS t WHERE t.namespace = :namespace ORDER BY -t.key LIMIT :count) AS newest
 WHERE SUBSTR(newest.name, LENGTH(newest.name) - LENGTH(:name) + 1, LENGTH(:name)) = :name
 ORDER BY newest.name LIMIT 6;

-- name: task_runs_forgotten
-- How many runs of a task a purge has taken.
SELECT COUNT(*) AS runs
  FROM task AS t JOIN task_run AS m ON m.task = t.key
 WHERE t.namespace = :namespace AND t.name = :name
   AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = m.run_id);

-- name: task_runs_to_stop
-- Runs of a task that have something to hear and that nobody holds.
SELECT q.run_id AS run_id
  FROM task AS t JOIN queue AS q ON q.task = t.key
 WHERE t.namespace = :namespace AND t.name = :name AND q.held = 0
   AND EXISTS (SELECT 1 FROM signal AS s WHERE s.run_id = q.run_id AND s.type = 'cancel.requested');

-- name: task_phases
-- reads: many
SELECT phase, COUNT(*) AS tasks FROM task GROUP BY phase;
