-- Runs of which somebody should make sure that they go on.

-- name: run_unattended
-- reads: many
-- Live runs that belong neither to a task nor to a run that delegated to them, oldest first: nobody but who began one
-- goes on with it. :namespaces is a JSON array; an empty one means any. Of those that wait only the ones that a signal or a time of day lets go on. The plus signs keep
-- SQLite from walking through all runs that ever ended, in the order of their keys.
SELECT r.key AS key, r.id AS id, r.phase AS phase, r.worker AS worker, r.lease_until AS lease_until,
       r.last_seq AS last_seq, r.summary AS summary,
       (SELECT COUNT(*) FROM signal AS s WHERE s.run_id = r.id) AS signals
  FROM run AS r
 WHERE +r.key > :after
   AND r.phase IN ('pending', 'running', 'waiting')
   AND (:namespaces = '[]' OR r.namespace IN (SELECT value FROM json_each(:namespaces) AS wanted))
   AND (r.parent IS NULL OR r.parent_seq IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM task_run AS t WHERE t.run_id = r.id)
   AND (r.phase <> 'waiting' OR r.summary NOT LIKE '%"until"_null%'
        OR EXISTS (SELECT 1 FROM signal AS s WHERE s.run_id = r.id))
 ORDER BY +r.key LIMIT :count;

-- name: run_paused
-- reads: many
-- Runs that wait for a budget, a page of them.
SELECT id, namespace, summary FROM run
 WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'waiting' AND id > :after AND summary LIKE '%"reason"_"budget"%'
 ORDER BY id LIMIT :count;

-- name: run_waiting_for_model
-- reads: many
-- Runs of a namespace whose model failed and is asked again later, or that wait for their turn there, a page of them.
SELECT id FROM run
 WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'waiting' AND id > :after AND namespace = :namespace
   AND (summary LIKE '%"reason"_"model_retry"%' OR summary LIKE '%"reason"_"model_limit"%')
 ORDER BY id LIMIT :count;

-- name: queue_hasten
-- Runs of a namespace that are to be tried again later: now.
UPDATE queue SET due_at = :now
 WHERE namespace = :namespace AND held = 0 AND due_at > :now
   AND EXISTS (SELECT 1 FROM run AS r WHERE r.key = queue.run AND r.phase = 'pending');

-- name: class_forget_namespace
DELETE FROM work_class WHERE namespace = :namespace;
