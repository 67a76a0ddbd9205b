-- The key that seals secret values, and sealing them anew. Sealed values are inside the documents.

-- name: setting_get
SELECT value FROM setting WHERE name = :name;

-- name: setting_put
INSERT INTO setting (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: reseal_resources
SELECT key, document FROM resource
 WHERE key > :after AND key < :before
 ORDER BY key LIMIT :count /*for_update*/;

-- name: reseal_resource
UPDATE resource SET document = :document WHERE key = :key;

-- name: reseal_changes
SELECT revision, document FROM change
 WHERE kind = :kind AND revision > :after
 ORDER BY revision LIMIT :count;

-- name: reseal_change
UPDATE change SET document = :document WHERE revision = :revision;
