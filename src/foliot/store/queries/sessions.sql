-- Sessions, their turns, and what was said to them. See migrations/0001_schema.sql for the columns.

-- name: session_add
-- locks: -
INSERT INTO session (id, namespace, agent, user_name, channel, kind, title, model, options, created_at, active_at,
                     archived_at, head, turn, turns, arrivals)
VALUES (:id, :namespace, :agent, :user_name, :channel, :kind, :title, :model, :options, :at, :at,
        NULL, NULL, NULL, 0, 0)
ON CONFLICT (id) DO NOTHING
RETURNING key;

-- name: session_get
SELECT key, id, namespace, agent, user_name, channel, kind, title, model, options, created_at, active_at, archived_at,
       head, turn, turns, arrivals
  FROM session WHERE id = :id;

-- name: session_marks
-- What changes in the rows of these sessions when something happens to them.
SELECT id, head, turn, turns, arrivals, active_at
  FROM session WHERE id IN (SELECT value FROM json_each(:ids) AS wanted);

-- name: session_lock
-- locks: session id
SELECT key, id, namespace, agent, user_name, channel, kind, title, model, options, created_at, active_at, archived_at,
       head, turn, turns, arrivals
  FROM session WHERE id = :id /*for_update*/;

-- name: session_list
-- reads: many
-- Last used first. Empty texts mean any.
SELECT key, id, namespace, agent, user_name, channel, kind, title, model, options, created_at, active_at, archived_at,
       head, turn, turns, arrivals
  FROM session
 WHERE namespace = :namespace
   AND (:channel = '' OR channel = :channel)
   AND (:kind = '' OR kind = :kind)
   AND (CAST(:archived AS BIGINT) = 1 OR archived_at IS NULL)
   AND (active_at, key) < (:before_at, :before_key)
 ORDER BY active_at DESC, key DESC LIMIT :count;

-- name: session_list_of_user
-- reads: many
SELECT key, id, namespace, agent, user_name, channel, kind, title, model, options, created_at, active_at, archived_at,
       head, turn, turns, arrivals
  FROM session
 WHERE namespace = :namespace AND user_name = :user_name
   AND (:agent = '' OR agent = :agent)
   AND (:channel = '' OR channel = :channel)
   AND (:kind = '' OR kind = :kind)
   AND (CAST(:archived AS BIGINT) = 1 OR archived_at IS NULL)
   AND (active_at, key) < (:before_at, :before_key)
 ORDER BY active_at DESC, key DESC LIMIT :count;

-- name: session_list_of_agent
-- reads: many
SELECT key, id, namespace, agent, user_name, channel, kind, title, model, options, created_at, active_at, archived_at,
       head, turn, turns, arrivals
  FROM session
 WHERE namespace = :namespace AND agent = :agent
   AND (:channel = '' OR channel = :channel)
   AND (:kind = '' OR kind = :kind)
   AND (CAST(:archived AS BIGINT) = 1 OR archived_at IS NULL)
   AND (active_at, key) < (:before_at, :before_key)
 ORDER BY active_at DESC, key DESC LIMIT :count;

-- name: session_open_of
-- Sessions with an agent that are not archived, oldest first; a few of them.
SELECT id FROM session WHERE namespace = :namespace AND agent = :agent AND archived_at IS NULL ORDER BY key LIMIT 6;

-- name: session_set
-- locks: -
UPDATE session SET title = :title, model = :model, options = :options, active_at = :active_at WHERE key = :key;

-- name: session_title
-- locks: -
UPDATE session SET title = :title WHERE key = :key AND title = '';

-- name: session_archive
-- locks: -
UPDATE session SET archived_at = :at, active_at = :at WHERE key = :key AND archived_at IS NULL;

-- name: session_begin_turn
-- locks: -
UPDATE session SET turn = :run_id, turns = turns + 1, active_at = :at WHERE key = :key AND turn IS NULL;

-- name: session_end_turn
-- locks: -
UPDATE session SET head = :head, turn = NULL, active_at = :at WHERE key = :key AND turn = :run_id;

-- name: session_arrived
-- locks: -
UPDATE session SET arrivals = :arrivals, active_at = :at WHERE key = :key;

