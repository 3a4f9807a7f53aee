package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
)

// Every flag, the variables of the environment and the exit codes of every command are in
// its help, which fits into 100 columns; and no help shows what the environment holds.
func TestHelp(t *testing.T) {
	t.Setenv("KAFKA_BROKERS", "kafka.example:9092")
	t.Setenv("DATABASE_URL", "postgres://u:open-sesame@db.example/d")
	var paths [][]string
	var visit func(*cobra.Command, []string)
	visit = func(cmd *cobra.Command, path []string) {
		paths = append(paths, path)
		for _, sub := range cmd.Commands() {
			visit(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	visit(command(), nil)
	require.Greater(t, len(paths), 10)
	for _, path := range paths {
		t.Run(strings.Join(append([]string{"compare"}, path...), " "), func(t *testing.T) {
			root := command()
			var out bytes.Buffer
			root.SetOut(&out)
			require.Equal(t, cli.ExitOK, cli.Run(root, append(path[:len(path):len(path)], "--help")))
			help := out.String()
			for line := range strings.Lines(help) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, line)
			}
			cmd, _, err := root.Find(path)
			require.NoError(t, err)
			cmd.Flags().VisitAll(func(f *pflag.Flag) { require.Contains(t, help, "--"+f.Name+" ") })
			for _, variable := range []string{"KAFKA_BROKERS", "DATABASE_URL"} {
				reads := cmd.Flag(strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, "KAFKA_")), "_", "-")) != nil
				require.Equal(t, reads, strings.Contains(help, "\n  "+variable+" "), variable)
			}
			require.Contains(t, help, "Exit codes:\n  0 ")
			require.Contains(t, help, "\n  2 ")
			require.NotContains(t, help, ".example")
		})
	}
}

// Whoever types no command runs, and finds the flags of that in the help.
func TestHelpHasTheFlagsOfRun(t *testing.T) {
	root := command()
	runCommand().Flags().VisitAll(func(f *pflag.Flag) { require.NotNil(t, root.Flag(f.Name), f.Name) })
}
