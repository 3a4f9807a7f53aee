package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

const (
	// usualWidth is what a line must fit into where there is no terminal to ask.
	usualWidth = 100
	// leastWidth is that of a terminal that is still asked.
	leastWidth = 40
)

// Width is how many columns a line that is written to w may have: those of the terminal,
// or 100 where w is none.
func Width(w io.Writer) int {
	f, isFile := w.(*os.File)
	if !isFile {
		return usualWidth
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width < leastWidth {
		return usualWidth
	}
	return width
}

// Columns lays out pairs in two columns, the second of which goes on in further lines
// where it is too long: no line is longer than width, if the first column leaves it a
// third of that. A line break in the second column stays one.
func Columns(width int, rows [][2]string) string {
	const padding = "  "
	t := table.NewWriter()
	t.SetStyle(table.StyleDefault)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Box.PaddingLeft, t.Style().Box.PaddingRight = padding, ""
	t.SuppressTrailingSpaces()
	first := 0
	for _, row := range rows {
		first = max(first, text.StringWidth(row[0]))
	}
	second := max(width-first-2*len(padding), width/3)
	for _, row := range rows {
		lines := strings.Split(row[1], "\n")
		for i, line := range lines {
			lines[i] = strings.TrimRight(text.WrapSoft(line, second), " ")
		}
		t.AppendRow(table.Row{row[0], strings.Join(lines, "\n")})
	}
	return t.Render() + "\n"
}

// Variable is an environment variable that a program reads, and what for.
type Variable struct{ Name, Says string }

// Variables that several programs read.
var (
	KafkaBrokers = Variable{"KAFKA_BROKERS", "Kafka, where --brokers is not given: host:port, with commas between"}
	DatabaseURL  = Variable{"DATABASE_URL", "Postgres, where --database-url is not given: postgres://user:password@host:5432/database; arguments are for everybody on the machine to see, so a password is better off here"}
)

// Variables of the programs of this package.
var (
	paymentsURL       = Variable{"PAYMENTS_URL", "with --call=payments: the API, http://host:port"}
	paymentsKey       = Variable{"PAYMENTS_KEY", "with --call=payments: the key of this client"}
	failpointVariable = Variable{failpoint.Variable, "a mishap on purpose, step[:passing[:action]]: produced:3:kill dies at the third passing of that step; actions are kill, pause and fail; a step that is none is refused, with those that are"}
	traceVariable     = Variable{trace.Variable, "file to write every passing of a step to"}
)

// stoppedAsTold is what the exit code 0 means of a program that runs until it is told to
// stop.
const stoppedAsTold = "told to stop by SIGTERM or SIGINT, and what was in hand is finished"

// Manual is what --help says of a command beside what it does and its flags.
type Manual struct {
	// Environment are the variables that it reads.
	Environment []Variable
	// OK and Broken say what the exit codes 0 and 1 mean; without Broken there is no 1.
	OK, Broken string
}

// Of makes it the manual of a command, and of those below that have none of their own.
func (m Manual) Of(cmd *cobra.Command) {
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { m.print(cmd) })
}

func (m Manual) print(cmd *cobra.Command) {
	w := cmd.OutOrStdout()
	width := min(Width(w), usualWidth)
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", about)
	if cmd.Runnable() {
		fmt.Fprintf(w, "  %s\n", cmd.UseLine())
	}
	var commands [][2]string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			commands = append(commands, [2]string{sub.Name(), sub.Short})
		}
	}
	if len(commands) > 0 {
		fmt.Fprintf(w, "  %s COMMAND [flags]\n\nCommands (--help after one says more):\n%s", cmd.CommandPath(), Columns(width, commands))
	}
	fmt.Fprintf(w, "\nFlags:\n%s", cmd.Flags().FlagUsagesWrapped(width)) // those of its parents are among them
	if len(m.Environment) > 0 {
		var variables [][2]string
		for _, v := range m.Environment {
			variables = append(variables, [2]string{v.Name, v.Says})
		}
		fmt.Fprintf(w, "\nEnvironment:\n%s", Columns(width, variables))
	}
	codes := [][2]string{{fmt.Sprint(ExitOK), m.OK}}
	if m.Broken != "" {
		codes = append(codes, [2]string{fmt.Sprint(ExitBroken), m.Broken})
	}
	codes = append(codes, [2]string{fmt.Sprint(ExitUnusable), "the command line or the environment is wrong, a service failed, or it was interrupted before it was done"})
	fmt.Fprintf(w, "\nExit codes:\n%s", Columns(width, codes))
}

// helpCommand is cobra's, but that it refuses commands that there are not.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return Usage(err)
			}
			if err := NoSuchCommand(about, rest); err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}
