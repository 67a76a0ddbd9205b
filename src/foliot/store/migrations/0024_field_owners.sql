-- Who owns which field of a resource: a JSON object of managers, each with the JSON pointers of its fields. NULL for what was
-- stored before this was kept: the next apply takes it over (see foliot/resources/field_owners.py).
ALTER TABLE resource ADD COLUMN owners TEXT;
