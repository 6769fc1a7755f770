package sekalivet

import (
	"fmt"
	"go/token"
	"path/filepath"
	"slices"

	"golang.org/x/tools/go/analysis"
)

// nobody is the Subject of a deed that is wrong whatever the function is given.
const nobody = -1

// maxVia is how long a chain of calls a deed carries in its message.
const maxVia = 6

// deed is something that a function does, itself or through what it calls, and
// that it must not do when Sekali calls it. Its exported fields travel to
// other packages in facts.
type deed struct {
	Check check
	// Subject is the index of the parameter that it is done to: it matters only
	// where that is the transaction. For what is wrong with a key it is the index
	// of the result that it is wrong with, nobody: of any.
	Subject int
	// What is the offending call, in the words of its message.
	What string
	// Why is the cause and the mend.
	Why string
	// Sends tells of a call of the network that it may change something there:
	// what only asks may stand in Prepare.
	Sends bool
	// Via are the functions between the one that has this deed and the one
	// with the offending line, outermost first.
	Via []string
	// Where is that line, for messages in other packages.
	Where string

	pos   token.Pos
	fixes []analysis.SuggestedFix
}

// does is the fact about a function: what it does.
type does struct {
	Deeds []deed
	// Roles are what parameters that are functions become.
	Roles map[int]role
}

func (*does) AFact() {}

func (d *does) String() string {
	text := "does"
	for _, deed := range d.Deeds {
		text += fmt.Sprintf(" %s(%d)", deed.Check, deed.Subject)
	}
	return text
}

// through returns the deed as one of a caller of the function that has it.
func (d deed) through(callee string, subject int) deed {
	d.Subject = subject
	d.Via = append([]string{callee}, d.Via...)
	if len(d.Via) > maxVia {
		d.Via = slices.Delete(slices.Clone(d.Via), maxVia-1, len(d.Via)-1)
	}
	return d
}

// where says a position as a file of its directory and a line.
func where(fset *token.FileSet, pos token.Pos) string {
	p := fset.Position(pos)
	return fmt.Sprintf("%s:%d", filepath.Base(p.Filename), p.Line)
}
