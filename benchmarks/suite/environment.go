package suite

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/internal/endpoint"
)

// Environment is what a part was measured on.
type Environment struct {
	StartedAt time.Time `json:"started_at"`
	Command   string    `json:"command"`
	Rounds    int       `json:"rounds"`
	// Scale is other than 1 where there were fewer events than there should be.
	Scale       float64 `json:"scale"`
	Kafka       string  `json:"kafka"`
	Postgres    string  `json:"postgres"`
	Go          string  `json:"go"`
	OS          string  `json:"os"`
	CPU         string  `json:"cpu"`
	CPUs        int     `json:"cpus"`
	MemoryBytes uint64  `json:"memory_bytes"`
	ValueBytes  int     `json:"value_bytes"`
	// WarmUp is the share of the events of a run that is in no figure.
	WarmUp float64 `json:"warm_up"`
}

// Environment looks at the machine and the services. The command is told as it is.
func (r Runner) Environment(ctx context.Context, command string) (Environment, error) {
	e := Environment{
		StartedAt:  time.Now().UTC().Truncate(time.Second),
		Command:    command,
		Rounds:     r.Rounds,
		Scale:      r.Scale,
		Go:         runtime.Version(),
		OS:         runtime.GOOS + "/" + runtime.GOARCH,
		CPUs:       runtime.NumCPU(),
		ValueBytes: contest.ValueBytes,
		WarmUp:     contest.WarmUp,
	}
	var err error
	if e.Kafka, err = endpoint.Kafka(ctx, r.Brokers); err != nil {
		return e, err
	}
	e.Kafka = cmp.Or(r.Kafka, e.Kafka)
	if e.Postgres, err = endpoint.Postgres(ctx, r.DatabaseURL); err != nil {
		return e, err
	}
	// What the machine does not tell is left out.
	if kernel, err := host.KernelVersionWithContext(ctx); err == nil {
		e.OS += ", kernel " + kernel
	}
	if cpus, err := cpu.InfoWithContext(ctx); err == nil && len(cpus) > 0 {
		e.CPU = cpus[0].ModelName
	}
	if memory, err := mem.VirtualMemoryWithContext(ctx); err == nil {
		e.MemoryBytes = memory.Total
	}
	return e, nil
}

// ReadEnvironments reads what each part of a folder was measured on; of a folder without
// any, nothing.
func ReadEnvironments(dir string) (map[string]Environment, error) {
	path := filepath.Join(dir, EnvironmentFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	environments := make(map[string]Environment)
	if err := json.Unmarshal(text, &environments); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return environments, nil
}

// KeepEnvironment writes into a folder what a part was measured on, in place of what it
// says of that part.
func KeepEnvironment(dir, part string, e Environment) error {
	environments, err := ReadEnvironments(dir)
	if err != nil {
		return err
	}
	if environments == nil {
		environments = make(map[string]Environment)
	}
	environments[part] = e
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(environments); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, EnvironmentFile), text.Bytes(), 0o644)
}

// String is one line.
func (e Environment) String() string {
	s := fmt.Sprintf("%s, PostgreSQL %s, %s, %d × %s, %.0f GB, %s; %s; `%s`", e.Kafka, e.Postgres, e.Go, e.CPUs,
		cmp.Or(e.CPU, "CPU"), float64(e.MemoryBytes)/1e9, e.OS, e.StartedAt.Format("2006-01-02 15:04 UTC"), e.Command)
	if e.Scale != 1 {
		s += fmt.Sprintf("; a trial, with %g of the events", e.Scale)
	}
	return s
}
