// Command inbox-pipeline is documented by its --help.
package main

import (
	"os"

	"github.com/delivered-twice/delivered-twice/internal/cli"
)

func main() { os.Exit(cli.InboxPipeline(os.Args[1:])) }
