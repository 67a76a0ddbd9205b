-- Each event is chained to the one before it: see journal_chain.py. NULL in what was stored before.
ALTER TABLE event ADD COLUMN link BLOB;
