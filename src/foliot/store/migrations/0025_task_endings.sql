-- Work whose Task was deleted and that is still to be ended. Written in the transaction that deletes the Task, so that
-- whoever dies before the work was told leaves a note to others. `at` is when the Task was deleted. Touched only under
-- the lock of the revision.
CREATE TABLE task_ending (
    uid TEXT PRIMARY KEY,
    at  TEXT NOT NULL
) WITHOUT ROWID;
