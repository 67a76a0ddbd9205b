-- Tasks, what happened to them, and the runs that do their work. See migrations/0005_work.sql for the columns.

-- name: task_add
-- locks: -
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

-- name: task_list
-- Newest first. Empty texts mean any; :phases and :labels are JSON arrays of strings; a label is looked for as
-- it stands in the stored text.
SELECT t.key AS key, t.uid AS uid, t.namespace AS namespace, t.name AS name, t.target_kind AS target_kind,
       t.target AS target, t.phase AS phase, t.revision AS revision, t.attempt AS attempt, t.priority AS priority,
       t.lane AS lane, t.spawned_by AS spawned_by, t.parent AS parent, t.labels AS labels, t.summary AS summary,
       t.timer_at AS timer_at, t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at,
       t.ended_at AS ended_at, t.archived_at AS archived_at, t.command AS command
  FROM task AS t
 WHERE t.key < :before
   AND (:namespace = '' OR t.namespace = :namespace)
   AND (:target = '' OR t.target = :target)
   AND (:lane = '' OR t.lane = :lane)
   AND (:spawned_by = '' OR t.spawned_by = :spawned_by)
   AND (:parent = '' OR t.parent = :parent)
   AND t.created_at >= :after_time AND t.created_at <= :before_time
   AND (:archived = 1 OR t.archived_at IS NULL)
   AND t.phase IN (SELECT value FROM json_each(:phases) AS wanted)
   AND NOT EXISTS (SELECT 1 FROM json_each(:labels) AS pair WHERE REPLACE(t.labels, pair.value, '') = t.labels)
 ORDER BY t.key DESC LIMIT :count;

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
SELECT e.seq AS seq, e.at AS at, e.data AS data
  FROM task AS t JOIN task_event AS e ON e.task = t.key
 WHERE t.namespace = :namespace AND t.name = :name AND e.seq > :after
 ORDER BY e.seq LIMIT :count;

-- name: task_open_for
-- Tasks that have not ended and that an agent or a system has work in, oldest first; a few of them.
SELECT t.name AS name FROM task AS t
 WHERE t.namespace = :namespace AND t.ended_at IS NULL
   AND ((t.target_kind = :kind AND t.target = :name)
        OR (:kind = 'agent' AND EXISTS (SELECT 1 FROM queue AS q WHERE q.task = t.key AND q.agent = :name)))
 ORDER BY t.key LIMIT 6;

-- name: task_run_add
-- locks: -
INSERT INTO task_run (task, message, run_id) VALUES (:task, :message, :run_id);

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
-- is asked again, or its turn comes; `asks` is the summary of one that does not, `let_go` of one that nobody holds.
SELECT q.task AS task, COUNT(*) AS runs, SUM(CASE WHEN r.phase = 'waiting' THEN 1 ELSE 0 END) AS waiting,
       SUM(CASE WHEN r.epoch > 0 THEN 1 ELSE 0 END) AS begun,
       SUM(CASE WHEN r.phase = 'waiting' AND (r.summary LIKE '%"reason"_"model_retry"%'
                                              OR r.summary LIKE '%"reason"_"model_limit"%') THEN 1 ELSE 0 END) AS paused,
       MIN(CASE WHEN r.phase = 'waiting' AND r.summary NOT LIKE '%"reason"_"model_retry"%'
                     AND r.summary NOT LIKE '%"reason"_"model_limit"%' THEN r.summary END) AS asks,
       MIN(CASE WHEN q.held = 0 AND r.epoch > 0 THEN r.summary END) AS let_go,
       MIN(CASE WHEN q.held = 0 AND r.epoch > 0 AND q.due_at > r.updated_at
                     AND (r.phase = 'pending' OR r.summary LIKE '%"reason"_"model_retry"%'
                          OR r.summary LIKE '%"reason"_"model_limit"%') THEN q.due_at END) AS next_at,
       MIN(CASE WHEN q.held = 1 THEN (SELECT MIN(w.name) FROM worker AS w WHERE w.identity = r.worker) END) AS worker,
       MIN(CASE WHEN q.held = 1 THEN r.lease_until END) AS lease_until,
       MAX(CASE WHEN q.held = 1 THEN (SELECT MAX(w.heartbeat_at) FROM worker AS w WHERE w.identity = r.worker) END)
           AS heartbeat_at,
       MIN(CASE WHEN q.held = 1 THEN r.updated_at END) AS claimed_at
  FROM json_each(:tasks) AS wanted JOIN queue AS q ON q.task = CAST(wanted.value AS BIGINT)
  JOIN run AS r ON r.key = q.run
 GROUP BY q.task;

-- name: task_begun
SELECT 1 AS begun FROM queue AS q JOIN run AS r ON r.key = q.run WHERE q.task = :key AND r.epoch > 0 LIMIT 1;

-- name: task_purge_find
-- One that is requeued right now is not among them.
SELECT key FROM task WHERE ended_at < :before ORDER BY key LIMIT :count /*skip_locked*/;

-- name: task_delete
DELETE FROM task WHERE key = :key;

-- name: task_delete_events
DELETE FROM task_event WHERE task = :key;

-- name: task_delete_runs
DELETE FROM task_run WHERE task = :key;

-- name: task_delete_memory
DELETE FROM task_memory WHERE task = :key;

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
-- By name, or by the beginning or the end of it (what is generated stands at the end).
SELECT name FROM task
 WHERE namespace = :namespace
   AND (name = :name OR SUBSTR(name, 1, LENGTH(:name)) = :name
        OR SUBSTR(name, LENGTH(name) - LENGTH(:name) + 1, LENGTH(:name)) = :name)
 ORDER BY key DESC LIMIT 6;

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
SELECT phase, COUNT(*) AS tasks FROM task GROUP BY phase;
