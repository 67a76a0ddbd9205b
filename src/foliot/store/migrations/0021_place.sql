-- `place` says where the database of a store on PostgreSQL is: its cluster, database, table and timeline. A store that
-- finds itself elsewhere was restored or copied, and begins a new incarnation (see store/incarnation.py).
ALTER TABLE store_life ADD COLUMN place TEXT NOT NULL DEFAULT '';
