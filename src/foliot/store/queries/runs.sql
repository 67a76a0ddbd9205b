-- Runs, their journals, signals to them, and stored content. See migrations/0001_schema.sql for the columns.

-- name: run_create
-- locks: -
-- apart: id
INSERT INTO run (id, namespace, agent, phase, epoch, last_seq, worker, lease_until,
                 created_at, updated_at, parent, parent_seq, labels, summary, root, conversation, pin)
VALUES (:id, :namespace, :agent, :phase, :epoch, :last, :worker, :lease_until,
        :created_at, :created_at, :parent, :parent_seq, :labels, '{}', :root, :conversation, :pin)
ON CONFLICT (id) DO NOTHING
RETURNING key;

-- name: run_pin_find
-- locks: -
-- What runs are pinned to, and whether its spec is stored. It cannot be purged before the run that asks is committed.
SELECT pinned.key AS key,
       CASE WHEN EXISTS (SELECT 1 FROM blob WHERE blob.digest = pinned.spec) THEN 1 ELSE 0 END AS stored
  FROM run_pin AS pinned WHERE pinned.digest = :digest /*for_key_share*/;

-- name: run_pin_add
-- locks: pin digest
INSERT INTO run_pin (digest, spec, data) VALUES (:digest, :spec, :data) ON CONFLICT (digest) DO NOTHING;

-- name: run_claim
-- locks: run *
-- Under a new epoch, if nobody's lease lives: whoever held the run before is fenced out.
UPDATE run
   SET phase = 'running', epoch = epoch + 1, worker = :worker, lease_until = :until, updated_at = :now,
       left_seq = CASE WHEN left_seq IN (last_seq, -last_seq) THEN left_seq
                       WHEN worker IS NULL THEN last_seq ELSE -last_seq END
 WHERE id = :id AND phase NOT IN ('succeeded', 'failed', 'cancelled')
   AND (lease_until IS NULL OR lease_until < :now OR epoch = :dead)
RETURNING key, epoch, left_seq;

-- name: run_renewable
-- locks: run keys[]
-- Runs (a JSON array of keys) as they are. One that somebody keeps locked is passed over: it must not cost the others.
SELECT key, id, epoch, worker, last_seq FROM run
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
 ORDER BY key /*skip_locked*/;

-- name: run_renew
-- locks: run keys[]
-- Of runs that are locked by now. Never shorter: of two renewals under way the older one may come last.
UPDATE run SET lease_until = CASE WHEN lease_until > :until THEN lease_until ELSE :until END
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: run_advance
-- locks: run key
-- The fence of every append: no row is changed when the holder or the last event is not what the writer believes. A
-- holder is a worker and an epoch: a store that was set back gives an epoch again, to somebody else. Nor is it changed
-- while a cancel waits to be heard: what begins by this append would begin after it.
UPDATE run SET last_seq = :last
 WHERE key = :key AND epoch = :epoch AND worker = :worker AND last_seq = :after AND COALESCE(cancelling, 0) <> 1;

-- name: run_cancel
-- locks: run keys[]
-- Runs (a JSON array of keys) that are locked by now, and were not told before: they hear it before they append.
UPDATE run SET cancelling = 1
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted) AND cancelling IS NULL;

-- name: run_cancel_heard
-- locks: run key
UPDATE run SET cancelling = 2 WHERE key = :key AND epoch = :epoch AND worker = :worker;

-- name: run_below
-- The runs that were started by some (a JSON array of keys), and those below them, if they have not ended. A fork was not
-- started by the run that it branched off.
WITH RECURSIVE below (key, id) AS (
    SELECT r.key, r.id
      FROM json_each(:keys) AS wanted CROSS JOIN run AS above CROSS JOIN run AS r
     WHERE above.key = CAST(wanted.value AS BIGINT) AND r.parent = above.id AND r.parent_seq IS NULL
    UNION
    SELECT r.key, r.id FROM below AS b CROSS JOIN run AS r WHERE r.parent = b.id AND r.parent_seq IS NULL)
