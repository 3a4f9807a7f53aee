package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/delivered-twice/delivered-twice/internal/nearest"
)

// usageError is an error in what was typed.
type usageError struct{ error }

// Usage marks err as an error in the command line: the usage line is printed with
// it.
func Usage(err error) error { return usageError{err} }

// NoArgs refuses arguments that are not flags.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("unexpected argument %s", shown(args[0])))
	}
	return nil
}

// NoSuchCommand refuses arguments of a command that has commands: they are not among
// them.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return NoArgs(cmd, args)
	}
	names := commands(cmd)
	return Usage(fmt.Errorf("there is no command %s%s; all: %s", shown(args[0]), nearest.Hint(args[0], names), strings.Join(names, ", ")))
}

// CommandMissing is what a command does that has commands, and does nothing without.
func CommandMissing(cmd *cobra.Command, _ []string) error {
	return Usage(fmt.Errorf("name a command: %s", strings.Join(commands(cmd), ", ")))
}

func commands(cmd *cobra.Command) (names []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// shown is an argument as an error may quote it. One that may be an address is not
// quoted: it may hold a password.
func shown(arg string) string {
	if strings.ContainsAny(arg, "@=:") {
		return "(not shown, it may hold a password)"
	}
	return strconv.Quote(arg)
}

// flagError says what a flag wants. What pflag says of it quotes Go's own errors and, of
// a flag with one hyphen, all that was typed, a password included.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		missing *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
		syntax  *pflag.InvalidSyntaxError
	)
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		name, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "=")
		if cmd.Flag(name) != nil {
			return Usage(fmt.Errorf("there is no flag -%s: write --%s, with two hyphens", name, name))
		}
		return Usage(fmt.Errorf("there is no flag -%s; flags have two hyphens, as in --help", name))
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return Usage(fmt.Errorf("there is no flag --%s%s", unknown.GetSpecifiedName(), nearest.Hint(unknown.GetSpecifiedName(), names)))
	case errors.As(err, &missing):
		return Usage(fmt.Errorf("--%s needs a value: %s", missing.GetFlag().Name, wanted(missing.GetFlag())))
	case errors.As(err, &invalid):
		fits := ""
		if errors.Is(err, strconv.ErrRange) {
			fits = " that fits into 64 bits"
		}
		return Usage(fmt.Errorf("--%s is %q, must be %s%s", invalid.GetFlag().Name, invalid.GetValue(), wanted(invalid.GetFlag()), fits))
	case errors.As(err, &syntax):
		return Usage(errors.New("a flag without a name: write --name=value"))
	}
	return Usage(err)
}

// wanted says what the value of a flag must be.
func wanted(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int":
		return "a whole number"
	case "uint64":
		return "a whole number from 0"
	case "float64":
		return "a number, such as 0.1"
	case "duration":
		return "a time with its unit, such as 500ms, 10s or 2h, of at most 292 years"
	case "bool":
		return "true or false"
	case "stringSlice":
		return "a list with commas between"
	default:
		return "text"
	}
}

// BrokersFlag gives a command the flag --brokers. Where it is not given, the brokers are
// those of the environment; usage has to say so, as --help does not show them.
func BrokersFlag(f *pflag.FlagSet, brokers *[]string, usage string) {
	const name = "brokers"
	f.StringSliceVar(brokers, name, split(os.Getenv(KafkaBrokers.Name)), usage)
	f.Lookup(name).DefValue = "[]"
}

// split takes apart a list with commas or blanks between.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