-- name: session_delete
-- locks: -
DELETE FROM session WHERE key = :key;

-- name: session_staleness_add
INSERT INTO session_staleness (namespace, user_name, stale) VALUES (:namespace, :user_name, 1)
ON CONFLICT (namespace, user_name) DO UPDATE SET stale = session_staleness.stale + 1;

-- name: session_staleness_get
SELECT stale FROM session_staleness WHERE namespace = :namespace AND user_name = :user_name;

-- name: session_of_run
-- The session that a run is a turn of, whether it is at work or over.
SELECT s.id AS id FROM session_turn AS t JOIN session AS s ON s.key = t.session WHERE t.run_id = :run_id;

-- name: sessions_unanswered
-- reads: many
-- Sessions with inputs that wait and no turn that would hear them, in the order of their keys. The inputs first, which are
-- few: otherwise PostgreSQL walks along all sessions.
WITH said AS MATERIALIZED (
    SELECT DISTINCT i.owner AS owner FROM inbox AS i WHERE i.owner_kind = 'session' AND i.status IN ('pending', 'offered'))
SELECT s.key AS key, s.id AS id FROM said CROSS JOIN session AS s
 WHERE s.key = said.owner AND s.turn IS NULL AND s.key > :after AND s.active_at <= :quiet_since
 ORDER BY s.key LIMIT :count;

-- name: session_channel_add
-- locks: -
INSERT INTO session_channel (namespace, agent, user_name, channel, active)
VALUES (:namespace, :agent, :user_name, :channel, NULL)
ON CONFLICT (namespace, agent, user_name, channel) DO NOTHING;

-- name: session_channel_lock
-- locks: channel namespace agent user_name channel
SELECT active FROM session_channel
 WHERE namespace = :namespace AND agent = :agent AND user_name = :user_name AND channel = :channel /*for_update*/;

-- name: session_channel_get
SELECT active FROM session_channel
 WHERE namespace = :namespace AND agent = :agent AND user_name = :user_name AND channel = :channel;

-- name: session_channel_set
-- locks: -
UPDATE session_channel SET active = :active
 WHERE namespace = :namespace AND agent = :agent AND user_name = :user_name AND channel = :channel;

-- name: session_turn_add
-- locks: -
INSERT INTO session_turn (session, number, run_id, parent, began_at, ended_at)
VALUES (:session, :number, :run_id, :parent, :at, NULL);

-- name: session_turn_end
-- locks: -
UPDATE session_turn SET ended_at = :at WHERE run_id = :run_id;

-- name: session_turn_of_run
SELECT key, session, number, run_id, parent, began_at, ended_at FROM session_turn WHERE run_id = :run_id;

-- name: session_of_turn
SELECT session.namespace AS namespace
  FROM session_turn JOIN session ON session.key = session_turn.session WHERE session_turn.run_id = :run_id;

-- name: session_turn_get
SELECT key, session, number, run_id, parent, began_at, ended_at FROM session_turn
 WHERE session = :session AND number = :number;

-- name: session_select
-- locks: -
UPDATE session SET head = :run_id, active_at = :at WHERE key = :key AND turn IS NULL;

-- name: session_path
WITH RECURSIVE path (number, parent) AS (
    SELECT t.number, t.parent FROM session_turn AS t WHERE t.session = :session AND t.run_id = :run_id
    UNION ALL
    SELECT t.number, t.parent FROM session_turn AS t JOIN path AS p ON t.number = p.parent
     WHERE t.session = :session AND t.number >= :down_to
)
SELECT number FROM path;

-- name: session_turns
SELECT session, number, run_id, parent, began_at, ended_at FROM session_turn
 WHERE session = :session AND number < :before ORDER BY number DESC LIMIT :count;

-- name: session_words_add
-- locks: -
-- only: sqlite
INSERT INTO session_words (rowid, words) VALUES (:key, :words);
-- only: postgres
INSERT INTO session_words (rowid, words)
VALUES (:key, array_to_tsvector(string_to_array(CAST(:words AS TEXT), ' ')));
-- only: both

-- name: session_words_delete
-- locks: -
DELETE FROM session_words WHERE rowid IN (SELECT t.key FROM session_turn AS t WHERE t.session = :key);

