-- People who have linked what they are called on a channel to their account here, by a code that the channel showed.
-- `terms` are those of the channel at that time: who declared it, and who vouches for its senders. `owner`: whoever
-- linked it owns the installation, and has all roles in it.
CREATE TABLE channel_link (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    channel TEXT NOT NULL,
    sender TEXT NOT NULL,
    user_name TEXT NOT NULL,
    owner BIGINT NOT NULL,
    terms TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE UNIQUE INDEX channel_link_of_sender ON channel_link (channel, sender);
CREATE INDEX channel_link_by_namespace ON channel_link (namespace, id);
CREATE INDEX channel_link_of_user ON channel_link (namespace, user_name, id);

-- Codes that wait to be entered, one for each sender. Only their digests are kept.
CREATE TABLE channel_code (
    digest TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    channel TEXT NOT NULL,
    sender TEXT NOT NULL,
    terms TEXT NOT NULL,
    expires_at REAL NOT NULL
);
CREATE UNIQUE INDEX channel_code_of_sender ON channel_code (channel, sender);
