package pginbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// ErrStale is wrapped by an error of [Inbox.Process] that says that what this owner
// knows of the stored offsets is no longer true: another owner has claimed a
// partition, or the database has lost commits in a crash. Nothing of the batch may be
// acknowledged, and what comes next must come from where [Inbox.Resume] says.
var ErrStale = errors.New("the stored offsets are not as this owner knows them")

// errAhead says that a stored offset was further than known, as after a commit
// whose answer was lost. What is known has been corrected.
var errAhead = errors.New("a stored offset is further than known")

// partition is one of a topic.
type partition struct {
	topic  string
	number int32
}

func (p partition) String() string { return fmt.Sprintf("topic %s, partition %d", p.topic, p.number) }

func comparePartitions(a, b partition) int {
	return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.number, b.number))
}

// place is a partition as one handler goes through it.
type place struct {
	handler string
	partition
}

// claim is what the owner of a place knows of it.
type claim struct {
	next  int64 // the offset of the first record that is not done
	fence int64
}

// claims are what one call of Resume has claimed, kept up to date.
type claims struct {
	mu   sync.Mutex
	held map[place]claim
}

func (c *claims) of(p place) (claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.held[p]
	if !ok {
		return claim{}, fmt.Errorf("%s is not claimed: call Resume first, and again after an error: %w", p.partition, ErrStale)
	}
	return known, nil
}

// learn takes in that a place has got further.
func (c *claims) learn(p place, known claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.held[p]; ok {
		c.held[p] = known
	}
}

// drop forgets the partitions. What comes after a batch that was not done must not
// be done before it.
func (c *claims) drop(partitions func(partition) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.held {
		if partitions(p.partition) {
			delete(c.held, p)
		}
	}
}

func (c *claims) snapshot() map[place]claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make(map[place]claim, len(c.held))
	for p, known := range c.held {
		held[p] = known
	}
	return held
}

// claimPartitions takes its rows in one order, as everybody does who takes several.
const claimPartitions = `
INSERT INTO stored_offsets (handler, topic, partition, next_offset)
SELECT handler, topic, partition, 0
FROM unnest($1::text[]) AS handler, unnest($2::text[], $3::int[]) AS assigned (topic, partition)
ORDER BY handler COLLATE "C", topic COLLATE "C", partition
ON CONFLICT (handler, topic, partition) DO UPDATE SET fence = DEFAULT
RETURNING handler, topic, partition, next_offset, fence`

