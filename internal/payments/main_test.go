package payments_test

import (
	"testing"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	process.Register(cli.PaymentsAPIName, cli.PaymentsAPI)
	sandboxtest.Main(m)
}
