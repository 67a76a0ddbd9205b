-- Content knows its owners: whoever refers to it says so in the transaction that does (`blob_use`, or the plan of a task).
-- Before, results that were too long for a model were stored without saying for which run. `unowned` marks content of
-- that time: it stays for as long as any run of that time does, the newest of which the setting names.
ALTER TABLE blob ADD COLUMN unowned BIGINT NOT NULL DEFAULT 1;
INSERT INTO setting (name, value) SELECT 'runs_without_uses', '' || COALESCE(MAX(key), 0) FROM run;
