-- What a store is, beside its contents: one row.

-- `incarnation` is drawn when the store is made, and again when it is put back from a backup: processes that knew another
-- one hold what this store has never heard of. `set_back_at` is when a process last found the store older than what it
-- had seen itself, and `set_back` what it found.
-- `boot` and `boot_offset` are of a store that is one file on one machine: what to add to the clock that counts from that
-- boot, so that all processes judge leases by one clock, whatever is done to the clock of the machine.
CREATE TABLE store_life (
    id          BIGINT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    boot        TEXT NOT NULL DEFAULT '',
    boot_offset REAL NOT NULL DEFAULT 0,
    set_back_at REAL,
    set_back    TEXT NOT NULL DEFAULT ''
);

-- only: sqlite
INSERT INTO store_life (id, incarnation) VALUES (1, lower(hex(randomblob(16))));
-- only: postgres
INSERT INTO store_life (id, incarnation) VALUES (1, md5(random()::text || clock_timestamp()::text || txid_current()::text));
-- only: both

-- `beats` counts signs of life, and never goes back while a process has the name; `clock_off` is by how many seconds the
-- clock of its machine is ahead of the store's.
ALTER TABLE worker ADD COLUMN beats BIGINT NOT NULL DEFAULT 0;
ALTER TABLE worker ADD COLUMN clock_off REAL NOT NULL DEFAULT 0;
