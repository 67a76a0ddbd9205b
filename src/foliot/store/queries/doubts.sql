-- Calls that may have acted. See migrations/0001_schema.sql for the columns, store/ledger/doubts.py for who writes them.

-- name: doubt_put
-- locks: -
-- Only by the holder of the run, whose row is locked.
INSERT INTO doubt (run_id, key, call_id, namespace, family, signature, tool, reason, at, until, attempt)
VALUES (:run_id, :key, :call_id, :namespace, :family, :signature, :tool, :reason, :at, :until, :attempt)
ON CONFLICT (run_id, key) DO UPDATE
   SET call_id = excluded.call_id, reason = excluded.reason, at = excluded.at, until = excluded.until, attempt = excluded.attempt,
       decision = '', decided_by = '', decided_at = NULL, note = '', result = NULL, late = 0;

-- name: doubt_happened
-- locks: -
-- As a person has said to the run itself.
UPDATE doubt SET decision = 'happened', decided_by = :by, decided_at = :at, note = :note, result = :result
 WHERE run_id = :run_id AND key = :key;

-- name: doubt_remove
-- locks: -
DELETE FROM doubt WHERE run_id = :run_id AND key = :key;

-- name: doubt_look
-- What keeps calls of a run (a JSON array of signatures) from being made: the same calls of its family that may have
-- acted, or of which a person has said so (to another run, or after the end of this one); and who holds other runs of the
-- family, with the earliest end of a lease, because a call of a holder that died is in doubt before anybody has written so.
-- :family names the namespace as well; :own is the run that the others come from, or nothing.
SELECT signature, run_id, key, call_id, reason, decision, decided_by, note, result, CAST(NULL AS REAL) AS lease_until
  FROM doubt
 WHERE family = :family AND signature IN (SELECT value FROM json_each(:signatures) AS wanted)
   AND (run_id <> :run_id OR late = 1) AND decision IN ('', 'happened')
UNION ALL
SELECT '', worker, '', '', '', '', '', '', CAST(NULL AS TEXT), MIN(lease_until)
  FROM run
 WHERE (root = :family OR (id = :own AND namespace = :namespace))
   AND phase = 'running' AND id <> :run_id AND worker IS NOT NULL
 GROUP BY worker;

-- name: doubt_held_by
-- Runs of a family in the hands of somebody.
SELECT id FROM run
 WHERE (root = :family OR (id = :own AND namespace = :namespace)) AND phase = 'running' AND worker = :worker AND id <> :run_id
 ORDER BY id;

-- name: doubt_list
-- reads: many
-- Open ones, oldest first. :ended 1: only of runs that have ended. An empty text means any.
-- An effect that several runs are asked about is one question: that of the oldest run which waits for the answer, else of
-- the oldest that has ended.
SELECT d.run_id AS run_id, d.key AS key, d.call_id AS call_id, d.namespace AS namespace, d.family AS family, d.signature AS signature,
       d.tool AS tool, d.reason AS reason, d.at AS at, d.until AS until, d.decision AS decision, d.decided_by AS decided_by,
       d.decided_at AS decided_at, d.note AS note, d.result AS result, d.attempt AS attempt, r.agent AS agent, r.phase AS phase
  FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.decision = '' AND (:namespace = '' OR d.namespace = :namespace)
   AND (:ended = 0 OR r.phase IN ('succeeded', 'failed', 'cancelled'))
   AND (d.at, d.run_id, d.call_id) > (:after, :after_run, :after_call)
   AND NOT EXISTS (
       SELECT 1 FROM doubt AS o JOIN run AS q ON q.id = o.run_id
        WHERE o.key = d.key AND o.namespace = d.namespace AND o.decision = '' AND o.run_id <> d.run_id
          AND (:ended = 0 OR q.phase IN ('succeeded', 'failed', 'cancelled'))
          AND (CASE WHEN q.phase IN ('succeeded', 'failed', 'cancelled') THEN 1 ELSE 0 END, o.at, o.run_id)
            < (CASE WHEN r.phase IN ('succeeded', 'failed', 'cancelled') THEN 1 ELSE 0 END, d.at, d.run_id))
 ORDER BY d.at, d.run_id, d.call_id LIMIT :count;

-- name: doubt_count
-- reads: many
-- How many questions `doubt_list` would give, one for each effect.
SELECT COUNT(*) AS questions FROM (
    SELECT DISTINCT d.namespace, d.key FROM doubt AS d JOIN run AS r ON r.id = d.run_id
     WHERE d.decision = '' AND (:namespace = '' OR d.namespace = :namespace)
       AND (:ended = 0 OR r.phase IN ('succeeded', 'failed', 'cancelled'))) AS asked;

-- name: doubt_of_run
SELECT d.run_id AS run_id, d.key AS key, d.call_id AS call_id, d.namespace AS namespace, d.family AS family, d.signature AS signature,
       d.tool AS tool, d.reason AS reason, d.at AS at, d.until AS until, d.decision AS decision, d.decided_by AS decided_by,
       d.decided_at AS decided_at, d.note AS note, d.result AS result, d.attempt AS attempt, r.agent AS agent, r.phase AS phase
  FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.run_id = :run_id ORDER BY d.at, d.key;

-- name: doubt_of_keys
-- All that is known of calls (a JSON array of keys) in a namespace, whichever run says it. A key can come from outside, in
-- the messages that a run goes on from: what other namespaces say of it is none of its business.
SELECT d.run_id AS run_id, d.key AS key, d.call_id AS call_id, d.namespace AS namespace, d.family AS family, d.signature AS signature,
       d.tool AS tool, d.reason AS reason, d.at AS at, d.until AS until, d.decision AS decision, d.decided_by AS decided_by,
       d.decided_at AS decided_at, d.note AS note, d.result AS result, d.attempt AS attempt, r.agent AS agent, r.phase AS phase
  FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.key IN (SELECT value FROM json_each(:keys) AS wanted) AND d.namespace = :namespace ORDER BY d.at, d.run_id;

-- name: doubt_runs_of_key
-- The runs that are asked about an effect, or were.
SELECT r.key AS key FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.key = :key AND d.namespace = :namespace ORDER BY r.key;

-- name: doubt_settle
-- What a person says of an effect, in the rows of runs that have ended. All runs that are asked about it are locked. Of
-- two who say so the first is believed; only that it is run now (:decision run) goes beyond that it had not happened.
UPDATE doubt SET decision = :decision, decided_by = :by, decided_at = :at, note = :note, result = :result, late = 1
 WHERE key = :key AND namespace = :namespace AND (decision = '' OR (decision = 'not_happened' AND :decision = 'run'))
   AND EXISTS (SELECT 1 FROM run AS r WHERE r.id = doubt.run_id AND r.phase IN ('succeeded', 'failed', 'cancelled'));

-- name: purge_doubts
DELETE FROM doubt WHERE run_id IN (SELECT value FROM json_each(:ids) AS wanted);
