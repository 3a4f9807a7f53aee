package jsonl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/jsonl"
)

type value struct {
	Name string `json:"name"`
}

func TestWriteReadAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values.jsonl")
	// Longer than any buffer, and with what JSON likes to escape.
	values := []value{{"a\nb <c>"}, {strings.Repeat("x", 1<<20)}, {""}}
	require.NoError(t, jsonl.Write(path, values))
	require.NoError(t, jsonl.Append(path, value{"last"}))
	got, err := jsonl.Read[value](path)
	require.NoError(t, err)
	require.Equal(t, append(values, value{"last"}), got)

	require.NoError(t, jsonl.Write(path, values[:1]))
	got, err = jsonl.Read[value](path)
	require.NoError(t, err)
	require.Equal(t, values[:1], got)
}

func TestAWriteThatFailsLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "values.jsonl")
	require.NoError(t, jsonl.Write(path, []any{"before"}))
	require.ErrorContains(t, jsonl.Write(path, []any{"after", func() {}}), path)
	got, err := jsonl.Read[string](path)
	require.NoError(t, err)
	require.Equal(t, []string{"before"}, got)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestALineThatItsWriterDidNotEndIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"name":"a"}`+"\n"+`{"name":"b"`), 0o600))
	got, err := jsonl.Read[value](path)
	require.NoError(t, err)
	require.Equal(t, []value{{"a"}}, got)
}

func TestALineThatIsNoValueIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"name":"a"}`+"\n"+`{"na{"name":"b"}`+"\n"), 0o600))
	_, err := jsonl.Read[value](path)
	require.ErrorContains(t, err, "values.jsonl, line 2")
	_, err = jsonl.Read[value](path + ".not-there")
	require.ErrorIs(t, err, os.ErrNotExist)
}
