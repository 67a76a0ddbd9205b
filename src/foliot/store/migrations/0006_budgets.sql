-- Budgets in money: what was reserved and what was spent.

-- One row for each budget, payer and span of time: `key` is these joined by U+001F. Money is in millionths of a US dollar.
CREATE TABLE budget_account (
    key             TEXT PRIMARY KEY,
    namespace       TEXT NOT NULL,
    budget          TEXT NOT NULL,
    payer           TEXT NOT NULL,
    period          TEXT NOT NULL,
    spent           BIGINT NOT NULL,
    reserved        BIGINT NOT NULL,
    spent_tokens    BIGINT NOT NULL,
    reserved_tokens BIGINT NOT NULL,
    updated_at      REAL NOT NULL
);
CREATE INDEX budget_account_by_budget ON budget_account (namespace, budget, period);

-- One row for each act that costs something: `act` names it within its run. While it is `held`, its amount is part of
-- `reserved` of every account in `accounts` (a JSON array of keys) and belongs to the process `holder` until `until`.
-- Afterwards the row stays for a while, so that settling twice is known from settling once.
CREATE TABLE budget_hold (
    run_id   TEXT NOT NULL,
    act      TEXT NOT NULL,
    holder   TEXT NOT NULL,
    state    TEXT NOT NULL,
    until    REAL NOT NULL,
    amount   BIGINT NOT NULL,
    tokens   BIGINT NOT NULL,
    accounts TEXT NOT NULL,
    PRIMARY KEY (run_id, act)
) WITHOUT ROWID;
CREATE INDEX budget_hold_by_state ON budget_hold (state, until);
CREATE INDEX budget_hold_by_holder ON budget_hold (holder, state);
