-- The folders of agents and users. See migrations/0001_schema.sql for the columns.

-- name: folder_get
SELECT key, namespace, agent, user_name, life, tree, files, size, run_id, created_at, changed_at FROM folder
 WHERE namespace = :namespace AND agent = :agent AND user_name = :user_name;

-- name: folder_lock
-- locks: folder namespace agent user_name
SELECT key, namespace, agent, user_name, life, tree, files, size, run_id, created_at, changed_at FROM folder
 WHERE namespace = :namespace AND agent = :agent AND user_name = :user_name /*for_update*/;

-- name: folder_add
-- locks: folder namespace agent user_name
-- Nothing when there is one, also when somebody else makes it at this moment.
INSERT INTO folder (namespace, agent, user_name, life, tree, files, size, run_id, created_at, changed_at)
VALUES (:namespace, :agent, :user_name, :life, :tree, 0, 0, '', :at, :at)
ON CONFLICT (namespace, agent, user_name) DO NOTHING
RETURNING key;

-- name: folder_set
-- locks: -
UPDATE folder SET tree = :tree, files = :files, size = :size, run_id = :run_id, changed_at = :at WHERE key = :key;

-- name: folder_hold
-- locks: -
-- Nothing for content that is not there; what there is cannot be purged before this is committed.
INSERT INTO folder_content (folder, digest)
SELECT CAST(:key AS BIGINT), b.digest FROM blob AS b
 WHERE b.digest IN (SELECT value FROM json_each(:digests) AS wanted)
   AND NOT EXISTS (SELECT 1 FROM folder_content AS known WHERE known.folder = CAST(:key AS BIGINT) AND known.digest = b.digest)
 ORDER BY b.digest /*for_key_share*/
ON CONFLICT (folder, digest) DO NOTHING;

-- name: folder_let_go
-- locks: -
DELETE FROM folder_content
 WHERE folder = :key AND digest NOT IN (SELECT value FROM json_each(:digests) AS wanted);

-- name: folder_held
SELECT COUNT(*) AS held FROM folder_content WHERE folder = :key;

-- name: folder_blob
-- Only what the folder has: whoever knows a digest may not read what others keep.
SELECT b.data FROM blob AS b JOIN folder_content AS c ON c.digest = b.digest JOIN folder AS f ON f.key = c.folder
 WHERE b.digest = :digest AND f.namespace = :namespace AND f.agent = :agent AND f.user_name = :user_name;

-- name: folder_lend
-- locks: -
-- A run that begins with the folder refers to all of it, whatever becomes of the folder meanwhile.
INSERT INTO blob_use (digest, run)
SELECT c.digest, CAST(:run AS BIGINT) FROM folder_content AS c WHERE c.folder = :key
ON CONFLICT (digest, run) DO NOTHING;

-- name: folder_list
-- reads: many
-- By agent and user. Empty texts mean any, but for the user when `one_user` is 1.
SELECT key, namespace, agent, user_name, life, tree, files, size, run_id, created_at, changed_at FROM folder
 WHERE namespace = :namespace AND (:agent = '' OR agent = :agent)
   AND (CAST(:one_user AS BIGINT) = 0 OR user_name = :user_name)
   AND (agent, user_name) > (:after_agent, :after_user)
 ORDER BY agent, user_name LIMIT :count;

-- name: folder_forget
-- locks: -
DELETE FROM folder_content WHERE folder = :key;

-- name: folder_delete
-- locks: -
DELETE FROM folder WHERE key = :key;
