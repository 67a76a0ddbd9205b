-- A token ends with the account that made it, and no token is called as an account is.

-- `owner` is the name of the account; blank for a token that was made on the store itself, or by no account.
ALTER TABLE api_token ADD COLUMN owner TEXT NOT NULL DEFAULT '';

-- Of the tokens that are there, those called `<maker>/<name>` were surely made over HTTP by their maker.
UPDATE api_token
   SET owner = created_by
 WHERE created_by IN (SELECT name FROM user_account)
   AND substr(name, 1, length(created_by) + 1) = created_by || '/';

-- A colon stands in names of callers of other sorts (`oidc:ada`), and a bare name belongs to one sort.
-- `token:<name>` may itself be the name of another token: then the id, which nothing else has, stands behind it.
UPDATE api_token
   SET name = CASE WHEN ('token:' || name) IN (SELECT name FROM api_token)
                   THEN 'token:' || name || '-' || id
                   ELSE 'token:' || name END
 WHERE lower(name) IN (SELECT name FROM user_account)
    OR (name LIKE '%:%' AND substr(name, 1, length(created_by) + 1) <> created_by || '/');
