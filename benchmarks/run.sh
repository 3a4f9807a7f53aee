#!/usr/bin/env bash
# The whole set of benchmarks, or parts of it, on an Apache Kafka and a PostgreSQL that it
# starts and ends itself. Written for the bash 3.2 that macOS ships.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: benchmarks/run.sh [PART]...       all parts, or those named, in turns

  small-transactions   transactions of 10 records, pipelined and through GroupTransactSession
  throughput           Kafka to Kafka at full speed, and the peers
  latency              Kafka to Kafka at a fixed rate, and the peers
  inbox                Kafka to Postgres at full speed, and the peers
  inbox-latency        Kafka to Postgres at a fixed rate
  async-commit         one event a transaction
  growth               the inbox with ever more rows in it
  peers                every peer once, for its audit
  lanes                every lane at every size, once

RUNS=5      how often each case is run, in turns with the others of its part
SCALE=1     by how much there are fewer events, to try things out
DIR=docs/benchmarks   results.csv, environment.json, plots, README.md

Needs what compose/local needs (Java 17, Maven, PostgreSQL), and a C compiler for librdkafka.
Nothing else should run on the machine meanwhile. Exit code 1: somebody broke a promise, or
could not be measured; results.csv says who.
TEXT
}

runs=${RUNS:-5} scale=${SCALE:-1} dir=${DIR:-docs/benchmarks}
parts='' growth=
for part in "${@:-small-transactions throughput latency inbox inbox-latency async-commit growth peers lanes}"; do
  for name in $part; do
    case $name in
      -h | --help | help) usage && exit ;;
      growth) growth=1 ;;
      small-transactions | throughput | latency | inbox | inbox-latency | async-commit | peers | lanes) parts="$parts $name" ;;
      *) usage >&2 && exit 2 ;;
    esac
  done
done
mkdir -p "$dir"
dir=$(cd "$dir" && pwd -P)

scratch=$(mktemp -d)
export DELIVERED_TWICE_STATE=$scratch/services # not the services that somebody works with
trap 'compose/local down; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export BENCHMARK_COMMAND="benchmarks/run.sh${*:+ $*}"
if [ "$runs" != 5 ]; then BENCHMARK_COMMAND="RUNS=$runs $BENCHMARK_COMMAND"; fi
version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' compose/kafka/pom.xml)
export BENCHMARK_KAFKA="Apache Kafka $version" # which a broker does not tell
(cd benchmarks/peers && go build -o "$scratch/peers" . && go build -o "$scratch/plots" ./plots)
go build -o "$scratch/costs" ./benchmarks/costs
compose/local up >/dev/null
eval "$(compose/local env)"

status=0
if [ -n "$parts" ]; then
  # shellcheck disable=SC2086 # a list
  (cd benchmarks/peers && "$scratch/peers" suite $parts --rounds "$runs" --scale "$scale" --dir "$dir") || status=$?
  [ $status -le 1 ] || exit $status
fi
if [ -n "$growth" ]; then
  go test -c -o "$scratch/benchmarks" ./benchmarks
  for _ in $(seq "$runs"); do # one after the other, so that each round has all of them
    (cd benchmarks && INBOX_10M=1 "$scratch/benchmarks" -test.run '^$' -test.bench 'InboxGrowth' -test.timeout 0) | tee -a "$scratch/growth.txt"
  done
  "$scratch/costs" import growth "$scratch/growth.txt" "$dir" --rounds "$runs"
fi

"$scratch/plots" "$dir"
page=
if grep -q '<!-- costs:begin -->' README.md; then page=--page=README.md; fi
"$scratch/costs" write "$dir" $page
exit $status
