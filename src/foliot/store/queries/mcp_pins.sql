-- What was agreed to about the tools of MCP servers. See migrations/0023_mcp_pins.sql for the columns. Rows are written
-- under the lock of the revision.

-- name: mcp_pin_get
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace = :namespace AND server = :server AND tool = :tool;

-- name: mcp_pin_list
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace = :namespace
 ORDER BY namespace, server, tool;

-- name: mcp_pin_of
-- :name is a Tool of :home; :server in :namespace has :tool.
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace = :namespace AND server = :server AND tool = :tool
UNION
SELECT namespace, server, tool, name, pin, definition, levels, held FROM mcp_pin
 WHERE namespace = :home AND name = :name;

-- name: mcp_pin_put
-- locks: -
INSERT INTO mcp_pin (namespace, server, tool, name, pin, definition, levels, held)
VALUES (:namespace, :server, :tool, :name, :pin, :definition, :levels, :held)
ON CONFLICT (namespace, server, tool)
DO UPDATE SET name = excluded.name, pin = excluded.pin, definition = excluded.definition, levels = excluded.levels,
              held = excluded.held;
