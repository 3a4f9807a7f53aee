// Command payments-api is documented by its --help.
package main

import (
	"os"

	"github.com/delivered-twice/delivered-twice/internal/cli"
)

func main() { os.Exit(cli.PaymentsAPI(os.Args[1:])) }
