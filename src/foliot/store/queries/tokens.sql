-- Tokens of the server. See migrations/0001_schema.sql for the columns.

-- name: token_add
INSERT INTO api_token (id, name, digest, namespaces, roles, created_at, created_by, expires_at, owner)
VALUES (:id, :name, :digest, :namespaces, :roles, :created_at, :created_by, :expires_at, :owner)
ON CONFLICT DO NOTHING;

-- name: token_get
SELECT t.id, t.name, t.digest, t.namespaces, t.roles, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.used_at,
       t.owner, u.grants AS owner_grants, u.disabled_at AS owner_disabled_at
  FROM api_token AS t LEFT JOIN user_account AS u ON u.name = t.owner WHERE t.id = :id;

-- name: token_find
SELECT t.id, t.name, t.digest, t.namespaces, t.roles, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.used_at,
       t.owner, u.grants AS owner_grants, u.disabled_at AS owner_disabled_at
  FROM api_token AS t LEFT JOIN user_account AS u ON u.name = t.owner
 WHERE t.id = :word OR (lower(t.name) = lower(CAST(:word AS TEXT)) AND t.name = :word)
 ORDER BY CASE WHEN t.revoked_at IS NULL THEN 0 ELSE 1 END, t.created_at DESC LIMIT 1;

-- name: token_list
-- reads: many
SELECT t.id, t.name, t.digest, t.namespaces, t.roles, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.used_at,
       t.owner, u.grants AS owner_grants, u.disabled_at AS owner_disabled_at
  FROM api_token AS t LEFT JOIN user_account AS u ON u.name = t.owner ORDER BY t.created_at, t.id;

-- name: token_owners
SELECT DISTINCT owner FROM api_token WHERE lower(name) = :name;

-- name: token_names
SELECT DISTINCT name FROM api_token WHERE owner = :owner;

-- name: token_any
SELECT 1 AS found FROM api_token LIMIT 1;

-- name: token_revoke
UPDATE api_token SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL;

-- name: token_used
UPDATE api_token SET used_at = :now WHERE id = :id AND (used_at IS NULL OR used_at < :now);