SELECT r.key AS key FROM below AS b CROSS JOIN run AS r
 WHERE r.key = b.key AND r.phase IN ('pending', 'running', 'waiting')
 ORDER BY r.key;

-- name: run_hold
-- locks: run key
UPDATE run SET last_seq = :last, phase = 'running', updated_at = :at, summary = COALESCE(:summary, summary)
 WHERE key = :key AND epoch = :epoch AND worker = :worker AND last_seq = :after;

-- name: run_release
-- locks: run key
-- The epoch grows, so that not even the one who lets go can write any more.
UPDATE run
   SET last_seq = :last, phase = :phase, epoch = epoch + 1, worker = NULL, lease_until = NULL, updated_at = :at,
       summary = COALESCE(:summary, summary)
 WHERE key = :key AND epoch = :epoch AND worker = :worker AND last_seq = :after;

-- name: run_get
SELECT key, id, namespace, agent, phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = run.pin) AS spec,
       epoch, worker, lease_until, created_at, updated_at,
       parent, parent_seq, labels, summary
  FROM run WHERE id = :id;

-- name: run_lock
-- locks: run keys[]
-- Whoever looks at the phase of a run, or at what it was told, and acts on it, comes one after another: in the order of
-- keys, for runs given as a JSON array of them.
SELECT key, id, phase, cancelling FROM run
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
 ORDER BY key /*for_update*/;

-- name: run_fence
SELECT id, epoch, worker, last_seq, updated_at, cancelling FROM run WHERE key = :key;

-- name: run_fences
SELECT key, id, epoch, worker, last_seq FROM run
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: run_find
SELECT id FROM run WHERE id >= :low AND id < :high ORDER BY id LIMIT 2;

-- name: run_keys
-- reads: many
-- A list begins with keys, newest first, by the order in which runs were stored (an id may be chosen by its user), with one
-- query for each index (see task_keys for the negative keys). :private is the label of runs with words of a session, as it
-- is written: without the label :own among theirs they are left out. An empty text leaves out none.
SELECT key FROM run
 WHERE namespace = :namespace AND -key > -CAST(:before AS BIGINT)
   AND (:private = '' OR replace(labels, :private, '') = labels OR replace(labels, :own, '') <> labels)
 ORDER BY -key LIMIT :count;

-- name: run_keys_everywhere
-- reads: many
SELECT key FROM run
 WHERE key < :before
   AND (:private = '' OR replace(labels, :private, '') = labels OR replace(labels, :own, '') <> labels)
 ORDER BY key DESC LIMIT :count;

-- name: run_keys_in_phases
-- reads: many
-- Of all phases at one moment (see task_keys_in_phases). :phases is a JSON array. The conditions on `phase` with more than one
-- are those of the indices.
SELECT found.key AS key
  FROM (SELECT run.key AS key FROM json_each(:phases) AS wanted CROSS JOIN run
         WHERE run.key IN (SELECT r.key FROM run AS r
                WHERE r.phase IN ('pending', 'running', 'waiting') AND r.phase = wanted.value
                  AND r.namespace = :namespace AND 0 - r.key > 0 - CAST(:before AS BIGINT)
                  AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
                ORDER BY 0 - r.key LIMIT :count)
        UNION ALL
        SELECT run.key AS key FROM json_each(:phases) AS wanted CROSS JOIN run
         WHERE run.key IN (SELECT r.key FROM run AS r
                WHERE r.phase IN ('succeeded', 'failed', 'cancelled') AND r.phase = wanted.value
                  AND r.namespace = :namespace AND 0 - r.key > 0 - CAST(:before AS BIGINT)
                  AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
                ORDER BY 0 - r.key LIMIT :count)) AS found
 ORDER BY found.key DESC LIMIT :count;

