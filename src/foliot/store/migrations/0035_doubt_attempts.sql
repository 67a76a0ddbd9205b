-- Which attempt at the call may have acted: a decision about an earlier one says nothing about it. 0: not known.
ALTER TABLE doubt ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
