-- The conversation that a run is a turn of: the id of its first turn; nothing for a run that nothing goes on with.
-- Turns refer to the ones before them, so none is forgotten while a later one is kept.
ALTER TABLE run ADD COLUMN conversation TEXT;
CREATE INDEX run_by_conversation ON run (conversation, updated_at) WHERE conversation IS NOT NULL;
