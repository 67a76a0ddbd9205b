-- What was agreed to about each tool of each MCP server, apart from what people declare: no apply, edit or deletion of a
-- Tool or an McpServer touches it. See resources/agreed.py for what the columns mean.
CREATE TABLE mcp_pin (
    namespace  TEXT NOT NULL,
    server     TEXT NOT NULL,
    tool       TEXT NOT NULL,
    name       TEXT NOT NULL,
    pin        TEXT NOT NULL,
    definition TEXT NOT NULL,
    levels     TEXT NOT NULL,
    held       TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, server, tool)
) WITHOUT ROWID;
CREATE INDEX mcp_pin_by_name ON mcp_pin (namespace, name);

-- Until now pins stood in an annotation of the generated Tool, and those of tools that went away in the status of their
-- server. A generated Tool without one (somebody applied it anew) gets no row: it is refused until somebody accepts.
-- A name with a NUL, which PostgreSQL cannot keep, is left out: such a tool is refused.
-- only: sqlite
INSERT INTO mcp_pin (namespace, server, tool, name, pin, definition, levels, held)
SELECT namespace,
       substr(json_extract(document, '$.spec.mcp_server_ref'), instr(json_extract(document, '$.spec.mcp_server_ref'), '/') + 1),
       json_extract(document, '$.spec.mcp_tool_name'),
       name,
       json_extract(document, '$.metadata.annotations."foliot.dev/mcp-pin"'),
       '',
       json_object('risk_level', json_extract(document, '$.spec.risk_level'),
                   'effect', json_extract(document, '$.spec.effect'),
                   'isolation_mode', coalesce(json_extract(document, '$.spec.runtime.isolation_mode'), 'none'),
                   'operation_classes', json(coalesce(json_extract(document, '$.spec.operation_classes'), '[]'))),
       CASE WHEN json_extract(document, '$.metadata.annotations."foliot.dev/mcp-quarantine"') IS NULL
            THEN '' ELSE 'the server changed its definition' END
  FROM resource
 WHERE kind = 'Tool'
   AND instr(json_extract(document, '$.spec.mcp_tool_name'), char(0)) = 0
   AND json_extract(document, '$.spec.type') = 'mcp'
   AND json_extract(document, '$.metadata.labels."foliot.dev/mcp-generated"') = 'true'
   AND json_type(document, '$.metadata.annotations."foliot.dev/mcp-pin"') = 'text'
   AND json_type(document, '$.spec.mcp_tool_name') = 'text'
   AND json_type(document, '$.spec.mcp_server_ref') = 'text'
   AND instr(json_extract(document, '$.spec.mcp_server_ref'), '/') IN (0, length(namespace) + 1)
 ORDER BY key
    ON CONFLICT DO NOTHING;

INSERT INTO mcp_pin (namespace, server, tool, name, pin, definition, levels)
SELECT r.namespace, r.name, json_extract(entry.value, '$.name'), '', json_extract(entry.value, '$.pin'), '', ''
  FROM resource AS r, json_each(r.document, '$.status.discoveredTools') AS entry
 WHERE r.kind = 'McpServer'
   AND entry.type = 'object'
   AND instr(json_extract(entry.value, '$.name'), char(0)) = 0
   AND json_type(entry.value, '$.name') = 'text'
   AND json_type(entry.value, '$.pin') = 'text'
    ON CONFLICT DO NOTHING;
-- only: postgres
INSERT INTO mcp_pin (namespace, server, tool, name, pin, definition, levels, held)
SELECT namespace,
       regexp_replace(d->'spec'->>'mcp_server_ref', '^.*/', ''),
       d->'spec'->>'mcp_tool_name',
       name,
       d->'metadata'->'annotations'->>'foliot.dev/mcp-pin',
       '',
       json_build_object('risk_level', d->'spec'->>'risk_level',
                         'effect', d->'spec'->>'effect',
                         'isolation_mode', coalesce(d->'spec'->'runtime'->>'isolation_mode', 'none'),
                         'operation_classes', coalesce(d->'spec'->'operation_classes', '[]'::json))::text,
       CASE WHEN d->'metadata'->'annotations'->>'foliot.dev/mcp-quarantine' IS NULL
            THEN '' ELSE 'the server changed its definition' END
  FROM (SELECT key, namespace, name, replace(document, '\u0000', '\ufffd')::json AS d FROM resource WHERE kind = 'Tool') AS stored
 WHERE d->'spec'->>'type' = 'mcp'
   AND d->'metadata'->'labels'->>'foliot.dev/mcp-generated' = 'true'
   AND json_typeof(d->'metadata'->'annotations'->'foliot.dev/mcp-pin') = 'string'
   AND json_typeof(d->'spec'->'mcp_tool_name') = 'string'
   AND position(chr(65533) in d->'spec'->>'mcp_tool_name') = 0
   AND json_typeof(d->'spec'->'mcp_server_ref') = 'string'
   AND position('/' in d->'spec'->>'mcp_server_ref') IN (0, length(namespace) + 1)
 ORDER BY key
    ON CONFLICT DO NOTHING;

INSERT INTO mcp_pin (namespace, server, tool, name, pin, definition, levels)
SELECT namespace, name, entry->>'name', '', entry->>'pin', '', ''
  FROM (SELECT r.namespace, r.name, each.value AS entry
          FROM (SELECT namespace, name, replace(document, '\u0000', '\ufffd')::json->'status'->'discoveredTools' AS found
                  FROM resource WHERE kind = 'McpServer') AS r,
               json_array_elements(CASE WHEN json_typeof(r.found) = 'array' THEN r.found ELSE '[]'::json END) AS each(value)
       ) AS known
 WHERE position(chr(65533) in entry->>'name') = 0
   AND json_typeof(entry->'name') = 'string'
   AND json_typeof(entry->'pin') = 'string'
    ON CONFLICT DO NOTHING;
-- only: both
