-- Processes that take runs. See migrations/0001_schema.sql for the columns.


-- name: worker_put
INSERT INTO worker (name, identity, region, gpu, models, labels, isolation, capacity, phase, started_at, heartbeat_at)
VALUES (:name, :identity, :region, :gpu, :models, :labels, :isolation, :capacity, 'ready', :now, :now)
ON CONFLICT (name) DO UPDATE
   SET identity = excluded.identity, region = excluded.region, gpu = excluded.gpu, models = excluded.models,
       labels = excluded.labels, isolation = excluded.isolation, capacity = excluded.capacity, phase = 'ready', beats = 0, clock_off = 0,
       started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at;

-- name: worker_beat
UPDATE worker SET heartbeat_at = :now, phase = :phase, clock_off = :clock_off, isolation = :isolation, capacity = :capacity,
       beats = beats + 1
 WHERE name = :name AND identity = :identity
RETURNING beats, (SELECT incarnation FROM store_life) AS incarnation;

-- name: worker_list
SELECT name, identity, region, gpu, models, labels, isolation, capacity, phase, started_at, heartbeat_at, clock_off
  FROM worker ORDER BY name;

-- name: worker_loads
-- Runs that are held are no more than the workers have places.
SELECT r.worker AS identity, COUNT(*) AS current
  FROM queue AS q JOIN run AS r ON r.key = q.run WHERE q.held = 1 GROUP BY r.worker;

-- name: worker_loads_of
-- How many runs of a namespace each worker holds.
SELECT r.worker AS identity, COUNT(*) AS current
  FROM queue AS q JOIN run AS r ON r.key = q.run WHERE q.namespace = :namespace AND q.held = 1 GROUP BY r.worker;

-- name: worker_alive
SELECT identity FROM worker WHERE phase NOT IN ('stopped', 'lost') AND identity <> :identity;

-- name: worker_others
-- The processes that work or hold runs of tasks, but for one.
SELECT identity FROM worker WHERE phase NOT IN ('stopped', 'lost') AND identity <> :identity
UNION
SELECT r.worker AS identity FROM queue AS q JOIN run AS r ON r.key = q.run
 WHERE q.held = 1 AND r.worker IS NOT NULL AND r.worker <> :identity;

-- name: worker_lose
-- Its process has died without a word: its last sign of life says since when, at the latest.
UPDATE worker SET phase = 'lost' WHERE identity = :identity AND phase NOT IN ('stopped', 'lost');

-- name: worker_forget
DELETE FROM worker WHERE heartbeat_at < :before;
