"""What is kept of every tool call beside the journal: the audit log, what it cost, and who else hears of it."""
