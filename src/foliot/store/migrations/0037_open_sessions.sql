-- The sessions with an agent that are not archived: it is not deleted while there are some.
CREATE INDEX session_open ON session (namespace, agent, key) WHERE archived_at IS NULL;
