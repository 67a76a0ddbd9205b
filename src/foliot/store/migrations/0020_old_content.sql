-- Old content is found without a look at the content itself, which stands before these columns.
CREATE INDEX blob_by_age ON blob (created_at, digest, unowned);
