-- Whether a run was told to end: 1 until who drives it has heard it (nothing is appended before), then 2. NULL: it was not.
ALTER TABLE run ADD COLUMN cancelling SMALLINT;
-- What runs have started: whoever cancels one cancels all below it in the same transaction.
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL AND parent_seq IS NULL;
