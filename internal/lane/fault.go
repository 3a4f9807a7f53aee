package lane

// Fault is what is done to a lane while it runs, by name. How it is done is the
// business of package fault; here it is a column of claims.
type Fault string

const (
	// NoFault leaves the lane alone.
	NoFault Fault = "none"

	// Kill9 kills members with SIGKILL at every step: at the first, a middle and the
	// last passing.
	Kill9 Fault = "kill -9"
	// SIGTERM ends members in an orderly way in the middle of their work.
	SIGTERM Fault = "SIGTERM"
	// SecondInstance has a second member join, and leave again.
	SecondInstance Fault = "second instance"
	// RollingRestart restarts the members one after the other.
	RollingRestart Fault = "rolling restart"
	// Zombie stops a member (SIGSTOP) until another has taken its partitions over,
	// and lets it go on (SIGCONT).
	Zombie Fault = "zombie"
	// Race gives one event to two consumers at the same moment.
	Race Fault = "race"
	// ForeignTransactionalID has another process initialise the member's
	// transactional id in the middle of a transaction.
	ForeignTransactionalID Fault = "foreign transactional id"

	// CommitCut cuts the connection to Postgres while COMMIT is in flight.
	CommitCut Fault = "COMMIT cut"
	// EndTxnCut cuts the connection to Kafka while EndTxn is in flight.
	EndTxnCut Fault = "EndTxn cut"
	// ProduceCut cuts the connection to Kafka while Produce is in flight.
	ProduceCut Fault = "Produce cut"
	// OffsetCommitCut cuts the connection to Kafka while the acknowledgement is in
	// flight: OffsetCommit, TxnOffsetCommit or ShareAcknowledge.
	OffsetCommitCut Fault = "OffsetCommit cut"

	// BrokerFrozen stops the broker (SIGSTOP) during EndTxn for longer than the
	// client waits for an answer.
	BrokerFrozen Fault = "broker frozen"
	// BrokerRestarted stops the only broker, or one of several, in an orderly way and
	// starts it again.
	BrokerRestarted Fault = "broker restarted"
	// BrokerKilled kills one of three brokers with SIGKILL.
	BrokerKilled Fault = "broker killed"
	// PostgresRestarted stops Postgres in an orderly way and starts it again.
	PostgresRestarted Fault = "Postgres restarted"
	// PostgresKilled kills every process of Postgres with SIGKILL and starts it again.
	PostgresKilled Fault = "Postgres killed"

	// PublisherDuplicates has the publisher send events twice: two records with one
	// event id.
	PublisherDuplicates Fault = "publisher duplicates"
	// PublisherDuplicatesTwoInstances has a second member join before the second
	// records come.
	PublisherDuplicatesTwoInstances Fault = "publisher duplicates, two instances"
	// OffsetsRewound has an operator set the group's offsets back to the beginning.
	OffsetsRewound Fault = "offsets rewound"
	// Purged has events come again when what the lane kept of them has been removed.
	Purged Fault = "redelivery after purge"
	// Poison puts one record among the events that no handler can take.
	Poison Fault = "poison record"
	// PoisonBatch puts a batch full of them there.
	PoisonBatch Fault = "batch of poison"

	// TransactionTimeout stops a member in the middle of a transaction for longer
	// than transaction.timeout.ms.
	TransactionTimeout Fault = "transaction timeout"
	// TransactionalIDExpired leaves a member without work for longer than the
	// broker's transactional.id.expiration.ms.
	TransactionalIDExpired Fault = "transactional id expired"

	// APIKilled kills the third party (SIGKILL) while calls are in flight, and starts it
	// again.
	APIKilled Fault = "API killed in flight"
	// ResponseDropped has the third party do what it is asked, and lose the answer.
	ResponseDropped Fault = "response dropped"
	// KeyExpired has events come again when the third party has forgotten their keys.
	KeyExpired Fault = "key expired"
	// RelayKilled kills the outbox's relay between publishing rows and stamping them.
	RelayKilled Fault = "relay killed"
	// SenderRetries has the sender of webhooks give up waiting, and send again what is
	// being worked on.
	SenderRetries Fault = "sender retrying"
	// ExpiredWhileDown kills a member whose transaction is decided and not ended, and
	// leaves it dead until the broker has aborted it.
	ExpiredWhileDown Fault = "transaction expired while down"

	// Kill9AndDuplicates is the fault of a side-by-side run with both.
	Kill9AndDuplicates Fault = "kill -9 and publisher duplicates"
)
