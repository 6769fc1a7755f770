package sekalivet

import (
	"go/ast"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// report is what the scan of a package found.
type report struct {
	findings map[check][]analysis.Diagnostic
	comments []analysis.Diagnostic
}

// scanAnalyzer looks at a package once, for all checks.
var scanAnalyzer = &analysis.Analyzer{
	Name:       "sekaliscan",
	Doc:        "finds out what handlers and key functions of Sekali do, and what they call\n\nIt reports nothing itself.",
	URL:        docs,
	FactTypes:  []analysis.Fact{(*does)(nil)},
	ResultType: reflect.TypeFor[*report](),
	Run: func(pass *analysis.Pass) (any, error) {
		if isStandard(pass) || isLibrary(pass) {
			return &report{}, nil
		}
		return newScan(pass).run(), nil
	},
}

// isStandard tells whether a package is the standard library's: what matters
// there is known by name, and nothing of it is followed.
func isStandard(pass *analysis.Pass) bool {
	first, _, _ := strings.Cut(pass.Pkg.Path(), "/")
	if first == "vendor" {
		return true
	}
	inModule := pass.Module != nil && pass.Module.Path != ""
	return !inModule && !strings.Contains(first, ".") && first != "command-line-arguments" && pass.Pkg.Name() != "main"
}

// isLibrary tells whether a package is one of another module that is not looked
// into.
func isLibrary(pass *analysis.Pass) bool {
	return pass.Module != nil && pass.Module.Version != "" && isOpaque(pass.Pkg.Path())
}

// scan is the look at one package.
type scan struct {
	*analysis.Pass
	allow *allowances
	// decls are the functions that this package declares.
	decls map[*types.Func]*function
	// functions are the same in the order of the source: what a function that
	// calls itself through others does depends on where one begins.
	functions []*function
	// literals are the function literals that are functions of their own here:
	// the others count as part of the function around them.
	literals map[*ast.FuncLit]*function
	entries  []entry
	seen     map[entryID]bool
	// marked are functions of which what they return has taken a role.
	marked map[entryID]bool
}

// function is one with its body: a declared one or a literal.
type function struct {
	obj  *types.Func // nil: a literal
	node ast.Node
	sig  *types.Signature
	kind *ast.FuncType
	body *ast.BlockStmt
	// around is the function that a literal stands in.
	around *function

	roles map[int]role
	done  bool // or being done
	deeds []deed
	// keyDone and keyDeeds are the same for what its results are made of: what
	// they must not be where they are a part of a key.
	keyDone  bool
	keyDeeds []deed
}

func newScan(pass *analysis.Pass) *scan {
	return &scan{
		Pass:     pass,
		allow:    newAllowances(pass.Fset, pass.Files),
		decls:    map[*types.Func]*function{},
		literals: map[*ast.FuncLit]*function{},
		seen:     map[entryID]bool{},
		marked:   map[entryID]bool{},
	}
}

func (s *scan) run() *report {
	s.collect()
	s.findEntries()
	for _, f := range s.functions {
		s.deedsOf(f)
	}
	s.exportFacts()
	r := &report{findings: s.judge()}
	if s.ofUser() {
		r.comments = s.allow.complaints()
	}
	return r
}

// ofUser tells whether the package is one that its user can change: facts of
// other modules matter, complaints about their comments do not.
func (s *scan) ofUser() bool { return s.Module == nil || s.Module.Version == "" }

// collect lists the functions of the package, and the literals that are
// functions of their own because they run later, if at all.
func (s *scan) collect() {
	for _, file := range s.Files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			if obj, ok := s.TypesInfo.Defs[decl.Name].(*types.Func); ok {
				f := &function{obj: obj, node: decl, sig: obj.Signature(), kind: decl.Type, body: decl.Body, roles: map[int]role{}}
				s.decls[obj] = f
				s.functions = append(s.functions, f)
			}
		}
		ast.PreorderStack(file, nil, func(n ast.Node, stack []ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok && s.runsLater(stack) {
				s.own(lit, stack)
			}
			return true
		})
	}
}

// own makes a literal a function of its own.
func (s *scan) own(lit *ast.FuncLit, stack []ast.Node) *function {
	f := s.literals[lit]
	if f == nil {
		sig, ok := s.TypesInfo.TypeOf(lit).(*types.Signature)
		if !ok {
			return nil
		}
		f = &function{node: lit, sig: sig, kind: lit.Type, body: lit.Body, roles: map[int]role{}}
		s.literals[lit] = f
	}
	if f.around == nil {
		f.around = s.around(stack)
	}
	return f
}

// around returns the innermost function of its own in a stack.
func (s *scan) around(stack []ast.Node) *function {
	for i := len(stack) - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.FuncLit:
			if f := s.literals[n]; f != nil {
				return f
			}
		case *ast.FuncDecl:
			if obj, ok := s.TypesInfo.Defs[n.Name].(*types.Func); ok {
				return s.decls[obj]
			}
		}
	}
	return nil
}

// runsLater tells whether the literal below a stack does not run where it
// stands: it is returned, or is the call of an effect, which has its rules.
func (s *scan) runsLater(stack []ast.Node) bool {
	if len(stack) == 0 {
		return false
	}
	switch parent := stack[len(stack)-1].(type) {
	case *ast.ReturnStmt:
		return true
	case *ast.CallExpr:
		f := calleeOf(s.TypesInfo, parent)
		return f != nil && isEffect(f)
	}
	return false
}

// exportFacts tells other packages what functions of this one do.
func (s *scan) exportFacts() {
	for _, f := range s.functions {
		fact := &does{Deeds: slices.Concat(f.deeds, s.keyDeedsOf(f)), Roles: f.roles}
		if len(fact.Deeds)+len(fact.Roles) > 0 && f.obj.Pkg() == s.Pkg {
			s.ExportObjectFact(f.obj, fact)
		}
	}
}

// deedsOf returns what a function does, looking at it if nobody has yet. A
// function that calls itself does nothing more by it.
func (s *scan) deedsOf(f *function) []deed {
	if !f.done {
		f.done = true
		newWalk(s, f).run()
	}
	return f.deeds
}

// summaryOf returns what a called function does: of this package, or by the
// fact that its own package exported.
func (s *scan) summaryOf(callee *types.Func) (deeds []deed) {
	if f := s.decls[callee]; f != nil {
		return s.deedsOf(f)
	}
	if fact := s.factOf(callee); fact != nil {
		for _, d := range fact.Deeds {
			if d.Check != key && d.Check != parts {
				deeds = append(deeds, d)
			}
		}
	}
	return deeds
}

// factOf returns the fact about a function of another package, nil if there
// is none.
func (s *scan) factOf(callee *types.Func) *does {
	fact := new(does)
	if callee.Pkg() == nil || callee.Pkg() == s.Pkg || isOpaque(callee.Pkg().Path()) || !s.ImportObjectFact(callee, fact) {
		return nil
	}
	return fact
}
