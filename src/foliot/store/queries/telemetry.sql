-- What is measured when somebody looks: a few grouped reads over what is live, never over history.

-- name: telemetry_queue
-- reads: many
SELECT namespace,
       SUM(CASE WHEN held = 0 AND due_at <= :now THEN 1 ELSE 0 END) AS due,
       SUM(CASE WHEN held = 0 AND due_at > :now THEN 1 ELSE 0 END) AS later,
       SUM(CASE WHEN held = 0 AND due_at IS NULL THEN 1 ELSE 0 END) AS parked,
       SUM(CASE WHEN held = 1 THEN 1 ELSE 0 END) AS held,
       MIN(CASE WHEN held = 0 AND due_at <= :now THEN due_at END) AS oldest_due
  FROM queue GROUP BY namespace ORDER BY namespace;

-- name: telemetry_in_flight
-- reads: many
SELECT agent, COUNT(*) AS messages FROM queue GROUP BY agent ORDER BY agent;

-- name: telemetry_runs
-- reads: many
SELECT phase, COUNT(*) AS runs FROM run WHERE phase IN ('pending', 'running', 'waiting') GROUP BY phase ORDER BY phase;

-- name: telemetry_leases
-- reads: many
-- A run that is held was last touched when it was claimed: that is how old the lease is.
SELECT COUNT(*) AS held, MIN(updated_at) AS oldest,
       SUM(CASE WHEN lease_until < :now THEN 1 ELSE 0 END) AS expired,
       MIN(CASE WHEN lease_until < :now THEN lease_until END) AS expired_since
  FROM run WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'running';

-- name: telemetry_waiting
-- reads: many
SELECT id, namespace, updated_at, summary FROM run WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'waiting' ORDER BY id LIMIT :count;

-- name: telemetry_expired
-- reads: many
SELECT id, namespace, agent, worker, lease_until FROM run
 WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'running' AND lease_until < :before ORDER BY lease_until LIMIT :count;

-- name: telemetry_pending
-- reads: many
SELECT id, namespace, agent, updated_at FROM run
 WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'pending' AND updated_at < :before ORDER BY updated_at LIMIT :count;

-- name: telemetry_tasks
-- reads: many
SELECT phase, COUNT(*) AS tasks FROM task WHERE phase IN ('queued', 'running', 'waiting', 'dead_lettered')
 GROUP BY phase ORDER BY phase;
