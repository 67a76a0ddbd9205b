-- What a store is, beside its contents. See migrations/0001_schema.sql for the columns.

-- name: life_get
SELECT incarnation, set_back_at, set_back FROM store_life;

-- name: life_set_back
UPDATE store_life SET set_back_at = :now, set_back = :what;

-- name: held_by_runs
-- reads: many
-- The next runs, and the bytes of their events.
SELECT r.key AS key, r.namespace AS namespace,
       CAST(COALESCE((SELECT SUM(LENGTH(e.data)) FROM event AS e WHERE e.run = r.key), 0) AS BIGINT) AS size
  FROM run AS r WHERE r.key > :after ORDER BY r.key LIMIT :count;

-- name: held_by_tasks
-- reads: many
SELECT t.key AS key, t.namespace AS namespace,
       CAST(COALESCE((SELECT SUM(LENGTH(e.data)) FROM task_event AS e WHERE e.task = t.key), 0) AS BIGINT) AS size
  FROM task AS t WHERE t.key > :after ORDER BY t.key LIMIT :count;

-- name: held_by_changes
-- reads: many
SELECT revision AS key, namespace, LENGTH(document) AS size
  FROM change WHERE revision > :after ORDER BY revision LIMIT :count;

-- name: held_by_resources
-- reads: many
SELECT key, namespace, LENGTH(document) AS size FROM resource WHERE key > :after ORDER BY key LIMIT :count;

-- name: held_content
-- reads: many
-- The next content, and again with each namespace of a run, a session or a folder that has it. SQLite keeps the order of
-- a CROSS JOIN: it would otherwise begin with all uses.
WITH part (digest, size) AS (
    SELECT digest, LENGTH(data) FROM blob WHERE digest > :after ORDER BY digest LIMIT :count
)
SELECT part.digest AS digest, part.size AS size, '' AS namespace FROM part
 UNION
SELECT part.digest, part.size, r.namespace
  FROM part CROSS JOIN blob_use AS u CROSS JOIN run AS r WHERE u.digest = part.digest AND r.key = u.run
 UNION
SELECT part.digest, part.size, s.namespace
  FROM part CROSS JOIN asset AS a CROSS JOIN session AS s WHERE a.digest = part.digest AND s.key = a.session
 UNION
SELECT part.digest, part.size, f.namespace
  FROM part CROSS JOIN folder_content AS c CROSS JOIN folder AS f WHERE c.digest = part.digest AND f.key = c.folder;

-- name: oldest_tasks
-- reads: many
-- The next tasks of a namespace, the oldest first, also those that are not over: so a look ends after :count of them.
SELECT key, CASE WHEN ended_at < :before THEN 1 ELSE 0 END AS ended
  FROM task WHERE namespace = :namespace AND (-key) < :after ORDER BY (-key) DESC LIMIT :count;

-- name: oldest_runs
-- reads: many
-- Likewise; a turn stays as long as its session.
SELECT key, id,
       CASE WHEN phase IN ('succeeded', 'failed', 'cancelled') AND updated_at < :before
             AND COALESCE((SELECT 1 FROM session_turn AS t WHERE t.run_id = run.id LIMIT 1), 0) = 0 THEN 1 ELSE 0 END AS ended
  FROM run WHERE namespace = :namespace AND (-key) < :after ORDER BY (-key) DESC LIMIT :count;

-- name: oldest_sessions
-- reads: many
-- Likewise, by when somebody last spoke: one ends when it is archived and nothing goes on in it.
SELECT key, id, active_at,
       CASE WHEN archived_at < :before AND turn IS NULL
             AND NOT EXISTS (SELECT 1 FROM inbox AS i
                              WHERE i.owner_kind = 'session' AND i.owner = session.key
                                AND i.status IN ('pending', 'offered')) THEN 1 ELSE 0 END AS ended
  FROM session WHERE namespace = :namespace AND (active_at, key) > (:since, :after)
 ORDER BY active_at, key LIMIT :count;
