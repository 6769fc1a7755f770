package sekalivet

import (
	"go/ast"
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const allowPrefix = "//sekalivet:allow"

// allowed is a comment that allows what is found on its own line and, if
// nothing stands before it there, on the next one.
type allowed struct {
	reason string
	pos    token.Pos
	used   bool
}

// line is a line of a file.
type line struct {
	file string
	line int
}

// allowances are the comments of a package, by the lines that they speak of.
type allowances struct {
	fset *token.FileSet
	at   map[line][]*allowed
	all  []*allowed
}

func newAllowances(fset *token.FileSet, files []*ast.File) *allowances {
	a := &allowances{fset: fset, at: map[line][]*allowed{}}
	for _, f := range files {
		for _, group := range f.Comments {
			for _, c := range group.List {
				a.add(f, c)
			}
		}
	}
	return a
}

func (a *allowances) add(f *ast.File, c *ast.Comment) {
	rest, is := strings.CutPrefix(c.Text, allowPrefix)
	if !is || rest != "" && !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "\t") {
		return
	}
	rest, _, _ = strings.Cut(rest, "//") // a remark on the comment
	one := &allowed{reason: strings.TrimSpace(rest), pos: c.Pos()}
	a.all = append(a.all, one)
	p := a.fset.Position(c.Pos())
	lines := []int{p.Line}
	if a.alone(f, p.Line) {
		lines = append(lines, p.Line+1)
	}
	for _, n := range lines {
		l := line{p.Filename, n}
		a.at[l] = append(a.at[l], one)
	}
}

// alone tells whether no code stands on a line of a file.
func (a *allowances) alone(f *ast.File, n int) bool {
	alone := true
	ast.Inspect(f, func(node ast.Node) bool {
		switch node.(type) {
		case nil, *ast.Comment, *ast.CommentGroup:
			return false
		}
		if a.fset.Position(node.Pos()).Line == n || a.fset.Position(node.End()).Line == n {
			alone = false
		}
		return alone
	})
	return alone
}

// allows tells whether a comment allows what stands at pos, and notes its use.
// One without a reason allows nothing.
func (a *allowances) allows(pos token.Pos) bool {
	p := a.fset.Position(pos)
	found := false
	for _, one := range a.at[line{p.Filename, p.Line}] {
		one.used = true
		found = found || one.reason != ""
	}
	return found
}

// complaints are findings about the comments themselves.
func (a *allowances) complaints() []analysis.Diagnostic {
	var found []analysis.Diagnostic
	for _, one := range a.all {
		text := ""
		switch {
		case one.reason == "":
			text = allowPrefix + " gives no reason, so it allows nothing: say after it why this is right here"
		case !one.used:
			text = allowPrefix + " has nothing to allow on its line or the next one: remove it"
		}
		if text != "" {
			found = append(found, analysis.Diagnostic{Pos: one.pos, Category: "allow", Message: text})
		}
	}
	return found
}