-- name: run_keys_in_phases_everywhere
-- reads: many
-- The newest of each namespace, of which the newest are taken: the recursion hops from one namespace to the next in the
-- index. A look at those of all namespaces in one order would sort them all.
WITH RECURSIVE space (name) AS (
    SELECT MIN(r.namespace) FROM run AS r
    UNION ALL
    SELECT (SELECT MIN(r.namespace) FROM run AS r WHERE r.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT found.key AS key
  FROM (SELECT run.key AS key FROM space AS s CROSS JOIN json_each(:phases) AS wanted CROSS JOIN run
         WHERE run.key IN (SELECT r.key FROM run AS r
                WHERE r.phase IN ('pending', 'running', 'waiting') AND r.phase = wanted.value
                  AND r.namespace = s.name AND 0 - r.key > 0 - CAST(:before AS BIGINT)
                  AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
                ORDER BY 0 - r.key LIMIT :count)
        UNION ALL
        SELECT run.key AS key FROM space AS s CROSS JOIN json_each(:phases) AS wanted CROSS JOIN run
         WHERE run.key IN (SELECT r.key FROM run AS r
                WHERE r.phase IN ('succeeded', 'failed', 'cancelled') AND r.phase = wanted.value
                  AND r.namespace = s.name AND 0 - r.key > 0 - CAST(:before AS BIGINT)
                  AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
                ORDER BY 0 - r.key LIMIT :count)) AS found
 ORDER BY found.key DESC LIMIT :count;

-- name: run_keys_in_phases_any_order
-- reads: many
-- In that of the index, so that PostgreSQL takes it.
SELECT found.key AS key
  FROM (SELECT run.key AS key FROM json_each(:phases) AS wanted CROSS JOIN run
         WHERE run.key IN (SELECT r.key FROM run AS r
                WHERE r.phase IN ('pending', 'running', 'waiting') AND r.phase = wanted.value
                  AND 0 - r.key > 0 - CAST(:before AS BIGINT)
                  AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
                ORDER BY r.namespace, 0 - r.key LIMIT :count)
        UNION ALL
        SELECT run.key AS key FROM json_each(:phases) AS wanted CROSS JOIN run
         WHERE run.key IN (SELECT r.key FROM run AS r
                WHERE r.phase IN ('succeeded', 'failed', 'cancelled') AND r.phase = wanted.value
                  AND 0 - r.key > 0 - CAST(:before AS BIGINT)
                  AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
                ORDER BY r.namespace, 0 - r.key LIMIT :count)) AS found
 LIMIT :count;

-- name: run_keys_of_agent
-- reads: many
SELECT key FROM run
 WHERE namespace = :namespace AND agent = :agent AND 0 - key > 0 - CAST(:before AS BIGINT)
   AND (:private = '' OR replace(labels, :private, '') = labels OR replace(labels, :own, '') <> labels)
 ORDER BY 0 - key LIMIT :count;

-- name: run_keys_of_agent_everywhere
-- reads: many
-- By namespaces, as run_keys_in_phases_everywhere.
WITH RECURSIVE space (name) AS (
    SELECT MIN(r.namespace) FROM run AS r
    UNION ALL
    SELECT (SELECT MIN(r.namespace) FROM run AS r WHERE r.namespace > s.name)
      FROM space AS s WHERE s.name IS NOT NULL)
SELECT run.key AS key FROM space AS s CROSS JOIN run
 WHERE run.key IN (SELECT r.key FROM run AS r
        WHERE r.agent = :agent AND r.namespace = s.name AND 0 - r.key > 0 - CAST(:before AS BIGINT)
          AND (:private = '' OR replace(r.labels, :private, '') = r.labels OR replace(r.labels, :own, '') <> r.labels)
        ORDER BY 0 - r.key LIMIT :count)
 ORDER BY run.key DESC LIMIT :count;

-- name: run_keys_of_agent_any_order
-- reads: many
SELECT key FROM run
 WHERE agent = :agent AND 0 - key > 0 - CAST(:before AS BIGINT)
   AND (:private = '' OR replace(labels, :private, '') = labels OR replace(labels, :own, '') <> labels)
 ORDER BY agent, namespace, 0 - key LIMIT :count;

-- name: run_keys_matching
-- reads: many
-- Those of some keys for which all filters hold (see task_keys_matching). :phases is a JSON array.
SELECT key FROM run
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
   AND (:namespace = '' OR namespace = :namespace) AND (:agent = '' OR agent = :agent)
   AND COALESCE(phase, '') IN (SELECT value FROM json_each(:phases) AS wanted);

-- name: run_rows
-- Runs by their keys, a JSON array of them as text; newest first.
SELECT r.key AS key, r.id AS id, r.namespace AS namespace, r.agent AS agent, r.phase AS phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = r.pin) AS spec, r.epoch AS epoch, r.worker AS worker, r.lease_until AS lease_until, r.created_at AS created_at,
       r.updated_at AS updated_at, r.parent AS parent, r.parent_seq AS parent_seq, r.labels AS labels,
       r.summary AS summary
  FROM json_each(:keys) AS wanted JOIN run AS r ON r.key = CAST(wanted.value AS BIGINT)
 ORDER BY r.key DESC;

-- name: run_key
SELECT key FROM run WHERE id = :id;

-- name: run_alike
-- Runs whose ids begin so. :namespaces is a JSON array; an empty one means any.
SELECT key, id, namespace, agent, phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = run.pin) AS spec,
       epoch, worker, lease_until, created_at, updated_at,
       parent, parent_seq, labels, summary
  FROM run
 WHERE id >= :low AND id < :high
   AND (:namespaces = '[]' OR namespace IN (SELECT value FROM json_each(:namespaces) AS wanted))
 ORDER BY id LIMIT :count;

