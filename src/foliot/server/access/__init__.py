"""Who may call: tokens, accounts, sessions, identity providers, and the table that every route is in."""
