-- What a store is, beside its contents. See migrations/0019_store_life.sql for the columns.

-- name: life_get
SELECT incarnation, set_back_at, set_back FROM store_life;

-- name: life_set_back
UPDATE store_life SET set_back_at = :now, set_back = :what;
