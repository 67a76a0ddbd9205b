-- The place of a run in its line while somebody holds it: since when it was due. `lost` counts the holders that died.
ALTER TABLE queue ADD COLUMN place REAL;
ALTER TABLE queue ADD COLUMN lost BIGINT NOT NULL DEFAULT 0;
