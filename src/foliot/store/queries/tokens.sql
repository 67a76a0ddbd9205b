-- Tokens of the server. See migrations/0010_auth.sql for the columns.

-- name: token_add
INSERT INTO api_token (id, name, digest, namespaces, roles, created_at, created_by, expires_at)
VALUES (:id, :name, :digest, :namespaces, :roles, :created_at, :created_by, :expires_at)
ON CONFLICT DO NOTHING;

-- name: token_get
SELECT id, name, digest, namespaces, roles, created_at, created_by, expires_at, revoked_at, used_at
  FROM api_token WHERE id = :id;

-- name: token_find
SELECT id, name, digest, namespaces, roles, created_at, created_by, expires_at, revoked_at, used_at
  FROM api_token WHERE id = :word OR name = :word
 ORDER BY CASE WHEN revoked_at IS NULL THEN 0 ELSE 1 END, created_at DESC LIMIT 1;

-- name: token_list
SELECT id, name, digest, namespaces, roles, created_at, created_by, expires_at, revoked_at, used_at
  FROM api_token ORDER BY created_at, id;

-- name: token_any
SELECT 1 AS found FROM api_token LIMIT 1;

-- name: token_revoke
UPDATE api_token SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL;

-- name: token_used
UPDATE api_token SET used_at = :now WHERE id = :id AND (used_at IS NULL OR used_at < :now);
