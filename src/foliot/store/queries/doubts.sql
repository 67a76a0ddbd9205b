-- Calls that may have acted. See migrations/0026_doubts.sql for the columns, store/doubts.py for who writes them.

-- name: doubt_put
-- locks: -
-- Only by the holder of the run, whose row is locked.
INSERT INTO doubt (run_id, key, call_id, namespace, family, signature, tool, reason, at, until)
VALUES (:run_id, :key, :call_id, :namespace, :family, :signature, :tool, :reason, :at, :until)
ON CONFLICT (run_id, key) DO UPDATE
   SET call_id = excluded.call_id, reason = excluded.reason, at = excluded.at, until = excluded.until,
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
-- acted, or of which a person has said so after their runs had ended; and who holds other runs of the family, with the
-- earliest end of a lease, because a call of a holder that died is in doubt before anybody has written so.
SELECT signature, run_id, key, call_id, reason, decision, decided_by, note, result, CAST(NULL AS REAL) AS lease_until
  FROM doubt
 WHERE family = :family AND signature IN (SELECT value FROM json_each(:signatures) AS wanted)
   AND (run_id <> :run_id OR late = 1) AND (decision = '' OR (decision = 'happened' AND late = 1))
UNION ALL
SELECT '', worker, '', '', '', '', '', '', CAST(NULL AS TEXT), MIN(lease_until)
  FROM run
 WHERE (root = :family OR id = :family) AND phase = 'running' AND id <> :run_id AND worker IS NOT NULL
 GROUP BY worker;

-- name: doubt_held_by
-- Runs of a family in the hands of somebody.
SELECT id FROM run WHERE (root = :family OR id = :family) AND phase = 'running' AND worker = :worker AND id <> :run_id ORDER BY id;

-- name: doubt_list
-- Open ones, oldest first. :ended 1: only of runs that have ended. An empty text means any.
SELECT d.run_id AS run_id, d.key AS key, d.call_id AS call_id, d.namespace AS namespace, d.family AS family, d.signature AS signature,
       d.tool AS tool, d.reason AS reason, d.at AS at, d.until AS until, d.decision AS decision, d.decided_by AS decided_by,
       d.decided_at AS decided_at, d.note AS note, d.result AS result, r.agent AS agent, r.phase AS phase
  FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.decision = '' AND (:namespace = '' OR d.namespace = :namespace)
   AND (:ended = 0 OR r.phase IN ('succeeded', 'failed', 'cancelled'))
   AND (d.at > :after OR (d.at = :after AND d.run_id > :after_run))
 ORDER BY d.at, d.run_id LIMIT :count;

-- name: doubt_of_run
SELECT d.run_id AS run_id, d.key AS key, d.call_id AS call_id, d.namespace AS namespace, d.family AS family, d.signature AS signature,
       d.tool AS tool, d.reason AS reason, d.at AS at, d.until AS until, d.decision AS decision, d.decided_by AS decided_by,
       d.decided_at AS decided_at, d.note AS note, d.result AS result, r.agent AS agent, r.phase AS phase
  FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.run_id = :run_id ORDER BY d.at, d.key;

-- name: doubt_of_keys
-- All that is known of calls (a JSON array of keys), whichever run says it.
SELECT d.run_id AS run_id, d.key AS key, d.call_id AS call_id, d.namespace AS namespace, d.family AS family, d.signature AS signature,
       d.tool AS tool, d.reason AS reason, d.at AS at, d.until AS until, d.decision AS decision, d.decided_by AS decided_by,
       d.decided_at AS decided_at, d.note AS note, d.result AS result, r.agent AS agent, r.phase AS phase
  FROM doubt AS d JOIN run AS r ON r.id = d.run_id
 WHERE d.key IN (SELECT value FROM json_each(:keys) AS wanted) ORDER BY d.at, d.run_id;

-- name: doubt_settle
-- Of a run that has ended and is locked: what a person says of its call. Of two who say so the first is believed.
UPDATE doubt SET decision = :decision, decided_by = :by, decided_at = :at, note = :note, result = :result, late = 1
 WHERE run_id = :run_id AND key = :key AND decision = '';

-- name: purge_doubts
DELETE FROM doubt WHERE run_id = :id;
