-- The queue of runs that belong to tasks. See migrations/0001_schema.sql for the columns.

-- name: queue_add
-- locks: -
INSERT INTO queue (run, run_id, task, namespace, agent, lane, class, priority, line, due_at, held, max_running,
                   requirements)
VALUES (:run, :run_id, :task, :namespace, :agent, :lane, :class, :priority, :line, :due_at, 0, :max_running,
        :requirements);

-- name: queue_hold
-- locks: -
UPDATE queue SET held = 1, place = CASE WHEN held = 0 THEN due_at ELSE place END, due_at = :until WHERE run = :run;

-- name: queue_let_go
-- locks: -
UPDATE queue SET held = 0, due_at = :due_at, let_go = 1, place = NULL, lost = 0 WHERE run = :run;

-- name: queue_hand_back
-- locks: -
UPDATE queue SET held = 0, due_at = COALESCE(place, 0.0), let_go = 1, place = NULL, lost = 0 WHERE run = :run;

-- name: queue_take_back
-- locks: -
-- Whoever held it is gone: it has the place in its line that it had, :most times.
UPDATE queue
   SET held = 0, let_go = 1, lost = lost + 1, due_at = CASE WHEN lost < :most AND place < :due_at THEN place ELSE :due_at END
 WHERE run = :run;

-- name: queue_place
SELECT priority, namespace, agent, lane, class, requirements FROM queue WHERE run = :run;

-- name: queue_move
UPDATE queue SET requirements = :requirements, line = :line WHERE run = :run;

-- name: queue_remove
-- locks: -
DELETE FROM queue WHERE run = :run;

-- name: queue_wake
-- locks: -
UPDATE queue SET due_at = :now WHERE run_id = :run_id AND held = 0 AND (due_at IS NULL OR due_at > :now);

-- name: queue_unheard
-- reads: many
-- Runs that wait although somebody told them something. Signals first, which are few: CROSS keeps SQLite to that order.
SELECT DISTINCT q.run_id AS run_id
  FROM signal AS s CROSS JOIN queue AS q
 WHERE q.run_id = s.run_id AND q.held = 0 AND (q.due_at IS NULL OR q.due_at > :now)
 ORDER BY q.run_id LIMIT :count;

-- name: queue_of_task
SELECT run FROM queue WHERE task = :task;

-- name: queue_prolong
-- locks: -
-- A row that somebody keeps locked is passed over: the lease of its run is what counts, and it is prolonged next time.
UPDATE queue SET due_at = :until
 WHERE run IN (SELECT q.run FROM queue AS q
                WHERE q.run IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:runs) AS wanted)
                  AND q.held = 1 AND q.due_at < :until
                ORDER BY q.run /*skip_locked*/);

-- name: queue_lines
-- Lines behind :after in which somebody waits, urgent ones first, each with its first run and how many of it are held; no
-- more than :each that are equally urgent in one namespace. The recursion hops from line to line in the index, and over
-- the rest of a namespace (a tilde sorts behind every digit): its price is the number of lines it gives, not of runs.
-- Then the lines of the leases that end next, or have ended.
WITH RECURSIVE head (line, before, n) AS (
    SELECT MIN(q.line), SUBSTR(MIN(q.line), 1, 0), CAST(0 AS BIGINT)
      FROM queue AS q WHERE q.held = 0 AND q.due_at IS NOT NULL AND q.line > :after
    UNION ALL
    SELECT (SELECT MIN(q.line) FROM queue AS q
             WHERE q.held = 0 AND q.due_at IS NOT NULL
               AND q.line > CASE WHEN CASE WHEN SUBSTR(h.line, 1, 11) = SUBSTR(h.before, 1, 11) THEN h.n + 1 ELSE 1 END
                                      >= :each THEN SUBSTR(h.line, 1, 11) || '~' ELSE h.line END),
           h.line,
           CASE WHEN SUBSTR(h.line, 1, 11) = SUBSTR(h.before, 1, 11) THEN h.n + 1 ELSE 1 END
      FROM head AS h WHERE h.line IS NOT NULL)
