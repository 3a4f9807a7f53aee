package sabotage

import "github.com/delivered-twice/delivered-twice/internal/lane"

// edge has the sabotages of what lies past the edge of a transaction: the third party
// and whoever calls it, the outbox, the webhook, and the commit over two systems.
var edge = []Sabotage{
	{
		Name:  "charge_committed_before_its_answer",
		Wrong: "the third party commits the charge first, and then the key with its answer in a transaction of its own",
		File:  "internal/payments/server.go",
		Old: `
	if err := s.keep(ctx, tx, c, given); err != nil {
`,
		New: `
	if _, err := tx.Exec(ctx, "COMMIT; BEGIN"); err != nil {
		return answer{}, err
	}
	if err := s.keep(ctx, tx, c, given); err != nil {
`,
		Lane:  "inbox + http + key",
		Fault: lane.APIKilled,
		Red:   breaks(lane.HTTP, lane.Duplicated),
	},
	{
		Name:  "key_not_locked",
		Wrong: "the third party does not lock a key: who repeats a request that is in flight hangs on its row",
		File:  "internal/payments/idempotency.go",
		Old:   `SELECT pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(current_schema(), $1::text, $2::text)::text, 0))`,
		New:   `SELECT $1::text IS NOT NULL AND $2::text IS NOT NULL`,
		Test:  "TestARetryInFlight",
	},
	{
		Name:  "key_of_the_attempt",
		Wrong: "a call that the next incarnation repeats gets a key of its own",
		File:  "internal/payments/client_charge.go",
		Old: `
		r, err := c.send(ctx, http.MethodPost, "/v1/charges", p.IdempotencyKey, body)
`,
		New: `
		r, err := c.send(ctx, http.MethodPost, "/v1/charges", p.IdempotencyKey+"/"+p.Metadata["attempt"], body)
`,
		Lane:  "inbox + http + key",
		Fault: lane.Kill9,
		Red:   breaks(lane.HTTP, lane.Duplicated),
	},

	{
		Name:  "stamped_before_published",
		Wrong: "the relay commits the stamps of its rows, and then publishes them",
		File:  "internal/outbox/wave.go",
		Old: `
	if err := o.Hook.pass(ctx, Claimed, rows); err != nil {
`,
		New: `
	if err := w.stamp(ctx, tx, rows, nil); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, "COMMIT; BEGIN"); err != nil {
		return false, err
	}
	if err := o.Hook.pass(ctx, Claimed, rows); err != nil {
`,
		Lane:  "inbox + outbox",
		Fault: lane.Kill9,
		Red:   breaks(lane.Kafka, lane.Lost),
	},
	{
		Name:  "headers_not_published",
		Wrong: "the relay publishes key and value and leaves the headers out, the event's id among them",
		File:  "internal/outbox/wave.go",
		Old:   `r.Record.Headers = append(r.Record.Headers, kgo.RecordHeader{Key: string(name), Value: values[i]})`,
		New:   `_, _ = name, values[i]`,
		Lane:  "inbox + outbox",
		Fault: lane.Kill9,
		Red:   breaks(lane.Kafka, lane.Lost),
	},
	{
		Name:  "shards_not_locked",
		Wrong: "relays do not lock what they publish",
		File:  "internal/outbox/wave.go",
		Old: `
LIMIT $3
FOR UPDATE SKIP LOCKED`,
		New: `
LIMIT $3`,
		Lane:  "inbox + outbox",
		Fault: lane.RollingRestart,
		Red:   breaks(lane.Kafka, lane.Duplicated),
	},
	{
		Name:  "rows_locked_and_not_shards",
		Wrong: "relays lock the rows that they publish, and others pass over those to later ones of the same key",
		File:  "internal/outbox/wave.go",
		Old: `
FOR UPDATE SKIP LOCKED` + "`" + `

// pending reads the first rows of each shard in the order of their ids: so many rows
// and bytes of each, and one row at least. Each shard has its share, so that none waits
// for another that is always full.
//
// Pending is what has no stamp, and not what comes after the last row that was seen:
// ids are drawn when rows are inserted, and a lower one may be committed later.
const pending = ` + "`" + `
SELECT shard, id, event_id, topic, record_key, record_value, header_names, header_values, record_time
FROM (
	SELECT p.shard, p.id, row_number() OVER share AS n, sum(p.bytes) OVER share AS bytes
	FROM unnest($1::smallint[]) AS s (shard)
	CROSS JOIN LATERAL (
		SELECT shard, id, coalesce(octet_length(record_value), 0) AS bytes
		FROM outbox
		WHERE shard = s.shard AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[])
		ORDER BY id
		LIMIT $3
`,
		New: "`" + `

const pending = ` + "`" + `
SELECT shard, id, event_id, topic, record_key, record_value, header_names, header_values, record_time
FROM (
	SELECT p.shard, p.id, row_number() OVER share AS n, sum(p.bytes) OVER share AS bytes
	FROM unnest($1::smallint[]) AS s (shard)
	CROSS JOIN LATERAL (
		SELECT shard, id, coalesce(octet_length(record_value), 0) AS bytes
		FROM outbox
		WHERE shard = s.shard AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[])
		ORDER BY id
		LIMIT $3
		FOR UPDATE SKIP LOCKED
`,
		Lane:  "inbox + outbox",
		Fault: lane.Zombie,
		Red:   breaks(lane.Order, lane.Reordered),
	},
	{
		Name:  "highest_id_for_a_cursor",
		Wrong: "the relay goes on behind the highest id that it has published, and not with whatever has no stamp",
		File:  "internal/outbox/wave.go",
		Old: `
		WHERE shard = s.shard AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[])
		ORDER BY id
`,
		New: `
		WHERE shard = s.shard AND id > (SELECT coalesce(max(id), 0) FROM outbox WHERE published_at IS NOT NULL)
			AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[])
		ORDER BY id
`,
		Test: "TestLowerIDCommitsLater/another",
	},

	{
		Name:  "duplicates_answered_with_a_failure",
		Wrong: "the sender of a webhook that has come before gets a failure, and never hears that it is done",
		File:  "internal/pginbox/insert.go",
		Old: `
	d.keep(keys)
`,
		New: `
	if len(keys) < len(d.pending) {
		return errors.New("it is there already")
	}
`,
		Lane:  "inbox behind a webhook",
		Fault: lane.SenderRetries,
		Red:   fails("webhooks are not answered with 2xx"),
	},
	{
		Name:  "signature_of_a_copy",
		Wrong: "the signature is checked against a body that was decoded and encoded again",
		File:  "internal/webhook/scheme.go",
		Old:   `		err = v.stripe(header, body, at)`,
		New: `		var fields map[string]any
		_ = json.Unmarshal(body, &fields)
		copied, _ := json.Marshal(fields)
		err = v.stripe(header, copied, at)`,
		Lane:  "inbox behind a webhook",
		Fault: lane.SenderRetries,
		Red:   fails("refused: "),
	},
	{
		Name:  "hash_of_a_copy",
		Wrong: "an event without an id is known by the hash of a body that was decoded and encoded again",
		File:  "internal/webhook/scheme.go",
		Old: `
	sum := sha256.Sum256(body)
`,
		New: `
	var fields any
	_ = json.Unmarshal(body, &fields)
	copied, _ := json.Marshal(fields)
	sum := sha256.Sum256(copied)
`,
		Test: "TestReserializedCopy",
	},

	{
		Name:  "decided_and_not_recovered",
		Wrong: "whoever comes back does not look for what the one before has decided, and so aborts it",
		File:  "internal/kafkatx/session.go",
		Old:   `s.config.Participant.Recover(ctx); err != nil`,
		New:   `ctx.Err(); err != nil`,
		Lane:  "two-phase",
		Fault: lane.Kill9,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},
	{
		Name:  "decision_committed_after_the_work",
		Wrong: "the decision to commit in Kafka has a transaction of its own, behind that of the work",
		File:  "internal/twophase/coordinator.go",
		Old: `
	if err := c.decision(p).store(ctx, tx); err != nil {
`,
		New: `
	if _, err := tx.Exec(ctx, "COMMIT; BEGIN"); err != nil {
		return err
	}
	if err := c.decision(p).store(ctx, tx); err != nil {
`,
		Lane:  "two-phase",
		Fault: lane.Kill9,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},
	{
		Name:  "kafka_committed_first",
		Wrong: "EndTxn is sent before Postgres has committed",
		File:  "internal/twophase/coordinator.go",
		Old: `
	if c.options.Hook == nil {
		return nil
	}
`,
		New: `
	if err := c.endTxn(ctx, p.TransactionalID, p.ProducerID, p.ProducerEpoch, true); err != nil {
		return err
	}
`,
		Lane:  "two-phase",
		Fault: lane.Kill9,
		Red:   breaks(lane.Postgres, lane.Lost),
	},
	{
		Name:  "loss_not_told",
		Wrong: "a decision whose Kafka transaction is gone is taken for one that was carried out",
		File:  "internal/twophase/decisions.go",
		Old:   `return d.lose(ctx, one, fmt.Sprintf("%s (EndTxn: %v)", why, err))`,
		New: `_ = why
	return d.forget(ctx, one)`,
		Lane:  "two-phase",
		Fault: lane.ExpiredWhileDown,
		Red:   fails("are not told as lost"),
	},

	{
		Name:  "auditor_counts_events_charged",
		Wrong: "the auditor asks which events are in the ledger of the third party, and not how often",
		File:  "internal/audit/ledger.go",
		Old:   `outcome(charged.found[id])`,
		New:   `outcome(min(charged.found[id], 1))`,
		Lane:  "inbox + http",
		Fault: lane.ResponseDropped,
		Red:   showsNothing(lane.HTTP),
	},
	{
		Name:  "auditor_does_not_wait",
		Wrong: "the auditor reads up to the last stable offset while a transaction is open behind it",
		File:  "internal/audit/topic.go",
		Old: `
			return nil, fmt.Errorf("a transaction is still open in %s/%d: the last stable offset is %d, the high watermark %d",
				topic, partition, at, end.Offset)
`,
		New: `
			end.Offset = at
`,
		Test: "TestTopicWaitsForAnOpenTransaction",
	},
}
