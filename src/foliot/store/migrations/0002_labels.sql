-- Labels apart from the documents, so that `-l app=web` reads what matches and not the whole kind.
CREATE TABLE resource_label (
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    key   TEXT NOT NULL,
    PRIMARY KEY (label, value, key)
) WITHOUT ROWID;

-- only: sqlite
INSERT INTO resource_label (label, value, key)
SELECT pair.key, pair.value, resource.key
  FROM resource, json_each(resource.document, '$.metadata.labels') AS pair;
-- only: postgres
INSERT INTO resource_label (label, value, key)
SELECT pair.key, pair.value, resource.key
  FROM resource, json_each_text(CAST(resource.document AS json) #> '{metadata,labels}') AS pair
 WHERE CAST(resource.document AS json) #> '{metadata,labels}' IS NOT NULL;
-- only: both
