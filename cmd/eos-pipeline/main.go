// Command eos-pipeline is documented by its --help.
package main

import (
	"os"

	"github.com/delivered-twice/delivered-twice/internal/cli"
)

func main() { os.Exit(cli.EOSPipeline(os.Args[1:])) }