-- name: session_search
-- reads: many
-- Turns with all of these words, the newest first. A word that ends with a star is the beginning of one.
SELECT s.id AS id, s.title AS title, t.number AS number, t.run_id AS run_id, t.ended_at AS ended_at
  FROM session_words JOIN session_turn AS t ON t.key = session_words.rowid JOIN session AS s ON s.key = t.session
-- only: sqlite
 WHERE session_words MATCH :words
-- only: postgres
 WHERE session_words.words @@ CAST(replace(replace(CAST(:words AS TEXT), '*', ':*'), ' ', ' & ') AS tsquery)
-- only: both
   AND s.namespace = :namespace
   AND (CAST(:mine AS BIGINT) = 0 OR s.user_name = :user_name)
   AND (:id = '' OR s.id = :id)
 ORDER BY t.key DESC LIMIT :count;

-- name: sessions_to_purge
-- Archived before a time, and nothing goes on in them.
SELECT s.id AS id FROM session AS s
 WHERE s.archived_at < :before AND s.turn IS NULL
   AND NOT EXISTS (SELECT 1 FROM inbox AS i
                    WHERE i.owner_kind = 'session' AND i.owner = s.key AND i.status IN ('pending', 'offered'))
 ORDER BY s.archived_at LIMIT :count;

-- name: session_turns_delete
-- locks: -
DELETE FROM session_turn WHERE session = :key;

-- name: inbox_add
-- locks: -
INSERT INTO inbox (owner_kind, owner, seq, id, mode, message, digest, by_name, place, details, status, steered, outcome,
                   reason, run_id, at)
VALUES (:owner_kind, :owner, :seq, :id, :mode, :message, :digest, :by_name, :place, :details, :status, 0, :outcome,
        '', :run_id, :at);

-- name: inbox_by_id
SELECT seq, id, mode, message, digest, by_name, place, details, status, steered, outcome, reason, run_id, at
  FROM inbox WHERE owner_kind = :owner_kind AND owner = :owner AND id = :id;

-- name: inbox_open
-- What is not answered yet, in the order of arrival.
SELECT seq, id, mode, message, digest, by_name, place, details, status, steered, outcome, reason, run_id, at
  FROM inbox WHERE owner_kind = :owner_kind AND owner = :owner AND status IN ('pending', 'offered') ORDER BY seq;

-- name: inbox_waiting
-- The same without what was said: the rules of the inbox need no more.
SELECT seq, mode, place, status, steered, reason, run_id, at, COALESCE(LENGTH(message), 0) AS size
  FROM inbox WHERE owner_kind = :owner_kind AND owner = :owner AND status IN ('pending', 'offered') ORDER BY seq;

-- name: inbox_list
SELECT seq, id, mode, message, digest, by_name, place, details, status, steered, outcome, reason, run_id, at
  FROM inbox WHERE owner_kind = :owner_kind AND owner = :owner AND seq > :after ORDER BY seq LIMIT :count;

-- name: inbox_last
SELECT COALESCE(MAX(seq), 0) AS seq FROM inbox WHERE owner_kind = :owner_kind AND owner = :owner;

-- name: inbox_consume
-- locks: -
-- Its message is in the journal of the run by now. One that a turn took while it worked is steered.
UPDATE inbox SET status = 'consumed', run_id = :run_id, message = NULL,
       steered = CASE WHEN CAST(:steered AS BIGINT) = 1 THEN 1 ELSE steered END
 WHERE owner_kind = :owner_kind AND owner = :owner AND seq = :seq AND status IN ('pending', 'offered');

-- name: inbox_drop
-- locks: -
-- The line that is kept of it, if any, stands before the next turn.
UPDATE inbox SET status = 'dropped', reason = :reason, message = :line
 WHERE owner_kind = 'session' AND owner = :owner AND seq = :seq AND status IN ('pending', 'offered');

-- name: inbox_message
SELECT message FROM inbox WHERE owner_kind = 'session' AND owner = :owner AND seq = :seq;

-- name: inbox_drop_pending
-- locks: -
-- Here and in the next one, the longer condition on `status` is that of the index.
UPDATE inbox SET status = 'dropped', reason = :reason, message = NULL
 WHERE owner_kind = 'session' AND owner = :owner AND status IN ('pending', 'offered') AND status = 'pending';

