-- Requests that are done once by their key. See migrations/0001_schema.sql.

-- name: request_key_add
-- locks: request id
INSERT INTO request_key (id, request, claim, held_until, forget_at)
VALUES (:id, :request, :claim, :held_until, :forget_at) ON CONFLICT (id) DO NOTHING;

-- name: request_key_get
-- locks: request id
SELECT request, held_until, forget_at, status, headers, body FROM request_key WHERE id = :id /*for_update*/;

-- name: request_key_take
-- locks: request id
UPDATE request_key SET claim = :claim, held_until = :held_until WHERE id = :id;

-- name: request_key_hold
-- locks: request id
UPDATE request_key SET held_until = :held_until WHERE id = :id AND claim = :claim AND status IS NULL;

-- name: request_key_answer
-- locks: request id
UPDATE request_key SET status = :status, headers = :headers, body = :body
 WHERE id = :id AND claim = :claim AND status IS NULL;

-- name: request_key_drop
-- locks: request id
DELETE FROM request_key WHERE id = :id AND claim = :claim AND status IS NULL;

-- name: request_key_lapse
-- locks: request id
DELETE FROM request_key WHERE id = :id AND forget_at <= :now;

-- name: request_key_prune
-- The oldest :count of them, and those that are as old, as everywhere where something is forgotten by its age.
DELETE FROM request_key
 WHERE forget_at <= (
       SELECT MAX(page.forget_at)
         FROM (SELECT older.forget_at AS forget_at FROM request_key AS older WHERE older.forget_at <= :now
                ORDER BY older.forget_at LIMIT :count) AS page);

-- name: request_key_look
-- Outside of any transaction: for who only waits for the answer.
SELECT status, body FROM request_key WHERE id = :id;

-- name: request_key_end
-- locks: request id
DELETE FROM request_key WHERE id = :id AND claim = :claim;
