-- What was agreed to about the tools of MCP servers. See migrations/0001_schema.sql for the columns. Rows are written
-- under the lock of the revision.

-- name: mcp_pin_get
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace = :namespace AND server = :server AND tool = :tool;

-- name: mcp_pin_list
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace = :namespace
 ORDER BY namespace, server, tool;

-- name: mcp_pins_of
-- Of Tools that are called :names in :homes, or that name :tools of :servers in :namespaces; all are JSON arrays, and the
-- reader leaves out what only combines them otherwise, and takes each once.
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace IN (SELECT value FROM json_each(:namespaces) AS wanted)
   AND server IN (SELECT value FROM json_each(:servers) AS wanted)
   AND tool IN (SELECT value FROM json_each(:tools) AS wanted)
UNION ALL
SELECT p.namespace, p.server, p.tool, p.name, p.pin, p.definition, p.levels, p.held
  FROM json_each(:homes) AS home CROSS JOIN json_each(:names) AS wanted CROSS JOIN mcp_pin AS p
-- only: sqlite
       INDEXED BY mcp_pin_by_name
-- only: both
 WHERE p.namespace = home.value AND p.name = wanted.value;

-- name: mcp_pin_put
-- locks: -
INSERT INTO mcp_pin (namespace, server, tool, name, pin, definition, levels, held)
VALUES (:namespace, :server, :tool, :name, :pin, :definition, :levels, :held)
ON CONFLICT (namespace, server, tool)
DO UPDATE SET name = excluded.name, pin = excluded.pin, definition = excluded.definition, levels = excluded.levels,
              held = excluded.held;
