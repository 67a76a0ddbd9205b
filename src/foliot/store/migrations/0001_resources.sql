-- What people declare, and every change to it in the order of the commits.

-- Store-wide numbers. 'revision' is the newest change, 'compacted' the newest one that was forgotten.
CREATE TABLE counter (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counter (name, value) VALUES ('revision', 0), ('compacted', 0);

-- Store-wide texts, such as the id of the key that an unfinished rotation seals with.
CREATE TABLE setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- `key` is kind, namespace and name joined by U+001F, which no name may contain and which sorts before every character
-- that one may: so one column orders, pages and addresses resources. `document` is the whole resource as JSON.
CREATE TABLE resource (
    key       TEXT PRIMARY KEY,
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   BIGINT NOT NULL,
    document  TEXT NOT NULL
);
CREATE INDEX resource_by_namespace ON resource (namespace, key);

-- One row for each revision; secret values are masked. `previous` is the revision that the resource had before, 0 when
-- it was new.
CREATE TABLE change (
    revision  BIGINT PRIMARY KEY,
    previous  BIGINT NOT NULL,
    action    TEXT NOT NULL,
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    document  TEXT NOT NULL
);
CREATE INDEX change_by_kind ON change (kind, revision);
