// Package benchmarks measures lanes and engines: go test -run '^$' -bench . ./benchmarks
//
// It runs on an embedded Kafka and a throwaway Postgres or, where KAFKA_BROKERS and
// DATABASE_URL are set, on those. The head of the output names both; a figure of the
// embedded Kafka says nothing about Apache Kafka. One operation is one event, and the output
// is for benchstat.
//
// BenchmarkLane and BenchmarkRate measure lanes as their users run them, as processes, from
// the outside. The default is a choice of lanes and sizes; -all, behind the package, is every
// lane at every size that makes sense. The first fifth of the events, the warm-up, is in no
// figure.
//
// The others measure engines in this process, and allocations with them. The topic is filled
// beforehand, and the clock starts when the engine has its first records in hand: connecting
// and joining the group are not measured. p50-ms and p99-ms are the time from a batch's
// arrival to its commit.
//
// benchmarks/run.sh measures the whole set on Apache Kafka, and the peers in the same run.
package benchmarks
