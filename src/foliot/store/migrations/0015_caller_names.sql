-- Each name of a caller belongs to one sort of caller, for ever: records, budgets and approvers go by names.

-- `sort` is 'account' or 'token'; `name` is in small letters. Two transactions that give the same name meet here.
CREATE TABLE caller_name (
    name TEXT PRIMARY KEY,
    sort TEXT NOT NULL
);

INSERT INTO caller_name (name, sort) SELECT name, 'account' FROM user_account;

INSERT INTO caller_name (name, sort)
SELECT DISTINCT lower(t.name), 'token' FROM api_token AS t
 WHERE lower(t.name) NOT IN (SELECT name FROM user_account);
