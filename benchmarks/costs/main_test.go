package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
)

func TestPagesAreWritten(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "PAGE.md")
	require.NoError(t, os.WriteFile(page, []byte("above\n<!-- costs:begin -->\n<!-- costs:end -->\nbelow\n"), 0o600))
	require.ErrorContains(t, write(dir, page), "there are no runs")

	var runs []results.Run
	lines := suite.Costs()[0].Lines
	for round := range 5 {
		for i, name := range []string{lines[0].Full.Case, lines[3].Full.Case} {
			runs = append(runs, results.Run{Part: "throughput", Case: name, Round: round + 1, Events: 100, EventsPerSecond: float64(200 - 50*i), Audit: results.Passed})
		}
	}
	require.NoError(t, results.WriteFile(filepath.Join(dir, suite.RunsFile), runs))
	require.NoError(t, suite.KeepEnvironment(dir, "throughput", suite.Environment{Kafka: "Apache Kafka 4.4.0", Scale: 1, Command: "benchmarks/run.sh throughput"}))
	require.NoError(t, suite.KeepEnvironment(dir, "inbox", suite.Environment{Kafka: "another", Scale: 1}))
	require.NoError(t, write(dir, page))

	embedded, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Regexp(t, `(?s)^above\n.*\| at least once \| 200/s \|.*\| exactly once, pipelined \| × 0\.75 \|.*\nbelow\n$`, string(embedded))
	require.NotContains(t, string(embedded), "librdkafka", "what was not measured has no line")

	own, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	require.Contains(t, string(own), "| EOS at full speed, 100 ms interval, against at-least-once of the same engine | ≥ 0.97 | **0.75** (median of 5 paired runs, 0.75–0.75); ")
	require.Contains(t, string(own), "Measured on Apache Kafka 4.4.0")
	require.Contains(t, string(own), "`benchmarks/run.sh throughput`")
	require.NotContains(t, string(own), "another", "a part without runs is left out")
}

func TestBenchmarksAreTakenOver(t *testing.T) {
	dir := t.TempDir()
	output := filepath.Join(dir, "growth.txt")
	require.NoError(t, os.WriteFile(output, []byte("BenchmarkInboxGrowth/keys=text/ids=time/rows=100000-2 \t 1000\t 10 ns/op\t 80000 events/s\n"), 0o600))
	path := filepath.Join(dir, suite.RunsFile)
	kept := results.Run{Part: "inbox", Case: "x", Audit: results.Passed}
	require.NoError(t, results.WriteFile(path, []results.Run{kept, {Part: "growth", Case: "old"}}))

	require.NoError(t, take("growth", output, dir))
	runs, err := results.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, runs, 2)
	require.Equal(t, kept, runs[0])
	require.Equal(t, "keys=text/ids=time/rows=100000", runs[1].Case)
	require.ErrorContains(t, take("growth", path, dir), path, "a file without benchmarks is named")
}
