-- The indices of filters within a namespace end with `0 - key`, by which nothing else is sorted. PostgreSQL otherwise may
-- take that of the namespace instead, when it knows few values of the filter, and go through all to find a rare one.
DROP INDEX run_by_agent;
DROP INDEX run_live;
DROP INDEX run_ended;
CREATE INDEX run_by_agent ON run (agent, namespace, (0 - key));
CREATE INDEX run_live ON run (phase, namespace, (0 - key)) WHERE phase IN ('pending', 'running', 'waiting');
CREATE INDEX run_ended ON run (phase, namespace, (0 - key)) WHERE phase IN ('succeeded', 'failed', 'cancelled');

DROP INDEX task_by_namespace_phase;
DROP INDEX task_by_target;
DROP INDEX task_by_lane;
CREATE INDEX task_by_namespace_phase ON task (namespace, phase, (0 - key));
CREATE INDEX task_by_target ON task (target, namespace, (0 - key));
CREATE INDEX task_by_lane ON task (lane, namespace, (0 - key)) WHERE lane <> '';

DROP INDEX audit_by_tool;
CREATE INDEX audit_by_tool ON audit (namespace, tool, (0 - seq));

DROP INDEX change_by_kind;
CREATE INDEX change_by_kind ON change (kind, (revision + 0));

-- Tokens are kept when they are revoked or over.
CREATE INDEX api_token_ever_named ON api_token (lower(name));
CREATE INDEX api_token_of_owner ON api_token (owner, name);

-- The primary key begins with the run too.
DROP INDEX signal_by_run;
