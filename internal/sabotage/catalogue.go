package sabotage

import (
	"slices"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// All returns every sabotage: of the inbox, of stored offsets, of Kafka transactions,
// of faults, of the auditor, and of what lies past the edge of a transaction.
func All() []Sabotage { return slices.Concat(catalogue, edge) }

var catalogue = []Sabotage{
	{
		Name:  "ack_before_commit",
		Wrong: "the offsets are committed before the work is",
		File:  "internal/pginbox/member.go",
		Old: `
	if err := m.process(ctx, events); err != nil || m.isRejoining() {
		return err
	}
	_, err := m.acknowledge(ctx, m.client, events)
	return err
`,
		New: `
	if _, err := m.acknowledge(ctx, m.client, events); err != nil {
		return err
	}
	return m.process(ctx, events)
`,
		Lane:  "inbox",
		Fault: lane.Kill9,
		Red:   breaks(lane.Postgres, lane.Lost),
	},
	{
		Name:  "answered_before_commit",
		Wrong: "the sender of a webhook gets its 2xx when the event has arrived, and not when its work is committed",
		File:  "internal/webhook/batch.go",
		Old: `
	r.enter(d)
	select {
`,
		New: `
	d.request = context.Background()
	r.enter(d)
	return nil
	select {
`,
		Lane:  "inbox behind a webhook",
		Fault: lane.Kill9,
		Red:   breaks(lane.Postgres, lane.Lost),
	},
	{
		Name:  "row_committed_before_work",
		Wrong: "the inbox row has a transaction of its own, which is committed before the work begins",
		File:  "internal/pginbox/delivery.go",
		Old: `
	if err := d.pass(ctx, Inserted, d.pending); err != nil {
`,
		New: `
	if _, err := tx.Exec(ctx, "COMMIT; BEGIN"); err != nil {
		return statementError("commit event ids", err)
	}
	if err := d.pass(ctx, Inserted, d.pending); err != nil {
`,
		Lane:  "inbox",
		Fault: lane.Kill9,
		Red:   breaks(lane.Postgres, lane.Lost),
	},
	{
		Name:  "conflict_ignored",
		Wrong: "ON CONFLICT DO NOTHING, and then nobody looks which rows were inserted",
		File:  "internal/pginbox/insert.go",
		Old:   `d.keep(keys)`,
		New:   `_ = keys`,
		Lane:  "inbox",
		Fault: lane.OffsetsRewound,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},
	{
		Name:  "place_taken_for_identity",
		Wrong: "an event is known by the place of its record instead of its id",
		File:  "internal/pginbox/consumer.go",
		Old:   `Event{ID: m.options.Identify(r), Record: r}`,
		New:   `Event{ID: fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset), Record: r}`,
		Lane:  "inbox",
		Fault: lane.PublisherDuplicates,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},
	{
		Name:  "work_outside_the_inbox",
		Wrong: "the handler has a connection of its own, and commits apart from the inbox row",
		File:  "internal/cli/eos.go",
		Old:   `return do(ctx, tx, p.attempt, effects)`,
		New: `conn, err := pgx.Connect(ctx, tx.Conn().Config().ConnString())
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return do(ctx, conn, p.attempt, effects)`,
		Lane:  "eos + inbox",
		Fault: lane.CommitCut,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},
	{
		Name:  "dead_letters_dropped",
		Wrong: "what no handler can take is skipped and kept nowhere",
		File:  "internal/pginbox/isolate.go",
		Old:   `err := d.bury(ctx, tx, it, v); err != nil`,
		New:   `err := ctx.Err(); v.attempts < 0`,
		Lane:  "inbox",
		Fault: lane.Poison,
		Red:   fails("1 records that no handler can take were sent, and 0 are kept as dead letters"),
	},

	{
		Name:  "flush_not_awaited",
		Wrong: "asynchronous commits are acknowledged without waiting until they are on disk",
		File:  "internal/pginbox/flush.go",
		Old:   `		if flushed {`,
		New:   `		if flushed || true {`,
		Lane:  "inbox, async commit, gated",
		Fault: lane.PostgresKilled,
		Red:   breaks(lane.Postgres, lane.Lost),
	},
	{
		Name:  "witness_reopened",
		Wrong: "when the session that follows the write-ahead log is lost, another one goes on in its place",
		File:  "internal/pginbox/tail.go",
		Old: `
			return fmt.Errorf("%w: %w", errInDoubt, err)
`,
		New: `
			for {
				w, err := openWitness(t.ctx, c.options.AcknowledgeAfterFlush)
				if err == nil {
					t.witness = w
					break
				}
				if t.ctx.Err() != nil {
					return err
				}
			}
`,
		Lane:  "inbox, async commit, gated",
		Fault: lane.PostgresKilled,
		Red:   breaks(lane.Postgres, lane.Lost),
	},
	{
		Name:  "offsets_unfenced",
		Wrong: "whoever has done a batch stores its offset, the owner of the partition or not",
		File:  "internal/pginbox/offsets.go",
		Old: `AND stored.partition = move.partition
	AND stored.fence = move.fence AND stored.next_offset = move.known`,
		New:   `AND stored.partition = move.partition`,
		Lane:  "offsets-in-postgres",
		Fault: lane.Zombie,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},
	{
		Name:  "offsets_not_compared",
		Wrong: "the owner stores its offset without looking whether it is where it thinks",
		File:  "internal/pginbox/offsets.go",
		Old: `
	AND stored.fence = move.fence AND stored.next_offset = move.known`,
		New: `
	AND stored.fence = move.fence`,
		Lane:  "offsets-in-postgres",
		Fault: lane.CommitCut,
		Red:   breaks(lane.Postgres, lane.Duplicated),
	},

	{
		Name:  "offsets_beside_the_transaction",
		Wrong: "the offsets are committed before the transaction is, and not in it",
		File:  "internal/kafkatx/transaction.go",
		Old:   `if _, _, err := tx.sendOffsets(ctx)`,
		New:   `if err := s.commitOffsets(ctx, tx.next)`,
		Lane:  "kafka eos",
		Fault: lane.Kill9,
		Red:   breaks(lane.Kafka, lane.Lost),
	},
	{
		Name:  "offsets_after_the_transaction",
		Wrong: "TxnOffsetCommit is left out, and the offsets are committed when the transaction is",
		File:  "internal/kafkatx/transaction.go",
		Old: `
		if _, _, err := tx.sendOffsets(ctx); err != nil {
			return err
		}
		if err := s.pass(ctx, OffsetsSent, tx.input); err != nil {
			return err
		}
	}
	if err := tx.end(ctx); err != nil {
		return err
	}
`,
		New: `
		if err := tx.end(ctx); err != nil {
			return err
		}
		if err := s.pass(ctx, OffsetsSent, tx.input); err != nil {
			return err
		}
		if err := s.commitOffsets(ctx, tx.next); err != nil {
			return err
		}
	}
`,
		Lane:  "kafka eos",
		Fault: lane.Kill9,
		Red:   breaks(lane.Kafka, lane.Duplicated),
	},
	{
		Name:  "generation_not_sent",
		Wrong: "offsets go into the transaction without the member and the generation that send them (KIP-447)",
		File:  "internal/kafkatx/transaction.go",
		Old: `
	req.MemberID, req.Generation = s.consumer.GroupMetadata()
	req.InstanceID = &s.config.Instance
`,
		New: `
	req.MemberID, req.Generation = "", -1
`,
		Lane:  "kafka eos",
		Fault: lane.Zombie,
		Red:   breaks(lane.Kafka, lane.Duplicated),
	},
	{
		Name:  "random_transactional_id",
		Wrong: "every incarnation has a transactional id of its own, so none ends what the one before left open",
		File:  "internal/kafkatx/config.go",
		Old: `
	return fmt.Sprintf("%s-%s-%d", group, instance, i)
}
`,
		New: `
	return fmt.Sprintf("%s-%s-%d-%d", group, instance, started, i)
}

var started = time.Now().UnixNano()
`,
		Lane:  "kafka eos",
		Fault: lane.ForeignTransactionalID,
		Red:   showsNothing(lane.KafkaUncommitted),
	},
	recordsNotInOrder,
	{
		Name:  "producer_not_idempotent",
		Wrong: "the idempotent producer isn't",
		File:  "internal/kafkatx/clients.go",
		Old:   `	case AtLeastOnce:`,
		New:   `	case AtLeastOnce, IdempotentProducer:`,
		Lane:  "kafka idempotent producer",
		Fault: lane.ProduceCut,
		Red:   breaks(lane.Kafka, lane.Duplicated),
	},

	{
		Name:  "cut_does_not_cut",
		Wrong: "the proxy lets COMMIT pass that it is to cut",
		File:  "internal/fault/cuts.go",
		Old:   `strike.Cut()`,
		New:   `_ = strike`,
		Lane:  "at-least-once",
		Fault: lane.CommitCut,
		Red:   showsNothing(lane.Postgres),
	},
	{
		Name:  "kill_is_an_exit",
		Wrong: "what is to be SIGKILL is an orderly end",
		File:  "internal/failpoint/failpoint.go",
		Old:   `syscall.Kill(os.Getpid(), syscall.SIGKILL)`,
		New:   `func() error { os.Exit(0); return nil }()`,
		Lane:  "at-least-once",
		Fault: lane.Kill9,
		Red:   fails("was to die of SIGKILL"),
	},
	{
		Name:  "zombie_wakes_early",
		Wrong: "the zombie goes on before anybody has taken its partitions over",
		File:  "internal/fault/zombie.go",
		Old: `
	if _, err := s.Enter(stage.Entry{Instance: 1, SessionTimeout: stage.Impatient}); err != nil {
`,
		New: `
	if err := z.Continue(); err != nil {
		return err
	}
	if _, err := s.Enter(stage.Entry{Instance: 1, SessionTimeout: stage.Impatient}); err != nil {
`,
		Lane:  "at-least-once",
		Fault: lane.Zombie,
		Red:   showsNothing(lane.Postgres),
	},
	{
		Name:  "nothing_is_sent_again",
		Wrong: "the publisher that is to send events twice sends them once",
		File:  "internal/fault/duplicates.go",
		Old:   `s.Send(ctx, sent...)`,
		New:   `s.Send(ctx)`,
		Lane:  "at-least-once",
		Fault: lane.PublisherDuplicates,
		Red:   showsNothing(lane.Postgres),
	},

	{
		Name:  "auditor_reads_uncommitted",
		Wrong: "the auditor takes what was aborted for what a read_committed reader sees",
		File:  "internal/audit/topic.go",
		Old: `
	err = read(ctx, topic, ends, kgo.ReadCommitted(), opts, func(r *kgo.Record) {
		if !r.Attrs.IsControl() {
			committed[`,
		New: `
	err = read(ctx, topic, ends, kgo.ReadUncommitted(), opts, func(r *kgo.Record) {
		if !r.Attrs.IsControl() {
			committed[`,
		Lane:  "kafka eos",
		Fault: lane.Kill9,
		Red:   breaks(lane.Kafka, lane.Duplicated),
	},
	{
		Name:  "auditor_counts_duplicates_once",
		Wrong: "the auditor asks only whether an effect is there",
		File:  "internal/audit/audit.go",
		Old:   `return lane.Duplicated`,
		New:   `return lane.Once`,
		Lane:  "at-least-once",
		Fault: lane.Kill9,
		Red:   showsNothing(lane.Postgres),
	},
	{
		Name:  "auditor_overlooks_losses",
		Wrong: "the auditor looks only at events that have an effect",
		File:  "internal/audit/tables.go",
		Old: `
			return lane.Lost
`,
		New: `
			return lane.Once
`,
		Lane:  "at-most-once",
		Fault: lane.Kill9,
		Red:   showsNothing(lane.Postgres),
	},
}
