-- What only the server asks.

-- name: namespace_list
SELECT namespace FROM resource UNION SELECT namespace FROM task ORDER BY 1;