-- name: run_many
-- Runs by their ids, a JSON array, in the order in which they were stored.
SELECT key, id, namespace, agent, phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = run.pin) AS spec,
       epoch, worker, lease_until, created_at, updated_at,
       parent, parent_seq, labels, summary
  FROM run
 WHERE id IN (SELECT value FROM json_each(:ids) AS wanted)
 ORDER BY key;

-- name: run_asking
-- reads: many
-- Runs that wait for a person, in the order in which they were stored; :namespaces as above. The plus signs keep SQLite
-- from walking through all runs that ever ended, in the order of their keys.
SELECT key, id, namespace, agent, phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = run.pin) AS spec,
       epoch, worker, lease_until, created_at, updated_at,
       parent, parent_seq, labels, summary
  FROM run
 WHERE phase IN ('pending', 'running', 'waiting') AND phase = 'waiting' AND +key > :after
   AND (summary LIKE '%"reason"_"input"%' OR summary LIKE '%"reason"_"approval"%')
   AND (:namespaces = '[]' OR namespace IN (SELECT value FROM json_each(:namespaces) AS wanted))
 ORDER BY +key LIMIT :count;

-- name: run_asking_below
-- The same of one run and of those below it: not of all that have its root, where its siblings and those above it are.
-- Also one that somebody holds for a moment, to see whether it can go on: its summary is that of when it began to wait.
WITH RECURSIVE below (key, id) AS (
    SELECT r.key, r.id FROM run AS r WHERE r.id = :id
    UNION
    SELECT r.key, r.id FROM below AS b CROSS JOIN run AS r WHERE r.parent = b.id AND r.parent_seq IS NULL)
SELECT run.key AS key, run.id AS id, namespace, agent, phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = run.pin) AS spec,
       epoch, worker, lease_until, created_at, updated_at,
       parent, parent_seq, labels, summary
  FROM below AS b CROSS JOIN run
 WHERE run.key = b.key AND phase IN ('waiting', 'running')
   AND (summary LIKE '%"reason"_"input"%' OR summary LIKE '%"reason"_"approval"%')
 ORDER BY run.key;

