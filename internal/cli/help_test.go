package cli_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/process"
)

// What a pipeline reads is in its help, which shows nothing of what it holds.
func TestHelp(t *testing.T) {
	for program, variables := range map[string][]string{
		cli.EOSPipelineName:   {"KAFKA_BROKERS", "DATABASE_URL", "PAYMENTS_URL", "PAYMENTS_KEY", "FAILPOINT", "TRACE_FILE"},
		cli.InboxPipelineName: {"KAFKA_BROKERS", "DATABASE_URL", "REDIS_URL", "WEBHOOK_SECRET", "PAYMENTS_URL", "PAYMENTS_KEY", "FAILPOINT", "TRACE_FILE"},
		cli.PaymentsAPIName:   {"DATABASE_URL", "PAYMENTS_KEYS", "FAILPOINT", "TRACE_FILE"},
	} {
		var env []string
		for _, variable := range variables {
			env = append(env, variable+"=open-sesame")
		}
		var stdout bytes.Buffer
		cmd := process.Command(program, "--help")
		cmd.Stdout, cmd.Env = &stdout, append(cmd.Environ(), env...)
		require.NoError(t, cmd.Run())
		help := stdout.String()
		for _, variable := range variables {
			require.Contains(t, help, "\n  "+variable+" ", program)
		}
		require.Contains(t, help, "Exit codes:\n  0 ", program)
		require.NotContains(t, help, "open-sesame", program)
		for line := range strings.Lines(help) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, line)
		}
	}
}

func TestColumns(t *testing.T) {
	require.Equal(t, "  a    one two three four\n       five six seven\n       a command\n  bbb  eight\n",
		cli.Columns(28, [][2]string{{"a", "one two three four five six seven\na command"}, {"bbb", "eight"}}))
}
