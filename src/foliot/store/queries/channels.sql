-- Deliveries that wait, and the channels that are read. See migrations/0001_schema.sql for the columns.

-- name: inbox_details_of_run
-- What came along with the inputs that a run answered and that name a channel, in the order of arrival. The condition on
-- their text is that of the index.
SELECT details FROM inbox
 WHERE run_id = :run_id AND status = 'consumed' AND details LIKE '%channel"%' ORDER BY seq;

-- name: outbox_answer
-- locks: -
-- The turn is over: its answer is due. A draft of it that people saw meanwhile becomes the answer.
INSERT INTO outbox (run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error,
                    created_at, ended_at)
VALUES (:run_id, :target, :namespace, :channel, :address, '', 'pending', 0, :at, '', '', :at, NULL)
ON CONFLICT (run_id, target) DO UPDATE SET state = 'pending', due_at = excluded.due_at
 WHERE outbox.state = 'draft';

-- name: outbox_notice
-- locks: -
-- Something that is no answer of a run, under a key of its own: it is stored once.
INSERT INTO outbox (run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error,
                    created_at, ended_at)
VALUES (:run_id, :target, :namespace, :channel, :address, :text, 'pending', 0, :at, '', '', :at, NULL)
ON CONFLICT (run_id, target) DO NOTHING;

-- name: outbox_draft
-- What people see of an answer that is still being written.
INSERT INTO outbox (run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error,
                    created_at, ended_at)
VALUES (:run_id, :target, :namespace, :channel, :address, '', 'draft', 0, :at, :receipt, '', :at, NULL)
ON CONFLICT (run_id, target) DO UPDATE SET receipt = excluded.receipt
 WHERE outbox.state IN ('draft', 'pending') AND outbox.attempts = 0;

-- name: outbox_claim
-- Take what is due, the oldest of each target, of one channel or of all. Whoever takes it has it until :until; `attempts`
-- tells claims apart.
WITH due AS MATERIALIZED (
    SELECT o.key AS key FROM outbox AS o
     WHERE o.state = 'pending' AND o.due_at <= :now
       AND (:channel = '' OR (o.namespace = :namespace AND o.channel = :channel))
       AND NOT EXISTS (SELECT 1 FROM outbox AS e WHERE e.target = o.target AND e.state = 'pending' AND e.key < o.key)
     ORDER BY o.due_at, o.key LIMIT :count /*skip_locked*/)
UPDATE outbox SET attempts = attempts + 1, due_at = :until, holder = :holder
 WHERE key IN (SELECT key FROM due) AND state = 'pending' AND due_at <= :now
RETURNING key, run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error, created_at,
          ended_at;

-- name: outbox_due
-- reads: many
-- The channels for which something is due that no earlier delivery to its target holds up, the longest due first.
SELECT o.namespace, o.channel, MIN(o.due_at) AS due_at FROM outbox AS o
 WHERE o.state = 'pending' AND o.due_at <= :now
   AND NOT EXISTS (SELECT 1 FROM outbox AS e WHERE e.target = o.target AND e.state = 'pending' AND e.key < o.key)
 GROUP BY o.namespace, o.channel ORDER BY MIN(o.due_at), o.namespace, o.channel;

-- name: outbox_receipt
UPDATE outbox SET receipt = :receipt WHERE key = :key AND attempts = :attempts AND state = 'pending';

-- name: outbox_settle
UPDATE outbox SET state = :state, error = :error, ended_at = :at
 WHERE key = :key AND attempts = :attempts AND state = 'pending';

-- name: outbox_again
UPDATE outbox SET due_at = :due_at, error = :error, holder = NULL WHERE key = :key AND attempts = :attempts AND state = 'pending';

-- name: outbox_holders
-- reads: many
SELECT DISTINCT holder FROM outbox WHERE state = 'pending' AND holder IS NOT NULL;

-- name: outbox_abandoned
-- The process that had taken these is gone.
UPDATE outbox SET due_at = :now, holder = NULL WHERE state = 'pending' AND holder = :holder;

-- name: outbox_retry
-- A person asks for what was given up.
UPDATE outbox SET state = 'pending', due_at = :at, error = '', ended_at = NULL
 WHERE key = :key AND namespace = :namespace AND (:channel = '' OR channel = :channel) AND state = 'failed';

-- name: outbox_last
-- reads: many
-- The delivery of a channel that ended last.
SELECT key, run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error, created_at,
       ended_at
  FROM outbox WHERE namespace = :namespace AND channel = :channel AND state IN ('sent', 'failed')
 ORDER BY ended_at DESC, key DESC LIMIT 1;

-- name: outbox_of_run
SELECT key, run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error, created_at,
       ended_at
  FROM outbox WHERE run_id = :run_id ORDER BY key;

-- name: outbox_list
-- reads: many
-- Newest first. Empty texts mean any.
SELECT key, run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error, created_at,
       ended_at
  FROM outbox
 WHERE namespace = :namespace AND (:state = '' OR state = :state) AND -key > -CAST(:before AS BIGINT)
 ORDER BY -key LIMIT :count;

-- name: outbox_list_of_channel
-- reads: many
SELECT key, run_id, target, namespace, channel, address, text, state, attempts, due_at, receipt, error, created_at,
       ended_at
  FROM outbox
 WHERE namespace = :namespace AND channel = :channel AND (:state = '' OR state = :state) AND -key > -CAST(:before AS BIGINT)
 ORDER BY -key LIMIT :count;

-- name: outbox_waits
SELECT key FROM outbox WHERE target = :target AND state = 'pending' LIMIT 1;

