// Command sekali: demo, migrate, deadletters; see sekali --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sekali/sekali/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
