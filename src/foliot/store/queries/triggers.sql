-- Slots of schedules and deliveries to webhooks. See migrations/0001_schema.sql for the columns.

-- name: schedule_state_get
SELECT timing, since FROM schedule_state WHERE schedule = :schedule;

-- name: schedule_state_lock
SELECT timing, since FROM schedule_state WHERE schedule = :schedule /*for_update*/;

-- name: schedule_state_add
INSERT INTO schedule_state (schedule, timing, since) VALUES (:schedule, :timing, :since)
ON CONFLICT (schedule) DO NOTHING;

-- name: schedule_state_set
UPDATE schedule_state SET timing = :timing, since = :since WHERE schedule = :schedule;

-- name: slot_last
-- The newest slot that was decided and is not in the future: a clock that went wrong may have decided some that are.
SELECT MAX(slot) AS slot FROM schedule_slot WHERE schedule = :schedule AND kind = 'clock' AND slot <= :upto;

-- name: slot_add
INSERT INTO schedule_slot (schedule, slot, kind, state, reason, task, command, claimed_at, decided_at)
VALUES (:schedule, :slot, :kind, :state, :reason, '', :command, :claimed_at, :decided_at)
ON CONFLICT (schedule, slot) DO NOTHING;

-- name: slot_settle
UPDATE schedule_slot SET state = :state, reason = :reason, task = :task, decided_at = :decided_at, command = ''
 WHERE schedule = :schedule AND slot = :slot AND state = 'due';

-- name: slot_claimed
SELECT slot, kind, command, claimed_at FROM schedule_slot
 WHERE schedule = :schedule AND state = 'due' ORDER BY slot LIMIT 100;

-- name: slot_schedules
-- The schedules with a slot that is not settled.
SELECT DISTINCT schedule FROM schedule_slot WHERE state = 'due';

-- name: slot_get
SELECT slot, kind, state, reason, task, claimed_at, decided_at FROM schedule_slot
 WHERE schedule = :schedule AND slot = :slot;

-- name: slot_list
SELECT slot, kind, state, reason, task, claimed_at, decided_at FROM schedule_slot
 WHERE schedule = :schedule AND slot < :before ORDER BY slot DESC LIMIT :count;

-- name: slot_surplus
-- The newest slot of those behind the :keep newest ones.
SELECT slot FROM schedule_slot WHERE schedule = :schedule ORDER BY slot DESC LIMIT 1 OFFSET :keep;

-- name: slot_forget
DELETE FROM schedule_slot WHERE schedule = :schedule AND slot <= :upto AND state <> 'due';

-- name: schedule_states
SELECT schedule FROM schedule_state;

-- name: schedule_forget_slots
DELETE FROM schedule_slot WHERE schedule = :schedule;

-- name: schedule_forget
DELETE FROM schedule_state WHERE schedule = :schedule;

-- name: endpoint_get
SELECT webhook, namespace, name, expires_at FROM webhook_endpoint WHERE endpoint = :endpoint;

-- name: endpoint_of
SELECT endpoint FROM webhook_endpoint
 WHERE webhook = :webhook AND expires_at IS NULL ORDER BY created_at DESC, endpoint LIMIT 1;

-- name: endpoint_add
INSERT INTO webhook_endpoint (endpoint, webhook, namespace, name, created_at, expires_at)
VALUES (:endpoint, :webhook, :namespace, :name, :created_at, NULL);

-- name: endpoint_retire
UPDATE webhook_endpoint SET expires_at = :expires_at WHERE webhook = :webhook AND expires_at IS NULL;

-- name: endpoint_forget_old
DELETE FROM webhook_endpoint WHERE expires_at <= :now;

-- name: endpoint_webhooks
SELECT DISTINCT webhook FROM webhook_endpoint;

-- name: webhook_state_add
INSERT INTO webhook_state
       (webhook, accepted, duplicate, rejected, filtered, last_at, last_event, last_task, last_error)
VALUES (:webhook, 0, 0, 0, 0, 0, '', '', '')
ON CONFLICT (webhook) DO NOTHING;

-- name: webhook_state_lock
SELECT webhook FROM webhook_state WHERE webhook = :webhook /*for_update*/;

-- name: webhook_state_get
SELECT accepted, duplicate, rejected, filtered, last_at, last_event, last_task, last_error
  FROM webhook_state WHERE webhook = :webhook;

-- name: webhook_states_since
SELECT webhook FROM webhook_state WHERE last_at >= :since;

-- name: webhook_count
UPDATE webhook_state
   SET accepted = accepted + :accepted, duplicate = duplicate + :duplicate, rejected = rejected + :rejected,
       filtered = filtered + :filtered, last_at = :at,
       last_event = CASE WHEN CAST(:event AS TEXT) = '' THEN last_event ELSE CAST(:event AS TEXT) END,
       last_task = CASE WHEN CAST(:task AS TEXT) = '' THEN last_task ELSE CAST(:task AS TEXT) END,
       last_error = :error
 WHERE webhook = :webhook;

-- name: event_get
SELECT taken_at, expires_at, task FROM webhook_event WHERE webhook = :webhook AND event = :event;

-- name: event_put
INSERT INTO webhook_event (webhook, event, taken_at, expires_at, task)
VALUES (:webhook, :event, :taken_at, :expires_at, '')
ON CONFLICT (webhook, event) DO UPDATE
   SET taken_at = excluded.taken_at, expires_at = excluded.expires_at, task = '';

-- name: event_settle
UPDATE webhook_event SET task = :task WHERE webhook = :webhook AND event = :event AND taken_at = :taken_at;

-- name: event_drop
DELETE FROM webhook_event WHERE webhook = :webhook AND event = :event AND taken_at = :taken_at AND task = '';

-- name: event_forget_old
DELETE FROM webhook_event
 WHERE expires_at <= (
       SELECT MAX(page.expires_at)
         FROM (SELECT older.expires_at AS expires_at FROM webhook_event AS older WHERE older.expires_at <= :now
                ORDER BY older.expires_at LIMIT :count) AS page);

-- name: delivery_add
INSERT INTO webhook_delivery
       (id, webhook, at, outcome, reason, detail, status, event, task, size, digest, headers, body)
VALUES (:id, :webhook, :at, :outcome, :reason, :detail, :status, :event, :task, :size, :digest, :headers, :body);

-- name: delivery_list
SELECT key, id, at, outcome, reason, detail, status, event, task, size, digest, headers
  FROM webhook_delivery WHERE webhook = :webhook AND -key > -CAST(:before AS BIGINT) ORDER BY -key LIMIT :count;

-- name: delivery_get
SELECT key, id, at, outcome, reason, detail, status, event, task, size, digest, headers, body
  FROM webhook_delivery WHERE webhook = :webhook AND id = :id;

-- name: delivery_surplus
SELECT key FROM webhook_delivery WHERE webhook = :webhook ORDER BY -key LIMIT 1 OFFSET :keep;

-- name: delivery_forget
DELETE FROM webhook_delivery WHERE webhook = :webhook AND -key >= -CAST(:upto AS BIGINT);

-- name: webhook_forget_endpoints
DELETE FROM webhook_endpoint WHERE webhook = :webhook;

-- name: webhook_forget_state
DELETE FROM webhook_state WHERE webhook = :webhook;

-- name: webhook_forget_events
DELETE FROM webhook_event WHERE webhook = :webhook;

-- name: webhook_forget_deliveries
DELETE FROM webhook_delivery WHERE webhook = :webhook;