-- name: inbox_cancel_offered
-- locks: -
UPDATE inbox SET reason = :reason
 WHERE owner_kind = 'session' AND owner = :owner AND status IN ('pending', 'offered') AND status = 'offered';

-- name: inbox_forget_dropped
-- locks: -
-- Nothing of it stands before the next turn.
UPDATE inbox SET message = NULL
 WHERE owner_kind = 'session' AND owner = :owner AND status = 'dropped' AND message IS NOT NULL;

-- name: inbox_dropped
-- What had to make room in a place and was not told to anybody yet, the newest first.
SELECT seq, id, mode, message, digest, by_name, place, details, status, steered, outcome, reason, run_id, at
  FROM inbox WHERE owner_kind = 'session' AND owner = :owner AND status = 'dropped' AND message IS NOT NULL
   AND place = :place ORDER BY seq DESC LIMIT :count;

-- name: inbox_dropped_count
SELECT COUNT(*) AS dropped
  FROM inbox WHERE owner_kind = 'session' AND owner = :owner AND status = 'dropped' AND message IS NOT NULL
   AND place = :place AND seq <= :upto;

-- name: inbox_summarised
-- locks: -
-- What is told of them is in the journal of the run by now.
UPDATE inbox SET run_id = :run_id, message = NULL
 WHERE owner_kind = 'session' AND owner = :owner AND status = 'dropped' AND message IS NOT NULL
   AND place = :place AND seq <= :upto;

-- name: inbox_back
-- locks: -
-- A turn did not take it, or took it and it is to be answered all the same.
UPDATE inbox SET status = 'pending', steered = :steered, run_id = NULL
 WHERE owner_kind = :owner_kind AND owner = :owner AND seq = :seq AND status = 'offered';

-- name: inbox_clear
-- locks: -
DELETE FROM inbox WHERE owner_kind = :owner_kind AND owner = :owner;

-- name: purge_inbox
-- locks: -
DELETE FROM inbox
 WHERE owner_kind = 'run' AND owner IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: asset_add
-- locks: -
INSERT INTO asset (session, digest, name, size, media_type, at)
VALUES (:session, :digest, :name, :size, :media_type, :at)
ON CONFLICT (session, digest, name) DO NOTHING;

-- name: asset_room
-- What a session keeps. Pieces of files count as the files that they are of.
SELECT COUNT(*) AS files, COALESCE(SUM(size), 0) AS size FROM asset WHERE session = :session AND name <> '';

-- name: asset_find
SELECT digest, name, size, media_type FROM asset
 WHERE session = :session AND digest = :digest AND name <> '' ORDER BY at, name;

-- name: asset_list
SELECT digest, name, size, media_type FROM asset
 WHERE session = :session AND name <> '' ORDER BY at, name;

-- name: asset_drop
-- locks: -
DELETE FROM asset WHERE session = :session;

-- name: inbox_answered
-- locks: -
-- What was said to a run is in its conversation, or the run has ended with it.
UPDATE inbox SET status = 'consumed', steered = 1, run_id = :run_id, message = NULL
 WHERE owner_kind = 'run' AND owner = :owner AND id = :id AND status = 'offered';

-- name: inbox_unheard
-- locks: -
UPDATE inbox SET status = 'dropped', reason = :reason
 WHERE owner_kind = 'run' AND owner = :owner AND id = :id AND status = 'offered';

-- name: inbox_restart
-- The run that goes on after one that has ended, because of what was said to it.
SELECT run_id FROM inbox
 WHERE owner_kind = 'run' AND owner = :owner AND outcome = 'restarted' AND run_id IS NOT NULL ORDER BY seq LIMIT 1;

-- name: inbox_unheard_list
-- What was said to a run that ended before it could hear it, in the order of arrival.
SELECT seq, id, mode, message, digest, by_name, place, details, status, steered, outcome, reason, run_id, at
  FROM inbox WHERE owner_kind = 'run' AND owner = :owner AND status = 'dropped' AND reason = :reason ORDER BY seq;

-- name: signal_cancelling
SELECT id FROM signal WHERE run_id = :run_id AND type = :type LIMIT 1;
