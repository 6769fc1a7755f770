// Command sekalivet checks code that uses Sekali:
//
//	go vet -vettool=$(which sekalivet) ./...
//
// It also runs by itself: sekalivet ./...
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/sekali/sekali/sekalivet"
)

func main() { multichecker.Main(sekalivet.Analyzers()...) }
