-- The ledger of budgets. See migrations/0001_schema.sql for the columns.

-- name: budget_open
-- locks: account key
INSERT INTO budget_account (key, namespace, budget, payer, period,
                            spent, reserved, spent_tokens, reserved_tokens, updated_at)
VALUES (:key, :namespace, :budget, :payer, :period, 0, 0, 0, 0, :now)
ON CONFLICT (key) DO NOTHING;

-- name: budget_turn
-- locks: account keys[]
-- In the order of their keys, so that two who want the same accounts cannot wait for each other.
SELECT key, spent, reserved, spent_tokens, reserved_tokens
  FROM budget_account
 WHERE key IN (SELECT value FROM json_each(:keys) AS wanted)
 ORDER BY key /*for_update*/;

-- name: budget_turn_if_free
-- Those of these accounts that nobody else has: whoever has others already must not wait for more.
SELECT key FROM budget_account
 WHERE key IN (SELECT value FROM json_each(:keys) AS wanted)
 ORDER BY key /*skip_locked*/;

-- name: budget_read
SELECT key, spent, reserved, spent_tokens, reserved_tokens
  FROM budget_account
 WHERE key IN (SELECT value FROM json_each(:keys) AS wanted);

-- name: budget_move
-- locks: account key
UPDATE budget_account
   SET spent = spent + :spent, reserved = reserved + :reserved,
       spent_tokens = spent_tokens + :spent_tokens, reserved_tokens = reserved_tokens + :reserved_tokens,
       updated_at = :now
 WHERE key = :key;

-- name: budget_list
-- reads: many
-- Newest first, of one budget or (an empty name) of all of them.
SELECT key, namespace, budget, payer, period, spent, reserved, spent_tokens, reserved_tokens, updated_at
  FROM budget_account
 WHERE namespace = :namespace AND (:budget = '' OR budget = :budget) AND (:period = '' OR period = :period)
 ORDER BY updated_at DESC, key LIMIT :count;

-- name: budget_hold_get
SELECT run_id, act, holder, state, until, amount, tokens, accounts
  FROM budget_hold WHERE run_id = :run_id AND act = :act;

-- name: budget_hold_add
-- locks: -
-- An act whose hold was given back is begun again with a new one.
INSERT INTO budget_hold (run_id, act, holder, state, until, amount, tokens, accounts)
VALUES (:run_id, :act, :holder, 'held', :until, :amount, :tokens, :accounts)
ON CONFLICT (run_id, act) DO UPDATE
   SET holder = excluded.holder, state = 'held', until = excluded.until,
       amount = excluded.amount, tokens = excluded.tokens, accounts = excluded.accounts
 WHERE budget_hold.state = 'released';

-- name: budget_hold_end
-- locks: -
UPDATE budget_hold SET state = :state, until = :now
 WHERE run_id = :run_id AND act = :act AND state = 'held'
RETURNING amount, tokens, accounts;

-- name: budget_hold_lapse
-- locks: -
-- As budget_hold_end, of a hold that was over when it was looked for: its holder may have renewed it meanwhile.
UPDATE budget_hold SET state = :state, until = :now
 WHERE run_id = :run_id AND act = :act AND state = 'held' AND until < :now
RETURNING amount, tokens, accounts;

-- name: budget_hold_late
-- locks: -
-- An act that went on although its hold had been given back.
UPDATE budget_hold SET state = 'settled', until = :now
 WHERE run_id = :run_id AND act = :act AND state = 'released'
RETURNING amount, tokens, accounts;

-- name: budget_hold_over
SELECT run_id, act, amount, tokens, accounts
  FROM budget_hold WHERE state = 'held' AND until < :now ORDER BY run_id, act LIMIT :count;

-- name: budget_hold_of_holder
SELECT run_id, act, amount, tokens, accounts
  FROM budget_hold WHERE holder = :holder AND state = 'held' ORDER BY run_id, act;

-- name: budget_hold_of_run
-- What earlier holders of a run have left behind.
SELECT run_id, act, amount, tokens, accounts
  FROM budget_hold WHERE run_id = :run_id AND state = 'held' AND holder <> :holder ORDER BY run_id, act;

-- name: budget_holders
-- reads: many
SELECT DISTINCT holder FROM budget_hold WHERE state = 'held';

-- name: budget_hold_renew
-- Those of these acts (run and act with what stands between them), in the order in which holds are given back.
UPDATE budget_hold SET until = :until
 WHERE state = 'held' AND until < :until
   AND (run_id, act) IN (SELECT h.run_id, h.act FROM budget_hold AS h
                          WHERE h.holder = :holder AND h.state = 'held'
                            AND h.run_id || CAST(:between AS TEXT) || h.act
                                IN (SELECT value FROM json_each(:acts) AS wanted)
                          ORDER BY h.run_id, h.act /*for_update*/);

-- name: budget_hold_forget
DELETE FROM budget_hold
 WHERE state = :state AND until <= (
       SELECT MAX(page.until)
         FROM (SELECT older.until AS until FROM budget_hold AS older WHERE older.state = :state AND older.until < :before
                ORDER BY older.until LIMIT :count) AS page);
