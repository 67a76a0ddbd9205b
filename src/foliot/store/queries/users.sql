-- Accounts, their sessions, and attempts to log in. See migrations/0001_schema.sql for the columns.

-- name: caller_name_take
-- Whose the name is now. Writing the row in any case makes whoever gives the same name wait for this transaction.
INSERT INTO caller_name (name, sort) VALUES (:name, :sort)
ON CONFLICT (name) DO UPDATE SET sort = caller_name.sort
RETURNING sort;

-- name: user_add
INSERT INTO user_account (id, name, password, grants, created_at, created_by, password_at)
VALUES (:id, :name, :password, :grants, :now, :by, :now)
ON CONFLICT DO NOTHING;

-- name: user_find
SELECT id, name, password, grants, created_at, created_by, password_at, disabled_at, login_at
  FROM user_account WHERE name = :name;

-- name: user_locked
SELECT id, name, password, grants, created_at, created_by, password_at, disabled_at, login_at
  FROM user_account WHERE name = :name /*for_update*/;

-- name: user_list
-- reads: many
SELECT id, name, password, grants, created_at, created_by, password_at, disabled_at, login_at
  FROM user_account ORDER BY name;

-- name: user_any
SELECT 1 AS found FROM user_account LIMIT 1;

-- name: user_password
UPDATE user_account SET password = :password, password_at = :now WHERE id = :id;

-- name: user_rehash
UPDATE user_account SET password = :password WHERE id = :id AND password = :old;

-- name: user_disable
UPDATE user_account SET disabled_at = :now WHERE id = :id AND disabled_at IS NULL;

-- name: user_enable
UPDATE user_account SET disabled_at = NULL WHERE id = :id AND disabled_at IS NOT NULL;

-- name: user_grant
UPDATE user_account SET grants = :grants WHERE id = :id;

-- name: user_logged_in
UPDATE user_account SET login_at = :now WHERE id = :id;

-- name: setup_token_put
INSERT INTO setup_token (id, digest, expires_at) VALUES ('setup', :digest, :expires_at)
ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, expires_at = excluded.expires_at;

-- name: setup_token_locked
SELECT digest, expires_at FROM setup_token WHERE id = 'setup' /*for_update*/;

-- name: setup_token_spend
DELETE FROM setup_token WHERE id = 'setup';

-- name: login_session_add
INSERT INTO login_session (digest, user_id, name, grants, created_at, idle_until, ends_at)
VALUES (:digest, :user_id, :name, :grants, :now, :idle_until, :ends_at);

-- name: login_session_get
-- The account speaks for the roles, and for whether it is still allowed in.
SELECT s.digest, s.user_id, s.name, s.grants, s.created_at, s.idle_until, s.ends_at,
       u.grants AS user_grants, u.disabled_at
  FROM login_session AS s LEFT JOIN user_account AS u ON u.id = s.user_id
 WHERE s.digest = :digest;

-- name: login_session_seen
UPDATE login_session SET idle_until = :idle_until WHERE digest = :digest AND idle_until < :idle_until;

-- name: login_session_end
DELETE FROM login_session WHERE digest = :digest;

-- name: login_session_end_all
DELETE FROM login_session WHERE user_id = :user_id;

-- name: login_session_prune
DELETE FROM login_session
 WHERE idle_until <= (
       SELECT MAX(page.idle_until)
         FROM (SELECT older.idle_until AS idle_until FROM login_session AS older WHERE older.idle_until <= :now
                ORDER BY older.idle_until LIMIT :count) AS page);

-- name: flow_add
INSERT INTO login_flow (state, browser, return_to, expires_at) VALUES (:state, :browser, :return_to, :expires_at);

-- name: flow_take
DELETE FROM login_flow WHERE state = :state RETURNING browser, return_to, expires_at;

-- name: flow_prune
DELETE FROM login_flow
 WHERE expires_at <= (
       SELECT MAX(page.expires_at)
         FROM (SELECT older.expires_at AS expires_at FROM login_flow AS older WHERE older.expires_at <= :now
                ORDER BY older.expires_at LIMIT :count) AS page);

-- name: attempt_charge
-- No row is changed when the subject is too far ahead.
INSERT INTO login_attempt (subject, busy_until) VALUES (:subject, :fresh)
ON CONFLICT (subject) DO UPDATE
   SET busy_until = CASE WHEN login_attempt.busy_until > :now THEN login_attempt.busy_until ELSE :now END + :interval
 WHERE login_attempt.busy_until <= :allowed;

-- name: attempt_get
SELECT busy_until FROM login_attempt WHERE subject = :subject;

-- name: attempt_refund
UPDATE login_attempt SET busy_until = busy_until - :interval WHERE subject = :subject;

-- name: attempt_prune
DELETE FROM login_attempt
 WHERE busy_until <= (
       SELECT MAX(page.busy_until)
         FROM (SELECT older.busy_until AS busy_until FROM login_attempt AS older WHERE older.busy_until <= :now
                ORDER BY older.busy_until LIMIT :count) AS page);
