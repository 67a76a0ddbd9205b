-- Store-wide texts, and secret values sealed anew. Sealed values are inside the documents.

-- name: setting_get
SELECT value FROM setting WHERE name = :name;

-- name: setting_put
-- locks: setting name
INSERT INTO setting (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: setting_new
INSERT INTO setting (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING;

-- name: setting_turn
-- Two processes must not both find that it is their turn.
SELECT value FROM setting WHERE name = :name /*for_update*/;

-- name: setting_delete
DELETE FROM setting WHERE name = :name;

-- name: reseal_resource
UPDATE resource SET document = :document WHERE key = :key;