-- name: run_waiting_below
-- Those that wait for anything among the runs that belong to one.
SELECT key, id, namespace, agent, phase,
       (SELECT pinned.spec FROM run_pin AS pinned WHERE pinned.key = run.pin) AS spec,
       epoch, worker, lease_until, created_at, updated_at,
       parent, parent_seq, labels, summary
  FROM run
 WHERE root = :root AND phase = 'waiting'
 ORDER BY key;

-- name: event_asked
-- reads: many
-- What runs (a JSON array of keys) have asked and were answered, and what says in which step they are and since when
-- they wait.
SELECT e.run AS run, e.seq AS seq, e.at AS at, e.type AS type, e.data AS data, e.blob AS blob, e.link AS link
  FROM event AS e
 WHERE e.run IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
   AND e.type IN ('step.started', 'question.asked', 'question.answered', 'approval.requested', 'run.waiting')
 ORDER BY e.run, e.seq;

-- name: event_add
-- locks: -
INSERT INTO event (run, seq, at, type, data, blob, link) VALUES (:run, :seq, :at, :type, :data, :blob, :link);

-- name: event_read
SELECT e.seq AS seq, e.at AS at, e.type AS type, e.data AS data, e.blob AS blob, e.link AS link,
       r.last_seq AS last_seq,
       CASE WHEN e.seq = 1 THEN (SELECT pinned.data FROM run_pin AS pinned WHERE pinned.key = r.pin) END AS pin
  FROM run AS r JOIN event AS e ON e.run = r.key
 WHERE r.id = :id AND e.seq > :after
 ORDER BY e.seq LIMIT :count;

-- name: conversation_read
-- The journals of the turns of one conversation, from one of them on up to another, which is not among them. Later turns
-- have larger keys.
SELECT r.id AS id, e.seq AS seq, e.at AS at, e.type AS type, e.data AS data, e.blob AS blob, e.link AS link,
       r.last_seq AS last_seq,
       CASE WHEN e.seq = 1 THEN (SELECT pinned.data FROM run_pin AS pinned WHERE pinned.key = r.pin) END AS pin
  FROM run AS head
  JOIN run AS r ON r.conversation = head.conversation AND r.key < head.key
   AND r.key >= COALESCE((SELECT base.key FROM run AS base WHERE base.id = :first), 0)
  JOIN event AS e ON e.run = r.key
 WHERE head.id = :id
 ORDER BY r.key, e.seq;

-- name: signal_add
-- locks: -
-- In the order of arrival, by the row of the run, which is locked: clocks of senders say nothing about that.
INSERT INTO signal (id, run_id, at, type, data, arrival)
VALUES (:id, :run_id, :at, :type, :data,
        (SELECT COALESCE(MAX(before.arrival), 0) + 1 FROM signal AS before WHERE before.run_id = :run_id))
ON CONFLICT (run_id, id) DO NOTHING;

-- name: signal_list
SELECT s.id AS id, s.run_id AS run_id, s.at AS at, s.type AS type, s.data AS data
  FROM json_each(:run_ids) AS wanted JOIN signal AS s ON s.run_id = wanted.value
 ORDER BY s.arrival, s.at, s.id;

-- name: signal_any
SELECT id FROM signal WHERE run_id = :run_id LIMIT 1;

-- name: signal_remove
-- locks: -
DELETE FROM signal WHERE run_id = :run_id AND id = :id;

-- name: blob_put
-- locks: content digest
INSERT INTO blob (digest, data, created_at) VALUES (:digest, :data, :at) ON CONFLICT (digest) DO NOTHING;

-- name: blob_put_anew
-- Content that is used again is young again.
INSERT INTO blob (digest, data, created_at) VALUES (:digest, :data, :at)
ON CONFLICT (digest) DO UPDATE SET created_at = excluded.created_at;

