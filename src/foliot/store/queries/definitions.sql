-- What tasks and runs are pinned to: content like any other (see runs.sql), stored by the first that is pinned to it.

-- name: definition_put
-- locks: definition digest
INSERT INTO blob (digest, data, created_at) VALUES (:digest, :data, :at) ON CONFLICT (digest) DO NOTHING;
