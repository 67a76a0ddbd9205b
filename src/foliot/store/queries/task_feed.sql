-- How tasks stood when they were last told. See migrations/0001_schema.sql.

-- name: task_feed_bounds
SELECT t.value AS told, d.value AS dropped, r.value AS revision
  FROM counter AS t, counter AS d, counter AS r
 WHERE t.name = 'task_told' AND d.name = 'task_dropped' AND r.name = 'revision';

-- name: task_feed_lock
SELECT value AS told FROM counter WHERE name = 'task_told' /*for_update*/;

-- name: task_feed_set
UPDATE counter SET value = :value WHERE name = :name;

-- name: task_feed_marks
-- reads: many
-- Of the newest tasks, of older ones that are at work, that were told as not ended and have, and of those in :also (a
-- JSON array of keys as text): what differs when something happened to one. The plus sign keeps SQLite from reading the
-- whole queue in the order of tasks.
WITH wanted AS MATERIALIZED (
    SELECT key FROM task WHERE key > :floor
    UNION SELECT +task AS key FROM queue WHERE held = 1
    UNION SELECT s.task AS key FROM task_told AS s JOIN task AS t ON t.key = s.task
           WHERE s.live = 1 AND t.phase NOT IN ('queued', 'running')
    UNION SELECT CAST(value AS BIGINT) AS key FROM json_each(:also) AS earlier)
SELECT w.key AS key, COALESCE(t.revision, 0) AS revision, CASE WHEN t.archived_at IS NULL THEN 0 ELSE 1 END AS archived,
       COUNT(q.run) AS live, COALESCE(SUM(q.held), 0) AS held, COALESCE(SUM(r.last_seq), 0) AS seq,
       COALESCE(SUM(r.epoch), 0) AS epochs,
       CASE WHEN COUNT(q.run) = 0 THEN 0 ELSE (SELECT COALESCE(SUM(b.last_seq), 0) FROM run AS b
            WHERE b.root = t.namespace || '/task/' || t.uid AND b.phase = 'waiting') END AS waits
  FROM wanted AS w LEFT JOIN task AS t ON t.key = w.key
  LEFT JOIN queue AS q ON q.task = w.key
  LEFT JOIN run AS r ON r.key = q.run
 GROUP BY w.key, t.revision, t.archived_at, t.namespace, t.uid;

-- name: task_feed_waiting
-- Tasks that were told as not ended, up to :floor, in the order of their keys.
SELECT task FROM task_told WHERE live = 1 AND task > :after AND task <= :floor ORDER BY task LIMIT :count;

-- name: task_feed_newest
SELECT COALESCE(MAX(key), 0) AS key FROM task;

-- name: task_feed_deleted
-- reads: many
SELECT s.task AS task FROM task_told AS s LEFT JOIN task AS t ON t.key = s.task WHERE s.gone = 0 AND t.key IS NULL;

-- name: task_feed_tasks
SELECT t.key AS key, t.uid AS uid, t.namespace AS namespace, t.name AS name, t.target_kind AS target_kind,
       t.target AS target, t.phase AS phase, t.revision AS revision, t.attempt AS attempt, t.priority AS priority,
       t.lane AS lane, t.spawned_by AS spawned_by, t.parent AS parent, t.labels AS labels, t.summary AS summary,
       t.timer_at AS timer_at, t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at,
       t.ended_at AS ended_at, t.archived_at AS archived_at, t.command AS command
  FROM json_each(:keys) AS wanted JOIN task AS t ON t.key = CAST(wanted.value AS BIGINT)
 ORDER BY t.key;

-- name: task_feed_live
-- Of these tasks (a JSON array of uids) those that have not ended. CROSS keeps SQLite from looking at all of those.
SELECT t.key AS key FROM json_each(:uids) AS wanted CROSS JOIN task AS t
 WHERE t.uid = wanted.value AND t.phase IN ('queued', 'running');

-- name: task_feed_told
SELECT s.task AS task, s.number AS number, s.first AS first, s.live AS live, s.gone AS gone, s.document AS document
  FROM json_each(:keys) AS wanted JOIN task_told AS s ON s.task = CAST(wanted.value AS BIGINT);

-- name: task_feed_put
INSERT INTO task_told (task, number, first, live, gone, document)
VALUES (:task, :number, :first, :live, :gone, :document)
ON CONFLICT (task) DO UPDATE
   SET number = excluded.number, live = excluded.live, gone = excluded.gone, document = excluded.document;

-- name: task_feed_behind
SELECT task, number, first, live, gone, document FROM task_told WHERE number > :after ORDER BY number LIMIT :count;

-- name: task_feed_live_told
SELECT task, number, first, live, gone, document FROM task_told WHERE live = 1 AND number <= :upto
 ORDER BY number DESC LIMIT :count;

-- name: task_feed_old
SELECT COALESCE(MAX(number), 0) AS number, COUNT(*) AS rows FROM task_told WHERE live = 0 AND task <= :floor;

-- name: task_feed_drop
DELETE FROM task_told WHERE live = 0 AND task <= :floor;
