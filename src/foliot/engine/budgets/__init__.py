"""Budgets in money: what is declared, who pays, and what happens when there is no room. The ledger is in the store."""
