// Command compare runs the Kafka-transactions pipeline and the inbox pipeline side
// by side over the same events, kills both on purpose, and says what each lost or
// duplicated in Kafka, in Postgres and at a third party that it calls. Its --help lists the commands.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/process"
)

func main() {
	registerPipelines()
	process.Init()
	os.Exit(run(os.Args[1:]))
}

// registerPipelines makes this binary able to be the pipelines, too, and the third party
// that they call: so there is one thing to build.
func registerPipelines() {
	process.Register(cli.EOSPipelineName, cli.EOSPipeline)
	process.Register(cli.InboxPipelineName, cli.InboxPipeline)
	process.Register(cli.PaymentsAPIName, cli.PaymentsAPI)
}

func run(args []string) int { return cli.Run(command(), args) }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "compare [flags]",
		Short: "Delivered twice: Kafka transactions and the inbox side by side, killed on purpose and counted",
		Long: `compare runs two pipelines over the same events, kills both on purpose, and counts
what was lost or duplicated where.

Without a command it does "compare run", and takes its flags. It brings an embedded
Kafka and a throwaway Postgres, and needs Go and PostgreSQL's binaries or, once, the
network.`,
		Args: cli.NoSuchCommand,
		// Completion scripts are nothing anybody would look for here.
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	runs(root)
	root.AddCommand(runCommand(), matrixCommand(), lanesCommand(), faultsCommand(), reportCommand(), explainCommand(), generateCommand(), transactionsCommand())
	return root
}
