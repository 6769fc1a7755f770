// Command sekalivet checks code that uses Sekali:
//
//	go vet -vettool=$(which sekalivet) ./...
//
// It also runs by itself: sekalivet ./...
package main

import (
	"os"

	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/sekali/sekali/sekalivet"
)

func main() {
	os.Args = append(os.Args[:1], wholeUnit(os.Args[1:])...)
	multichecker.Main(sekalivet.Analyzers()...)
}