SELECT s.line AS line, s.namespace AS namespace, s.agent AS agent, s.lane AS lane, s.class AS class,
       s.requirements AS requirements, s.max_running AS max_running, h.waits AS waits,
       CASE WHEN s.held = 0 THEN s.due_at END AS ready_at,
       (SELECT MIN(q.due_at) FROM queue AS q WHERE q.line = s.line AND q.held = 0 AND q.due_at > :now) AS next_at,
       (SELECT MIN(q.due_at) FROM queue AS q WHERE q.line = s.line AND q.held = 1 AND q.due_at IS NOT NULL) AS lapses_at,
       (SELECT COUNT(*) FROM queue AS q WHERE q.line = s.line AND q.held = 1 AND q.due_at IS NOT NULL) AS running
  FROM (SELECT w.line AS line, 1 AS waits
          FROM (SELECT head.line AS line FROM head WHERE head.line IS NOT NULL LIMIT :count) AS w
        UNION ALL
        SELECT e.line AS line, 0 AS waits
          FROM (SELECT q.line AS line FROM queue AS q WHERE q.held = 1 ORDER BY q.due_at LIMIT 16) AS e) AS h
  JOIN queue AS s ON s.run = COALESCE(
       (SELECT q.run FROM queue AS q WHERE q.line = h.line AND q.held = 0 AND q.due_at IS NOT NULL
         ORDER BY q.due_at, q.run LIMIT 1),
       (SELECT q.run FROM queue AS q WHERE q.line = h.line AND q.held = 1 AND q.due_at IS NOT NULL
         ORDER BY q.due_at, q.run LIMIT 1))
 ORDER BY s.line, h.waits DESC;

-- name: queue_take
-- The first runs of a line. The row of the run is locked with it: who is ending that run right now locks it first.
SELECT q.run AS run, q.run_id AS run_id, r.phase AS phase, r.lease_until AS lease_until, r.epoch AS epoch,
       CASE WHEN r.left_seq IN (r.last_seq, -r.last_seq) THEN r.left_seq
            WHEN r.worker IS NULL THEN r.last_seq ELSE -r.last_seq END AS left_seq
  FROM queue AS q JOIN run AS r ON r.key = q.run
 WHERE q.line = :line AND q.held = 0 AND q.due_at <= :now
 ORDER BY q.due_at, q.run LIMIT :count /*skip_locked*/;

-- name: queue_lapsed
SELECT q.run AS run, q.run_id AS run_id, q.due_at AS due_at, r.phase AS phase, r.lease_until AS lease_until
  FROM queue AS q JOIN run AS r ON r.key = q.run
 WHERE q.line = :line AND q.held = 1 AND q.due_at < :now
 ORDER BY q.due_at, q.run LIMIT :count /*skip_locked*/;

-- name: queue_due
-- The runs that are named first: CROSS keeps SQLite to that order.
SELECT q.run_id AS run_id, q.namespace AS namespace, q.requirements AS requirements
  FROM json_each(:run_ids) AS wanted CROSS JOIN queue AS q
 WHERE q.run_id = wanted.value AND q.held = 0 AND q.due_at <= :now;

-- name: queue_claim
-- Both rows are locked by whoever found them: nobody came in between.
UPDATE run SET phase = 'running', epoch = :epoch, worker = :worker, lease_until = :until, updated_at = :now,
       left_seq = :left_seq
 WHERE key = :key;

-- name: queue_orphans
-- Runs of tasks whose holder is known to have died.
SELECT q.run AS run FROM queue AS q JOIN run AS r ON r.key = q.run
 WHERE q.held = 1 AND r.worker = :identity
   /*skip_locked*/;

-- name: queue_claimed
-- What one claim of a worker took: no other lease of it ends at the very same moment.
SELECT q.run AS run, q.run_id AS run_id, q.namespace AS namespace, r.epoch AS epoch,
       r.left_seq AS left_seq FROM queue AS q JOIN run AS r ON r.key = q.run
 WHERE q.held = 1 AND q.due_at = :until AND r.worker = :identity AND r.lease_until = :until;

