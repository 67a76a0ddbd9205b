-- Turns at models that may only be asked so often. See migrations/0001_schema.sql for the columns.

-- name: model_line_turn
-- locks: limit/model key
-- Whoever wants a turn comes one after another.
SELECT last, seconds, paused_until, window_size FROM model_line WHERE key = :key /*for_update*/;

-- name: model_line_open
-- locks: limit/model key
INSERT INTO model_line (key, last, seconds, paused_until, window_size) VALUES (:key, 0, 2, :paused_until, :window_size)
ON CONFLICT (key) DO NOTHING;

-- name: model_line_pause
-- locks: limit/model key
UPDATE model_line SET paused_until = :until WHERE key = :key AND paused_until < :until;

-- name: model_line_set
-- locks: limit/model key
UPDATE model_line SET last = :last, window_size = :window_size WHERE key = :key;

-- name: model_line_seconds
-- locks: limit/model key
UPDATE model_line SET seconds = :seconds WHERE key = :key;

-- name: model_line_held
-- The lines that somebody declared a limit for, or whose provider wants to hear nothing.
SELECT key FROM model_limit
 UNION
SELECT key FROM model_line WHERE paused_until > :now;

-- name: model_limit_list
SELECT endpoint, version, requests, tokens, per, concurrency, burst FROM model_limit WHERE key = :key;

-- name: model_limit_put
-- locks: -
INSERT INTO model_limit (endpoint, model, key, version, requests, tokens, per, concurrency, burst)
VALUES (:endpoint, :model, :key, :version, :requests, :tokens, :per, :concurrency, :burst)
ON CONFLICT (endpoint, model) DO UPDATE SET key = excluded.key, version = excluded.version,
       requests = excluded.requests, tokens = excluded.tokens, per = excluded.per, concurrency = excluded.concurrency,
       burst = excluded.burst;

-- name: model_limit_drop
-- locks: -
DELETE FROM model_limit WHERE endpoint = :endpoint AND model = :model;

-- name: model_limit_versions
SELECT DISTINCT endpoint, version FROM model_limit WHERE endpoint LIKE :namespace || '/%';

-- name: model_limit_forget
DELETE FROM model_limit WHERE endpoint = :endpoint AND version = :version;

-- name: model_use_sweep
-- locks: -
DELETE FROM model_use WHERE key = :key AND at <= :before;

-- name: model_use_sum
SELECT COALESCE(SUM(requests), 0) AS requests, COALESCE(SUM(tokens), 0) AS tokens FROM model_use WHERE key = :key;

-- name: model_use_list
SELECT at, requests, tokens FROM model_use WHERE key = :key ORDER BY at;

-- name: model_use_add
-- locks: -
INSERT INTO model_use (key, at, requests, tokens) VALUES (:key, :at, 1, :tokens)
ON CONFLICT (key, at) DO UPDATE SET requests = model_use.requests + 1, tokens = model_use.tokens + excluded.tokens;

-- name: model_use_copy
-- locks: -
-- A window of another length begins with what is known of the line.
INSERT INTO model_use (key, at, requests, tokens) SELECT :new, at, requests, tokens FROM model_use WHERE key = :key
ON CONFLICT (key, at) DO NOTHING;

-- name: model_use_more
-- locks: -
UPDATE model_use SET tokens = CASE WHEN tokens + :more < 0 THEN 0 ELSE tokens + :more END WHERE key = :key AND at = :at;

-- name: model_place_mine
SELECT number, tokens FROM model_place WHERE key = :key AND asker = :asker;

-- name: model_place_ahead
SELECT COUNT(*) AS requests, COALESCE(SUM(tokens), 0) AS tokens FROM model_place
 WHERE key = :key AND number < :number AND due > :since;

-- name: model_place_first
SELECT number, asker, tokens, due FROM model_place WHERE key = :key AND due > :since ORDER BY number LIMIT 1;

-- name: model_place_add
-- locks: -
INSERT INTO model_place (key, number, asker, tokens, due) VALUES (:key, :number, :asker, :tokens, :due);

-- name: model_place_due
-- locks: -
UPDATE model_place SET due = :due WHERE key = :key AND number = :number;

-- name: model_place_remove
-- locks: -
DELETE FROM model_place WHERE key = :key AND number = :number;

-- name: model_place_lines
SELECT DISTINCT key FROM model_place WHERE asker = :asker;

-- name: model_place_next
SELECT asker FROM model_place WHERE key = :key AND due > :since ORDER BY number LIMIT :count;

-- name: model_place_leave
-- locks: -
DELETE FROM model_place WHERE asker = :asker;

-- name: model_place_sweep
-- locks: -
DELETE FROM model_place WHERE key = :key AND due < :before;

-- name: model_call_count
SELECT COUNT(*) AS active FROM model_call WHERE key = :key AND until > :now;

-- name: model_call_begin
-- locks: -
INSERT INTO model_call (key, asker, until) VALUES (:key, :asker, :until)
ON CONFLICT (key, asker) DO UPDATE SET until = excluded.until;

-- name: model_call_end
-- locks: -
DELETE FROM model_call WHERE key = :key AND (asker = :asker OR until < :now);

-- name: model_call_renew
UPDATE model_call SET until = :until WHERE key = :key AND asker = :asker;