-- name: outbox_next
-- reads: many
-- When something is due that no earlier delivery to its target holds up.
SELECT MIN(o.due_at) AS due_at FROM outbox AS o
 WHERE o.state = 'pending'
   AND NOT EXISTS (SELECT 1 FROM outbox AS e WHERE e.target = o.target AND e.state = 'pending' AND e.key < o.key);

-- name: outbox_counts
-- reads: many
SELECT channel, state, COUNT(*) AS number FROM outbox WHERE namespace = :namespace GROUP BY channel, state;

-- name: outbox_prune
DELETE FROM outbox
 WHERE state <> 'pending' AND created_at <= (
       SELECT MAX(page.created_at)
         FROM (SELECT older.created_at AS created_at FROM outbox AS older WHERE older.state <> 'pending' AND older.created_at < :before
                ORDER BY older.created_at LIMIT :count) AS page);

-- name: channel_reader_add
INSERT INTO channel_reader (channel, holder, lease_until, place, error)
VALUES (:channel, '', 0, '', '')
ON CONFLICT (channel) DO NOTHING;

-- name: channel_reader_claim
UPDATE channel_reader SET holder = :holder, lease_until = :until
 WHERE channel = :channel AND (lease_until <= :now OR holder = :holder)
RETURNING place;

-- name: channel_reader_get
SELECT channel, holder, lease_until, place, error FROM channel_reader WHERE channel = :channel;

-- name: channel_reader_move
UPDATE channel_reader SET place = :place WHERE channel = :channel AND holder = :holder;

-- name: channel_reader_error
UPDATE channel_reader SET error = :error WHERE channel = :channel AND holder = :holder AND error <> :error;

-- name: channel_reader_release
UPDATE channel_reader SET holder = '', lease_until = 0 WHERE channel = :channel AND holder = :holder;

-- name: channel_reader_forget
DELETE FROM channel_reader WHERE channel = :channel;

-- name: channel_choice_get
SELECT agent FROM channel_choice WHERE channel = :channel AND chat = :chat;

-- name: channel_choice_set
INSERT INTO channel_choice (channel, chat, agent) VALUES (:channel, :chat, :agent)
ON CONFLICT (channel, chat) DO UPDATE SET agent = excluded.agent;

-- name: channel_choice_forget
DELETE FROM channel_choice WHERE channel = :channel;

-- name: taken_add
-- locks: request id
INSERT INTO taken_message (id, source, digest, target, seq, outcome, reply, at)
VALUES (:id, :source, :digest, :target, 0, '', '', :at)
ON CONFLICT (id) DO NOTHING;

-- name: taken_lock
-- locks: request id
SELECT digest, target, seq, outcome, reply FROM taken_message WHERE id = :id /*for_update*/;

-- name: taken_get
SELECT digest, target, seq, outcome, reply FROM taken_message WHERE id = :id;

-- name: taken_outcome
UPDATE taken_message SET seq = :seq, outcome = :outcome, reply = :reply WHERE id = :id;

-- name: taken_forget
DELETE FROM taken_message WHERE source = :source;

-- name: taken_prune
DELETE FROM taken_message
 WHERE at <= (
       SELECT MAX(page.at)
         FROM (SELECT older.at AS at FROM taken_message AS older WHERE older.at < :before
                ORDER BY older.at LIMIT :count) AS page);

-- name: channel_code_put
INSERT INTO channel_code (digest, namespace, name, channel, sender, terms, expires_at)
VALUES (:digest, :namespace, :name, :channel, :sender, :terms, :expires_at)
ON CONFLICT (channel, sender) DO UPDATE
   SET digest = excluded.digest, namespace = excluded.namespace, name = excluded.name, terms = excluded.terms,
       expires_at = excluded.expires_at;

-- name: channel_code_expire
DELETE FROM channel_code WHERE channel = :channel AND expires_at <= :now;

-- name: channel_code_count
SELECT COUNT(*) AS number FROM channel_code WHERE channel = :channel;

-- name: channel_code_take
-- Whoever is first has it.
DELETE FROM channel_code WHERE digest = :digest AND namespace = :namespace
RETURNING namespace, name, channel, sender, terms, expires_at;

-- name: channel_code_forget
DELETE FROM channel_code WHERE channel = :channel;

-- name: channel_link_put
INSERT INTO channel_link (id, namespace, name, channel, sender, user_name, owner, terms, at)
VALUES (:id, :namespace, :name, :channel, :sender, :user_name, :owner, :terms, :at)
ON CONFLICT (channel, sender) DO UPDATE
   SET id = excluded.id, namespace = excluded.namespace, name = excluded.name, user_name = excluded.user_name,
       owner = excluded.owner, terms = excluded.terms, at = excluded.at;

-- name: channel_link_of_sender
SELECT id, namespace, name, channel, sender, user_name, owner, terms, at FROM channel_link
 WHERE channel = :channel AND sender = :sender;

-- name: channel_link_list
-- reads: many
SELECT id, namespace, name, channel, sender, user_name, owner, terms, at FROM channel_link
 WHERE namespace = :namespace ORDER BY id LIMIT :count;

-- name: channel_link_list_of_user
-- reads: many
SELECT id, namespace, name, channel, sender, user_name, owner, terms, at FROM channel_link
 WHERE namespace = :namespace AND user_name = :user_name ORDER BY id LIMIT :count;

-- name: channel_links_of_channel
-- reads: many
SELECT id, namespace, name, channel, sender, user_name, owner, terms, at FROM channel_link
 WHERE channel = :channel ORDER BY sender LIMIT :count;

-- name: channel_link_get
SELECT id, namespace, name, channel, sender, user_name, owner, terms, at FROM channel_link
 WHERE id = :id AND namespace = :namespace;

-- name: channel_link_delete
DELETE FROM channel_link WHERE id = :id AND namespace = :namespace;

-- name: channel_link_forget
DELETE FROM channel_link WHERE channel = :channel;
