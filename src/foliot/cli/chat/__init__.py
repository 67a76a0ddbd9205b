"""The terminal chat. `foliot chat` opens it; it uses the verbs of sessions, runs and approvals, and no store."""
