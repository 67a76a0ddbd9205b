-- What a worker can enforce around programs, as a JSON list: `process`, `process+memory`, `gvisor`, … (see placement.py).
-- Workers of earlier versions say nothing, and take no run that demands any of it.
ALTER TABLE worker ADD COLUMN isolation TEXT NOT NULL DEFAULT '[]';
