-- The audit log. See migrations/0001_schema.sql for the columns.

-- name: audit_head
SELECT seq, hash FROM audit_head WHERE name = 'head';

-- name: audit_turn
-- locks: audit
-- Two writers must not put their records behind the same one.
SELECT seq, hash FROM audit_head WHERE name = 'head' /*for_update*/;

-- name: audit_add
-- locks: -
INSERT INTO audit (seq, at, moment, namespace, agent, tool, run_id, call_id, outcome, data, hash)
VALUES (:seq, :at, :moment, :namespace, :agent, :tool, :run_id, :call_id, :outcome, :data, :hash);

-- name: audit_advance
-- locks: -
UPDATE audit_head SET seq = :seq, hash = :hash WHERE name = 'head';

-- name: audit_advance_from
-- locks: audit
-- Only from where the caller has left it, which nobody else has moved.
UPDATE audit_head SET seq = :seq, hash = :hash WHERE name = :name AND seq = :after AND hash = :behind;

-- name: audit_read
SELECT seq, at, moment, namespace, agent, tool, run_id, call_id, outcome, data, hash
  FROM audit WHERE seq > :after ORDER BY seq LIMIT :count;

-- name: audit_get
SELECT seq, data, hash FROM audit WHERE seq = :seq;

-- name: audit_find
-- reads: many
-- Newest first, with one query for each index; an empty text means any.
SELECT seq, data, hash
  FROM audit
 WHERE namespace = :namespace AND -seq > -CAST(:before AS BIGINT) AND at >= :since AND at < :until
   AND (:agent = '' OR agent = :agent)
   AND (:call_id = '' OR call_id = :call_id)
   AND (:moment = '' OR moment = :moment)
   AND (:outcome = '' OR outcome = :outcome)
 ORDER BY -seq LIMIT :count;

-- name: audit_find_everywhere
-- reads: many
SELECT seq, data, hash
  FROM audit
 WHERE seq < :before AND at >= :since AND at < :until
   AND (:agent = '' OR agent = :agent)
   AND (:call_id = '' OR call_id = :call_id)
   AND (:moment = '' OR moment = :moment)
   AND (:outcome = '' OR outcome = :outcome)
 ORDER BY seq DESC LIMIT :count;

-- name: audit_find_tool
-- reads: many
SELECT seq, data, hash
  FROM audit
 WHERE namespace = :namespace AND tool = :tool AND 0 - seq > 0 - CAST(:before AS BIGINT) AND at >= :since AND at < :until
   AND (:agent = '' OR agent = :agent)
   AND (:call_id = '' OR call_id = :call_id)
   AND (:moment = '' OR moment = :moment)
   AND (:outcome = '' OR outcome = :outcome)
 ORDER BY 0 - seq LIMIT :count;

-- name: audit_find_tool_everywhere
-- reads: many
-- By namespaces: see run_keys_in_phases_everywhere.
WITH RECURSIVE space (name) AS (
    SELECT MIN(a.namespace) FROM audit AS a
    UNION ALL
    SELECT (SELECT MIN(a.namespace) FROM audit AS a WHERE a.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT audit.seq AS seq, audit.data AS data, audit.hash AS hash FROM space AS s CROSS JOIN audit
 WHERE audit.seq IN (SELECT a.seq FROM audit AS a
        WHERE a.namespace = s.name AND a.tool = :tool AND 0 - a.seq > 0 - CAST(:before AS BIGINT)
          AND a.at >= :since AND a.at < :until
          AND (:agent = '' OR a.agent = :agent)
          AND (:call_id = '' OR a.call_id = :call_id)
          AND (:moment = '' OR a.moment = :moment)
          AND (:outcome = '' OR a.outcome = :outcome)
        ORDER BY 0 - a.seq LIMIT :count)
 ORDER BY audit.seq DESC LIMIT :count;

-- name: audit_find_run
-- reads: many
SELECT seq, data, hash
  FROM audit
 WHERE run_id = :run_id AND seq < :before AND at >= :since AND at < :until
   AND (:namespace = '' OR namespace = :namespace)
   AND (:agent = '' OR agent = :agent)
   AND (:tool = '' OR tool = :tool)
   AND (:call_id = '' OR call_id = :call_id)
   AND (:moment = '' OR moment = :moment)
   AND (:outcome = '' OR outcome = :outcome)
 ORDER BY seq DESC LIMIT :count;

-- name: audit_base
-- The last record that was forgotten, if any was.
SELECT seq, hash FROM audit_head WHERE name = 'base';

-- name: audit_rebase
INSERT INTO audit_head (name, seq, hash) VALUES ('base', :seq, :hash)
ON CONFLICT (name) DO UPDATE SET seq = excluded.seq, hash = excluded.hash;

-- name: audit_first_since
SELECT seq FROM audit WHERE seq > :after AND at >= :since ORDER BY seq LIMIT 1;

-- name: audit_other_than
SELECT seq FROM audit WHERE seq > :after AND seq <= :last AND moment <> :moment ORDER BY seq LIMIT 1;

-- name: audit_forget
DELETE FROM audit WHERE seq <= :last;

-- name: audit_finished
-- reads: many
SELECT data FROM audit WHERE run_id = :run_id AND moment = 'finished';

-- name: audit_short
-- reads: many
-- Runs that nobody drives, with more results in their journals than records in the log. What the kernel answered in the
-- place of a tool has no record, so such a run may still lack nothing.
SELECT r.key AS key, r.id AS id FROM run AS r
 WHERE r.key > :after AND r.updated_at >= :since AND r.updated_at < :until
   AND (r.lease_until IS NULL OR r.lease_until < :now)
   AND (SELECT COUNT(*) FROM event AS e WHERE e.run = r.key AND e.type = 'tool.finished')
     > (SELECT COUNT(DISTINCT a.call_id) FROM audit AS a WHERE a.run_id = r.id AND a.moment = 'finished')
 ORDER BY r.key LIMIT :count;
