-- How tasks stood when they were last told to somebody who watches, in an order that a watch can go on from.

-- Whether a task is queued, running or waiting is read off its runs and written nowhere, so it has no number. Whoever
-- watches compares what there is with what was told, and gives each difference the next number (counter `task_told`).
-- A task has one row, with what was told last; `first` is its first number. `live`: 1 while it has not ended. `gone`: 1
-- when it is not shown any more. Of tasks that ended long ago the rows are dropped: `task_dropped` is the last of their
-- numbers, and a watch cannot go on from before it.
CREATE TABLE task_told (
    task     BIGINT PRIMARY KEY,
    number   BIGINT NOT NULL,
    first    BIGINT NOT NULL,
    live     BIGINT NOT NULL,
    gone     BIGINT NOT NULL,
    document TEXT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX task_told_by_number ON task_told (number);
CREATE INDEX task_told_live ON task_told (task) WHERE live = 1;
INSERT INTO counter (name, value) VALUES ('task_told', 0), ('task_dropped', 0);
