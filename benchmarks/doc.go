// Package benchmarks measures the engines: go test -bench . ./benchmarks
//
// It runs on an embedded Kafka and a throwaway Postgres or, where KAFKA_BROKERS and
// DATABASE_URL are set, on those. The head of the output names both; a figure of the
// embedded Kafka says nothing about Apache Kafka.
//
// One operation is one event. The topic is filled beforehand, and the clock starts
// when the engine has its first records in hand: connecting and joining the group
// are not measured. p50-ms and p99-ms are the time from a batch's arrival to its
// commit.
package benchmarks
