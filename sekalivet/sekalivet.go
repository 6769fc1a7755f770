// Package sekalivet finds, in code that uses Sekali, the changes that break its
// promise: they compile, pass the tests on a good day, and give an effect twice
// or none on a bad one. Command sekalivet runs it:
//
//	go vet -vettool=$(which sekalivet) ./...
//
// It looks at the functions that Sekali calls: handlers (Config.Handle,
// HandleBatch, what Inbox.Process is given, Commit functions, the function given
// to pgxstore.Pipelined), Prepare functions and key functions. It finds them
// where they become one (a field of Config, an argument, a returned Commit), as
// literals, functions, method values and what a function of the same package
// returns, and handlers by their signature too. It follows static calls into
// other functions, through facts also into those of other packages; it does not
// see through interfaces and fields that hold functions, where it says nothing.
// What is in _test.go files it leaves alone: tests break rules to see what comes
// of it.
//
// A comment allows what is found on its own line, or on the one below if it
// stands alone, and must say why:
//
//	//sekalivet:allow the label printer is idempotent by order number
//
// docs/sekalivet.md has all checks, with good and bad code.
package sekalivet

import (
	"golang.org/x/tools/go/analysis"
)

// check is one kind of finding.
type check string

const (
	pool    check = "pool"
	end     check = "end"
	ddl     check = "ddl"
	network check = "network"
	effects check = "effect"
	settle  check = "settle"
	dropped check = "error"
	kept    check = "kept"
	key     check = "key"
	parts   check = "parts"
)

const docs = "https://pkg.go.dev/github.com/sekali/sekali/sekalivet"

// Analyzers returns all checks, each an analyzer that can be turned off by its
// name. They keep no state and may run concurrently.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{
		reporter(pool, "the pool, *sql.DB or another connection is used instead of the transaction"),
		reporter(end, "the message's transaction is committed or rolled back by the handler"),
		reporter(ddl, "DDL runs in the message's transaction"),
		reporter(network, "the network is called inside the message's transaction"),
		reporter(effects, "Prepare changes something outside the database without an effect.Ledger"),
		reporter(settle, "a delivery is acknowledged or given back before the message's transaction has committed"),
		reporter(dropped, "the error of a statement in the message's transaction is dropped"),
		reporter(kept, "the message's transaction is kept, or used from a goroutine"),
		reporter(key, "a message key depends on the clock, on chance or on attempts"),
		reporter(parts, "a message key is put together so that two messages can have the same one"),
		allowAnalyzer,
	}
}

// reporter makes the analyzer of one check.
func reporter(c check, what string) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name:     "sekali" + string(c),
		Doc:      "reports where " + what + "\n\nSee docs/sekalivet.md of github.com/sekali/sekali.",
		URL:      docs,
		Requires: []*analysis.Analyzer{scanAnalyzer},
		Run: func(pass *analysis.Pass) (any, error) {
			for _, d := range pass.ResultOf[scanAnalyzer].(*report).findings[c] {
				pass.Report(d)
			}
			return nil, nil
		},
	}
}

// allowAnalyzer reports comments that allow nothing.
var allowAnalyzer = &analysis.Analyzer{
	Name:     "sekaliallow",
	Doc:      "reports //sekalivet:allow comments without a reason, or with nothing to allow",
	URL:      docs,
	Requires: []*analysis.Analyzer{scanAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, d := range pass.ResultOf[scanAnalyzer].(*report).comments {
			pass.Report(d)
		}
		return nil, nil
	},
}