// Resume claims partitions for this inbox and returns where to start in each: the
// smallest offset of a record that some handler has not done. Process then skips,
// handler by handler, what that one has done. A partition that is new starts at 0.
//
// From then on every other owner's Process fails on these partitions with [ErrStale]
// and writes nothing. assigned are all partitions that this owner consumes: what it
// had claimed before and is not among them it gives up. Call it whenever partitions
// were assigned and after every error of Process. [ConsumerOptions].Resume does both.
//
// Resume waits for a transaction of the former owner that is still open. A process
// that stands still inside one keeps its locks: idle_in_transaction_session_timeout
// (PostgreSQL manual, section 20.11), set for the sessions of the pool and shorter
// than the group's session timeout, lets nobody wait for it for long.
//
// What it returns is durable, also where commits are asynchronous. Outages are waited
// out until ctx ends.
func (in *Inbox) Resume(ctx context.Context, assigned map[string][]int32) (map[string]map[int32]int64, error) {
	if !in.options.Remember.offsets() {
		return nil, fmt.Errorf("pginbox: resume: this inbox remembers %s and has no offsets to resume from: set Remember to %q or %q", in.options.Remember, RememberOffsets, RememberBoth)
	}
	var (
		topics  []string
		numbers []int32
		held    map[place]claim
	)
	for topic, partitions := range assigned {
		for _, number := range partitions {
			topics, numbers = append(topics, topic), append(numbers, number)
		}
	}
	err := in.waitOut(ctx, func() (err error) {
		held, err = in.claim(ctx, topics, numbers)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pginbox: resume %d partitions: %w", len(topics), err)
	}
	in.claims.Store(&claims{held: held})

	starts := make(map[string]map[int32]int64, len(assigned))
	for p, known := range held {
		if starts[p.topic] == nil {
			starts[p.topic] = make(map[int32]int64)
		}
		start, ok := starts[p.topic][p.number]
		if !ok || known.next < start {
			starts[p.topic][p.number] = known.next
		}
	}
	return starts, nil
}

func (in *Inbox) claim(ctx context.Context, topics []string, numbers []int32) (map[place]claim, error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	// A claim that a crash took back would let the former owner in again.
	batch.Queue(`SET LOCAL synchronous_commit = on`)
	batch.Queue(claimPartitions, in.names(), topics, numbers)
	results := in.pool.SendBatch(ctx, &batch)
	tx := results.Tx()
	defer func() { _ = tx.Rollback(ctx) }()
	held, err := func() (map[place]claim, error) {
		for range 2 {
			if _, err := results.Exec(); err != nil {
				return nil, err
			}
		}
		return readClaims(results.Query())
	}()
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	return held, statementError("claim partitions", err)
}

// readClaims reads rows of handler, topic, partition, next offset and fence.
func readClaims(rows pgx.Rows, err error) (map[place]claim, error) {
	if err != nil {
		return nil, err
	}
	read := make(map[place]claim)
	var (
		p place
		c claim
	)
	_, err = pgx.ForEachRow(rows, []any{&p.handler, &p.topic, &p.number, &c.next, &c.fence}, func() error {
		read[p] = c
		return nil
	})
	return read, err
}

// verify finds out whether all that is known of the stored offsets is still true.
func (in *Inbox) verify(ctx context.Context, c *claims) error {
	known := c.snapshot()
	if len(known) == 0 {
		return nil
	}
	var stored map[place]claim
	err := in.waitOut(ctx, func() (err error) {
		stored, err = readClaims(in.pool.Query(ctx, `
SELECT handler, topic, partition, next_offset, fence FROM stored_offsets WHERE handler = ANY ($1::text[])`, in.names()))
		return statementError("read the stored offsets", err)
	})
	if err != nil || in.claims.Load() != c { // what was claimed anew is true
		return err
	}
	for p, k := range known {
		if s, ok := stored[p]; !ok || s.fence != k.fence || s.next < k.next {
			c.drop(func(partition) bool { return true })
			return stale(p, k, s)
		}
	}
	return nil
}

// stale says what has become of a claim; the stored one is zero if it is gone.
func stale(p place, known, stored claim) error {
	if stored.fence == known.fence {
		return fmt.Errorf("%s: the stored offset of handler %s has gone back from %d to %d, as it does when the database loses commits: %w", p.partition, p.handler, known.next, stored.next, ErrStale)
	}
	return fmt.Errorf("%s: another owner has claimed it for handler %s: %w", p.partition, p.handler, ErrStale)
}

// waitOut repeats what fails by an outage until ctx ends.
func (in *Inbox) waitOut(ctx context.Context, try func() error) error {
	pauses := newBackoff(in.options.RetryBackoff)
	for {
		err := try()
		var broken *outage
		if !errors.As(err, &broken) {
			return err
		}
		pause := pauses.NextBackOff()
		if ctx.Err() == nil {
			in.options.Logger.Warn("the stored offsets cannot be reached; it is tried again", "after", pause, "cause", err)
		}
		if stopped := sleep(ctx, pause); stopped != nil {
			return fmt.Errorf("%w, the last attempt: %w", stopped, err)
		}
	}
}

// stretch is the part of a partition that a batch covers.
type stretch struct {
	partition
	end int64 // the offset after its last record
}

// stretches returns what the events cover, in the order of their partitions. Events
// that are out of order are an error: a stored offset could not say which are done.
func stretches(events []Event) ([]stretch, error) {
	ends := make(map[partition]int64)
	for _, e := range events {
		if e.Record == nil {
			return nil, fmt.Errorf("event %q has no record, and so no offset to remember", e.ID)
		}
		p, end := partitionOf(e), e.Record.Offset+1
		if end < ends[p] {
			return nil, fmt.Errorf("%s: offset %d comes after offset %d: give the events of a partition in the order of their offsets", p, e.Record.Offset, ends[p]-1)
		}
		ends[p] = end
	}
	covered := make([]stretch, 0, len(ends))
	for p, end := range ends {
		covered = append(covered, stretch{p, end})
	}
	slices.SortFunc(covered, func(a, b stretch) int { return comparePartitions(a.partition, b.partition) })
	return covered, nil
}

func partitionOf(e Event) partition { return partition{e.Record.Topic, e.Record.Partition} }

// advance is a stored offset on its way: from what is known to the end of a batch.
type advance struct {
	place
	known claim
	to    int64
}

// plan drops the pending events that the handler is known to have done, and works
// out how far the stored offsets are to go.
func (d *delivery) plan() error {
	if !d.ordered() {
		return nil
	}
	d.advances = d.advances[:0]
	for _, s := range d.covered {
		p := place{d.handler.Name, s.partition}
		known, err := d.claims.of(p)
		if err != nil {
			return err
		}
		d.advances = append(d.advances, advance{p, known, max(s.end, known.next)})
	}
	next := make(map[partition]int64, len(d.advances))
	for _, a := range d.advances {
		next[a.partition] = a.known.next
	}
	d.retain(func(it item) bool { return it.Record.Offset >= next[partitionOf(it.Event)] })
	return nil
}

// moves says whether some stored offset is to change.
func (d *delivery) moves() bool {
	return slices.ContainsFunc(d.advances, func(a advance) bool { return a.to > a.known.next })
}

const (
	// lockOffsets takes the rows in one order, so that nobody deadlocks, and says what
	// is there.
	lockOffsets = `
SELECT handler, topic, partition, next_offset, fence FROM stored_offsets
WHERE handler = $1 AND (topic, partition) IN (SELECT * FROM unnest($2::text[], $3::int[]))
ORDER BY topic, partition
FOR UPDATE`

	// moveOffsets changes the rows that are as they are known.
	moveOffsets = `
UPDATE stored_offsets AS stored SET next_offset = move.next_offset
FROM unnest($2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[]) AS move (topic, partition, fence, known, next_offset)
WHERE stored.handler = $1 AND stored.topic = move.topic AND stored.partition = move.partition
	AND stored.fence = move.fence AND stored.next_offset = move.known`
)

// queueAdvance queues the statements whose results advanced reads.
func (d *delivery) queueAdvance(batch *pgx.Batch) {
	var (
		topics               []string
		numbers              []int32
		fences, knowns, ends []int64
	)
	for _, a := range d.advances {
		topics, numbers = append(topics, a.topic), append(numbers, a.number)
		fences, knowns, ends = append(fences, a.known.fence), append(knowns, a.known.next), append(ends, a.to)
	}
	batch.Queue(lockOffsets, d.handler.Name, topics, numbers)
	batch.Queue(moveOffsets, d.handler.Name, topics, numbers, fences, knowns, ends)
}

// advanced returns nil if all stored offsets were as known, and have moved.
func (d *delivery) advanced(results pgx.BatchResults) error {
	stored, err := readClaims(results.Query())
	if err != nil {
		return statementError("lock the stored offsets", err)
	}
	tag, err := results.Exec()
	if err != nil {
		return statementError("advance the stored offsets", err)
	}
	if tag.RowsAffected() == int64(len(d.advances)) {
		return nil
	}
	for _, a := range d.advances {
		s, ok := stored[a.place]
		switch {
		case !ok || s.fence != a.known.fence || s.next < a.known.next:
			return stale(a.place, a.known, s)
		case s.next > a.known.next:
			d.claims.learn(a.place, s)
		}
	}
	return errAhead
}

// holdBack takes the stored offsets back to the first of the events that are to be
// tried again, before anybody has seen them further.
func (d *delivery) holdBack(ctx context.Context, tx pgx.Tx, again []item) error {
	first := make(map[partition]int64)
	for _, it := range again {
		p := partitionOf(it.Event)
		if _, ok := first[p]; !ok {
			first[p] = it.Record.Offset
		}
	}
	for i, a := range d.advances {
		offset, ok := first[a.partition]
		if !ok {
			continue
		}
		_, err := tx.Exec(ctx, `UPDATE stored_offsets SET next_offset = $4 WHERE handler = $1 AND topic = $2 AND partition = $3`,
			d.handler.Name, a.topic, a.number, offset)
		if err != nil {
			return statementError("hold back a stored offset", err)
		}
		d.advances[i].to = offset
	}
	return nil
}

// learnCommitted takes in that the stored offsets have moved.
func (d *delivery) learnCommitted() {
	for _, a := range d.advances {
		d.claims.learn(a.place, claim{next: a.to, fence: a.known.fence})
	}
}
