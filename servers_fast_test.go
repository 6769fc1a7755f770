//go:build fast

package sekali_test

import "fmt"

func serverRacer(kind, _ string) error { return fmt.Errorf("no racer for %s without servers", kind) }
