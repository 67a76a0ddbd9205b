-- The queue of runs that belong to tasks. See migrations/0008_queue.sql for the columns.

-- name: queue_add
INSERT INTO queue (run, run_id, task, namespace, agent, lane, class, priority, due_at, held, requirements)
VALUES (:run, :run_id, :task, :namespace, :agent, :lane, :class, :priority, :due_at, 0, :requirements);

-- name: queue_let_go
UPDATE queue SET held = 0, due_at = :due_at WHERE run = :run;

-- name: queue_remove
DELETE FROM queue WHERE run = :run;

-- name: queue_wake
UPDATE queue SET due_at = :now WHERE run_id = :run_id AND held = 0 AND (due_at IS NULL OR due_at > :now);

-- name: queue_prolong
UPDATE queue SET due_at = :until WHERE run = :run AND held = 1 AND due_at < :until;
