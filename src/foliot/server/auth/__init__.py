"""Who calls and what they may do: tokens, accounts, sessions, identity providers."""