-- name: queue_brief
-- What whoever has just claimed these runs (a JSON array of ids) must know to begin with them.
SELECT r.id AS run_id, r.last_seq AS last_seq, e.seq AS seq, e.at AS at, e.type AS type, e.data AS data, e.blob AS blob,
       e.link AS link, (SELECT pinned.data FROM run_pin AS pinned WHERE pinned.key = r.pin) AS pin, m.message AS message,
       t.key AS key, t.uid AS uid, t.namespace AS namespace, t.name AS name, t.plan AS plan, t.command AS command,
       t.priority AS priority, t.lane AS lane,
       CASE WHEN EXISTS (SELECT 1 FROM signal AS s WHERE s.run_id = r.id) THEN 1 ELSE 0 END AS told
  FROM json_each(:run_ids) AS wanted JOIN run AS r ON r.id = wanted.value
  JOIN event AS e ON e.run = r.key AND e.seq = 1
  JOIN task_run AS m ON m.run_id = r.id JOIN task AS t ON t.key = m.task;

-- name: queue_void
UPDATE run SET lease_until = 0 WHERE key = :key AND worker = :identity AND phase = 'running';

-- name: queue_depth
-- reads: many
SELECT namespace, COUNT(*) AS runs, SUM(held) AS running,
       SUM(CASE WHEN held = 0 AND due_at <= :now THEN 1 ELSE 0 END) AS due, MIN(due_at) AS oldest
  FROM queue GROUP BY namespace ORDER BY namespace;

-- name: limit_set
INSERT INTO work_limit (scope, name, max_running) VALUES (:scope, :name, :max_running)
ON CONFLICT (scope, name) DO UPDATE SET max_running = excluded.max_running;

-- name: limit_clear
DELETE FROM work_limit WHERE scope = :scope AND name = :name;

-- name: limit_ensure
INSERT INTO work_limit (scope, name, max_running) VALUES (:scope, :name, 0) ON CONFLICT (scope, name) DO NOTHING;

-- name: limit_list
SELECT scope, name, max_running FROM work_limit WHERE scope <> 'definition' ORDER BY scope, name;

-- name: limit_lock
SELECT max_running FROM work_limit WHERE scope = :scope AND name = :name /*for_update*/;

-- name: limit_running_namespace
SELECT COUNT(*) AS running FROM queue WHERE namespace = :namespace AND held = 1;

-- name: limit_running_agent
SELECT COUNT(*) AS running FROM queue WHERE namespace = :namespace AND agent = :name AND held = 1;

-- name: limit_running_lane
SELECT COUNT(*) AS running FROM queue WHERE namespace = :namespace AND lane = :name AND held = 1;

-- name: bound_list
-- What stands in the way of some runs: limits, classes that are open, and that others share the workers (something is
-- declared in more than one namespace). And which store this is.
SELECT scope, name, max_running, CAST(NULL AS REAL) AS opened_at FROM work_limit WHERE scope <> 'definition'
UNION ALL
SELECT 'class', key, failures, opened_at FROM work_class WHERE opened_at IS NOT NULL
UNION ALL
SELECT 'shared', '', 0, NULL
 WHERE (SELECT MIN(namespace) FROM resource WHERE namespace > '') < (SELECT MAX(namespace) FROM resource)
UNION ALL
SELECT 'store', incarnation, 0, NULL FROM store_life;

-- name: class_failed
-- locks: limit/class key
-- One more in a row. At :threshold the class opens; a failure while it is open begins the wait anew.
INSERT INTO work_class (key, namespace, agent, lane, failures, failed_at, opened_at, probe)
VALUES (:key, :namespace, :agent, :lane, 1, :now, NULL, NULL)
ON CONFLICT (key) DO UPDATE
   SET failures = work_class.failures + 1, failed_at = excluded.failed_at, probe = NULL,
       opened_at = CASE WHEN work_class.failures + 1 >= :threshold THEN excluded.failed_at END
RETURNING failures, opened_at;

-- name: class_well
-- locks: limit/class key
DELETE FROM work_class WHERE key = :key;

-- name: class_lock
SELECT c.opened_at AS opened_at, c.probe AS probe FROM work_class AS c WHERE c.key = :key /*for_update*/;

-- name: class_probing
SELECT run FROM queue WHERE run = :run AND held = 1;

-- name: class_probe
UPDATE work_class SET probe = :run WHERE key = :key;

-- name: class_list
SELECT key, namespace, agent, lane, failures, failed_at, opened_at, probe FROM work_class ORDER BY namespace, agent, key;
