-- Limits on tools that several processes share. See migrations/0001_schema.sql for the columns.

-- name: tool_bucket_turn
-- locks: limit/tool key
-- Whoever wants tokens or a place of a tool comes one after another.
SELECT tokens, at FROM tool_bucket WHERE key = :key /*for_update*/;

-- name: tool_bucket_open
-- locks: limit/tool key
INSERT INTO tool_bucket (key, tokens, at) VALUES (:key, :tokens, :at) ON CONFLICT (key) DO NOTHING;

-- name: tool_bucket_set
-- locks: limit/tool key
UPDATE tool_bucket SET tokens = :tokens, at = :at WHERE key = :key;

-- name: tool_lease_others
SELECT COALESCE(SUM(tokens), 0) AS tokens FROM tool_lease WHERE key = :key AND holder <> :holder AND until > :now;

-- name: tool_lease_mine
SELECT tokens, until FROM tool_lease WHERE key = :key AND holder = :holder;

-- name: tool_lease_set
-- locks: -
INSERT INTO tool_lease (key, holder, tokens, until) VALUES (:key, :holder, :tokens, :until)
ON CONFLICT (key, holder) DO UPDATE SET tokens = excluded.tokens, until = excluded.until;

-- name: tool_lease_sweep
-- locks: -
DELETE FROM tool_lease WHERE key = :key AND until <= :now;

-- name: tool_place_sweep
-- locks: -
DELETE FROM tool_place WHERE key = :key AND until < :now;

-- name: tool_place_count
SELECT COUNT(*) AS taken FROM tool_place WHERE key = :key;

-- name: tool_place_add
-- locks: -
INSERT INTO tool_place (key, holder, number, until) VALUES (:key, :holder, :number, :until)
ON CONFLICT (key, holder, number) DO NOTHING;

-- name: tool_place_remove
DELETE FROM tool_place WHERE key = :key AND holder = :holder AND number = :number;

-- name: tool_place_renew
UPDATE tool_place SET until = :until WHERE key = :key AND holder = :holder AND number = :number;

-- name: tool_place_holders
SELECT DISTINCT holder FROM tool_place WHERE key = :key;

-- name: tool_place_forget
DELETE FROM tool_place WHERE holder = :holder;

-- name: tool_circuit_all
SELECT key, failures, opened_at FROM tool_circuit;

-- name: tool_circuit_fail
-- One more failure in a row. The one that makes it too many opens the circuit; one while it is open opens it anew.
INSERT INTO tool_circuit (key, failures, opened_at, probe, probe_until)
VALUES (:key, 1, CASE WHEN :most <= 1 THEN CAST(:now AS DOUBLE PRECISION) ELSE NULL END, NULL, 0)
ON CONFLICT (key) DO UPDATE
   SET failures = tool_circuit.failures + 1,
       opened_at = CASE WHEN tool_circuit.failures + 1 >= :most THEN CAST(:now AS DOUBLE PRECISION) ELSE tool_circuit.opened_at END,
       probe = NULL, probe_until = 0
RETURNING key, failures, opened_at;

-- name: tool_circuit_probe
-- One process at a time, and only as long as the circuit is as it was seen.
UPDATE tool_circuit SET probe = :holder, probe_until = :until
 WHERE key = :key AND opened_at = :opened_at AND probe_until < :now;

-- name: tool_circuit_unprobe
UPDATE tool_circuit SET probe = NULL, probe_until = 0 WHERE key = :key AND probe = :holder;

-- name: tool_circuit_well
DELETE FROM tool_circuit WHERE key = :key;
