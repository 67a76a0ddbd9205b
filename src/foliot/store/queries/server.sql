-- What only the server asks.

-- name: namespace_list
-- The recursions hop from one namespace to the next in an index.
WITH RECURSIVE declared (name) AS (
    SELECT MIN(r.namespace) FROM resource AS r
    UNION ALL
    SELECT (SELECT MIN(r.namespace) FROM resource AS r WHERE r.namespace > d.name) FROM declared AS d
     WHERE d.name IS NOT NULL),
working (name) AS (
    SELECT MIN(t.namespace) FROM task AS t
    UNION ALL
    SELECT (SELECT MIN(t.namespace) FROM task AS t WHERE t.namespace > w.name) FROM working AS w
     WHERE w.name IS NOT NULL)
SELECT name AS namespace FROM declared WHERE name IS NOT NULL
 UNION
SELECT name FROM working WHERE name IS NOT NULL
 ORDER BY 1;

-- name: marks
-- Of these runs and tasks (JSON arrays of ids, and of keys as text): what differs when something happened to one. A run
-- that ends changes the revision of its task, so of a task only those under way are looked at.
SELECT 'run' AS kind, r.id AS name, r.last_seq AS seq, r.phase AS phase, 0 AS revision, 0 AS live
  FROM json_each(:runs) AS wanted JOIN run AS r ON r.id = wanted.value
UNION ALL
SELECT 'task', CAST(t.key AS TEXT), COALESCE(SUM(r.last_seq), 0), CASE WHEN t.archived_at IS NULL THEN '' ELSE 'archived' END,
       t.revision, COUNT(q.run)
  FROM json_each(:tasks) AS wanted JOIN task AS t ON t.key = CAST(wanted.value AS BIGINT)
  LEFT JOIN queue AS q ON q.task = t.key
  LEFT JOIN run AS r ON r.key = q.run
 GROUP BY t.key, t.revision, t.archived_at;
