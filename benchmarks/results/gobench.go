package results

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// FromGo reads the output of go test -bench as runs of a part. Their cases are the names of
// the sub-benchmarks, and the same one again is its next round. Of a benchmark, events/s,
// p50-ms, p99-ms, max-ms and WAL-B/op are taken over.
func FromGo(r io.Reader, part string) ([]Run, error) {
	var runs []Run
	rounds := make(map[string]int)
	lines := benchfmt.NewReader(r, part)
	for lines.Scan() {
		b, ok := lines.Result().(*benchfmt.Result)
		if !ok {
			continue // what else a test prints
		}
		base, parts := b.Name.Parts()
		name := ""
		for _, p := range parts {
			if p[0] != '-' { // GOMAXPROCS
				name += string(p)
			}
		}
		name = strings.TrimPrefix(name, "/")
		rounds[name]++
		run := Run{Part: part, Case: name, Round: rounds[name], Contender: "Benchmark" + string(base), Settings: string(b.Name.Full()), Events: b.Iters, Audit: Passed}
		for unit, figure := range map[string]*float64{
			"events/s": &run.EventsPerSecond,
			"p50-ms":   &run.P50,
			"p99-ms":   &run.P99,
			"max-ms":   &run.Max,
			"WAL-B/op": &run.WALBytesPerRecord,
		} {
			if v, measured := b.Value(unit); measured {
				*figure = v
			}
		}
		runs = append(runs, run)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read benchmarks of %s: %w", part, err)
	}
	if len(runs) == 0 {
		return nil, errors.New("there are no benchmarks in it")
	}
	return runs, nil
}