-- name: blob_use
-- locks: -
-- apart: digest run
-- Nothing when there is no such content; what there is cannot be purged before the use is committed.
INSERT INTO blob_use (digest, run)
SELECT b.digest, CAST(:run AS BIGINT) FROM blob AS b WHERE b.digest = :digest /*for_key_share*/
ON CONFLICT (digest, run) DO NOTHING;

-- name: blob_hold
-- locks: -
-- As above, for content that a task is pinned to: its row says so.
SELECT digest FROM blob WHERE digest = :digest /*for_key_share*/;

-- name: blob_get
SELECT data FROM blob WHERE digest = :digest;

-- name: blob_of_run
-- Only what the run refers to, or another turn of its conversation: whoever knows a digest may not read what others keep.
SELECT b.data FROM blob AS b
 WHERE b.digest = :digest
   AND (EXISTS (SELECT 1 FROM blob_use AS u JOIN run AS r ON r.key = u.run
                 WHERE u.digest = b.digest
                   AND (r.id = :id OR r.conversation = (SELECT asked.conversation FROM run AS asked WHERE asked.id = :id)))
        OR EXISTS (SELECT 1 FROM run_pin AS pinned JOIN run AS r ON r.pin = pinned.key
                    WHERE pinned.spec = b.digest
                      AND (r.id = :id OR r.conversation = (SELECT asked.conversation FROM run AS asked WHERE asked.id = :id))));

-- name: purge_find
-- reads: many
-- Runs that ended before a time, behind :since and :after. A turn of a session stays as long as that, however many: such
-- ones are told as well, so that a look ends after :count of them.
SELECT key, id, updated_at,
       CASE WHEN EXISTS (SELECT 1 FROM session_turn AS t WHERE t.run_id = run.id) THEN 1 ELSE 0 END AS kept
  FROM run
-- only: sqlite
       INDEXED BY run_by_end
-- only: both
 WHERE phase IN ('succeeded', 'failed', 'cancelled') AND updated_at < :before
   AND updated_at >= :since AND (updated_at > :since OR key > :after)
 ORDER BY updated_at, key LIMIT :count;

-- name: purge_tasks
-- The tasks of runs (a JSON array of ids): one that is requeued meanwhile keeps its runs.
SELECT key FROM task
 WHERE key IN (SELECT m.task FROM task_run AS m WHERE m.run_id IN (SELECT value FROM json_each(:run_ids) AS wanted))
 ORDER BY key /*for_update*/;

-- name: purge_ready
-- Of runs that are locked by now. A run of a task stays as long as its task lives: somebody may want to see how it came
-- so far. So does a turn as long as its session, and as a later turn of its conversation. COALESCE keeps SQLite from walking
-- through all runs that have ended.
SELECT key, id FROM run
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
   AND COALESCE(phase, '') IN ('succeeded', 'failed', 'cancelled') AND updated_at < :before
   AND NOT EXISTS (SELECT 1 FROM task_run AS m JOIN task AS t ON t.key = m.task
                    WHERE m.run_id = run.id AND t.ended_at IS NULL)
   AND NOT EXISTS (SELECT 1 FROM run AS later WHERE later.conversation = run.conversation
                      AND (later.updated_at >= :before OR later.phase NOT IN ('succeeded', 'failed', 'cancelled')))
   AND NOT EXISTS (SELECT 1 FROM session_turn AS t WHERE t.run_id = run.id)
 ORDER BY key;

-- name: conversation_ends
-- The first turn of the conversation that a run is part of, or would begin, and the run itself.
SELECT first.key AS first_key, first.id AS first_id, run.key AS key
  FROM run JOIN run AS first ON first.id = COALESCE(run.conversation, run.id)
 WHERE run.id = :id AND run.namespace = :namespace;

-- name: conversation_join
-- locks: -
-- A run that another one goes on with is the first turn of a conversation, if it is not part of one.
UPDATE run SET conversation = id WHERE key = :key AND conversation IS NULL;

