-- Resources, their labels and the feed of changes. See migrations/0001_schema.sql for the columns.

-- name: revision_lock
-- locks: revision
-- Whoever wants to change resources holds this row until the commit: revisions become visible in their own order.
SELECT value AS revision FROM counter WHERE name = 'revision' /*for_update*/;

-- name: revision_set
-- locks: -
UPDATE counter SET value = :revision WHERE name = 'revision';

-- name: feed_bounds
SELECT r.value AS revision, c.value AS compacted
  FROM counter AS r, counter AS c
 WHERE r.name = 'revision' AND c.name = 'compacted';

-- name: feed_bounds_lock
-- locks: revision
SELECT r.value AS revision, c.value AS compacted
  FROM counter AS r, counter AS c
 WHERE r.name = 'revision' AND c.name = 'compacted' /*for_update*/;

-- name: resource_get
SELECT document FROM resource WHERE key = :key;

-- name: resource_get_many
-- :keys is a JSON array of keys; what does not exist is left out.
SELECT r.key AS key, r.version AS version, r.document AS document, r.owners AS owners
  FROM json_each(:keys) AS wanted JOIN resource AS r ON r.key = wanted.value;

-- name: resource_list
-- Keys between :after and :before, both left out. The range also names one kind, or one kind in one namespace.
SELECT key, document FROM resource
 WHERE key > :after AND key < :before
 ORDER BY key LIMIT :count;

-- name: resource_list_namespace
SELECT key, document FROM resource
 WHERE namespace = :namespace AND key > :after AND key < :before
 ORDER BY key LIMIT :count;

-- name: resource_list_label
SELECT r.key AS key, r.document AS document
  FROM resource_label AS l JOIN resource AS r ON r.key = l.key
 WHERE l.label = :label AND l.value = :value AND l.key > :after AND l.key < :before
 ORDER BY l.key LIMIT :count;

-- name: resource_insert
-- locks: -
INSERT INTO resource (key, kind, namespace, name, version, document, owners)
VALUES (:key, :kind, :namespace, :name, :version, :document, :owners);

-- name: resource_update
-- locks: -
UPDATE resource SET version = :version, document = :document, owners = :owners WHERE key = :key;

-- name: resource_delete
-- locks: -
DELETE FROM resource WHERE key = :key;

-- name: label_add
-- locks: -
INSERT INTO resource_label (label, value, key) VALUES (:label, :value, :key);

-- name: label_remove
-- locks: -
DELETE FROM resource_label WHERE label = :label AND value = :value AND key = :key;

-- name: change_add
-- locks: -
INSERT INTO change (revision, previous, action, kind, namespace, document)
VALUES (:revision, :previous, :action, :kind, :namespace, :document);

-- name: change_list
SELECT revision, previous, action, kind, namespace, document FROM change
 WHERE revision > :after AND revision <= :upto
 ORDER BY revision;

-- name: change_list_kind
-- By the index of the kind, which ends with `revision + 0` (see task_keys).
SELECT revision, previous, action, kind, namespace, document FROM change
 WHERE kind = :kind AND revision + 0 > :after AND revision + 0 <= :upto
 ORDER BY revision + 0;

-- name: change_list_kinds
SELECT revision, previous, action, kind, namespace, document FROM change
 WHERE kind IN (SELECT value FROM json_each(:kinds) AS wanted) AND revision + 0 > :after AND revision + 0 <= :upto
 ORDER BY revision + 0;

-- name: change_count
SELECT COUNT(*) AS changes FROM change WHERE revision > :after AND revision <= :upto;

-- name: change_get
SELECT action, document FROM change WHERE revision = :revision;

-- name: change_forget
DELETE FROM change WHERE revision <= :upto;

-- name: compacted_set
UPDATE counter SET value = :upto WHERE name = 'compacted';