-- name: conversation_follows
-- Whether a turn goes on with this run: then it cannot be forgotten alone.
SELECT later.id AS id FROM run JOIN run AS later ON later.conversation = run.conversation AND later.key > run.key
 WHERE run.id = :id LIMIT 1;

-- name: conversation_last
-- The last turn of a conversation that another run has started; a person may go on with it elsewhere.
SELECT id FROM run WHERE conversation = :id AND parent IS NOT NULL ORDER BY key DESC LIMIT 1;

-- name: run_delegated
-- How many runs others have started below one root.
SELECT COUNT(*) AS runs FROM run WHERE root = :root AND parent IS NOT NULL;

-- name: forget_find
SELECT key, id, phase,
       CASE WHEN EXISTS (SELECT 1 FROM task_run AS m JOIN task AS t ON t.key = m.task
                          WHERE m.run_id = run.id AND t.ended_at IS NULL) THEN 1 ELSE 0 END AS held
  FROM run WHERE id = :id;

-- name: purge_events
DELETE FROM event WHERE run IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: purge_signals
-- locks: -
DELETE FROM signal WHERE run_id IN (SELECT value FROM json_each(:ids) AS wanted);

-- name: signals_left
-- locks: -
-- Signals that came too late for a run that ends.
DELETE FROM signal WHERE run_id = :id RETURNING id, type;

-- name: purge_uses
DELETE FROM blob_use WHERE run IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: purge_runs
DELETE FROM run WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted);

-- name: purge_pins
-- reads: many
-- The next pins. Those that runs have are told as well, so that a look ends after :count of them. With EXISTS instead
-- PostgreSQL would hash the pins of all runs.
SELECT key, COALESCE((SELECT 1 FROM run WHERE run.pin = run_pin.key LIMIT 1), 0) AS used
  FROM run_pin WHERE key > :after ORDER BY key LIMIT :count;

-- name: purge_pins_hold
-- Whoever begins a run that is pinned to one right now has it locked.
SELECT key FROM run_pin
 WHERE key IN (SELECT CAST(wanted.value AS BIGINT) FROM json_each(:keys) AS wanted)
   AND NOT EXISTS (SELECT 1 FROM run WHERE run.pin = run_pin.key)
 ORDER BY key /*skip_locked*/;

-- name: purge_pin
-- Looks again: a run may have been committed between the look and the lock.
DELETE FROM run_pin WHERE key = :key AND NOT EXISTS (SELECT 1 FROM run WHERE run.pin = run_pin.key);

-- name: purge_blobs
-- reads: many
-- Content without an owner, by an index that holds all that is asked.
SELECT digest, created_at FROM blob
 WHERE created_at < :before AND (created_at > :since OR (created_at = :since AND digest > :after)) AND NOT EXISTS (SELECT 1 FROM blob_use WHERE blob_use.digest = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM run_pin WHERE run_pin.spec = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM task WHERE task.plan = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM asset WHERE asset.digest = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM folder_content WHERE folder_content.digest = blob.digest)
 ORDER BY created_at, digest LIMIT :count;

-- name: purge_hold
-- Whoever refers to content right now has it locked, or waits and stores it again.
SELECT digest FROM blob WHERE digest IN (SELECT value FROM json_each(:digests) AS wanted)
 ORDER BY digest /*skip_locked*/;

-- name: purge_held
-- Looks again: an owner may have been committed between the look and the lock, or it was stored again.
DELETE FROM blob
 WHERE digest IN (SELECT value FROM json_each(:digests) AS wanted) AND created_at < :before AND NOT EXISTS (SELECT 1 FROM blob_use WHERE blob_use.digest = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM run_pin WHERE run_pin.spec = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM task WHERE task.plan = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM asset WHERE asset.digest = blob.digest)
   AND NOT EXISTS (SELECT 1 FROM folder_content WHERE folder_content.digest = blob.digest);
