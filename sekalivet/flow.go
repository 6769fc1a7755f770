package sekalivet

import (
	"go/ast"
	"go/token"
	"go/types"
)

// flow tells what the expressions of one function have to do with its
// parameters. It knows no order of statements: a variable is what all of its
// assignments say.
type flow struct {
	info *types.Info
	fn   *function
	// defs are what variables of the function are set to; nil stands for
	// something that is no expression, such as an element of a range.
	defs map[types.Object][]ast.Expr
	// results are, of variables that take one of several results of a call, the
	// index of that.
	results map[types.Object]int
}

func newFlow(info *types.Info, fn *function) *flow {
	f := &flow{info: info, fn: fn, defs: map[types.Object][]ast.Expr{}, results: map[types.Object]int{}}
	ast.Inspect(fn.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			f.assigned(n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			left := make([]ast.Expr, len(n.Names))
			for i, name := range n.Names {
				left[i] = name
			}
			if len(n.Values) > 0 {
				f.assigned(left, n.Values)
			}
		case *ast.RangeStmt:
			f.assigned([]ast.Expr{n.Key, n.Value}, []ast.Expr{n.X, n.X})
		}
		return true
	})
	return f
}

func (f *flow) assigned(left, right []ast.Expr) {
	for i, l := range left {
		id, ok := l.(*ast.Ident)
		if !ok || f.info.ObjectOf(id) == nil {
			continue
		}
		obj := f.info.ObjectOf(id)
		value := right[0]
		if len(left) == len(right) {
			value = right[i]
		} else {
			f.results[obj] = i
		}
		f.defs[obj] = append(f.defs[obj], value)
	}
}

// param returns the index of the parameter that an expression is, through
// variables and type assertions; nobody if it is none.
func (f *flow) param(e ast.Expr) int { return f.paramOf(e, map[types.Object]bool{}) }

func (f *flow) paramOf(e ast.Expr, seen map[types.Object]bool) int {
	switch e := ast.Unparen(e).(type) {
	case *ast.TypeAssertExpr:
		return f.paramOf(e.X, seen)
	case *ast.StarExpr:
		return f.paramOf(e.X, seen)
	case *ast.UnaryExpr:
		if e.Op == token.AND {
			return f.paramOf(e.X, seen)
		}
	case *ast.Ident:
		v, ok := f.info.ObjectOf(e).(*types.Var)
		if !ok || seen[v] {
			return nobody
		}
		if i := indexOf(f.fn.sig, v); i >= 0 {
			return i
		}
		seen[v] = true
		found := nobody
		for _, value := range f.defs[v] {
			i := f.paramOf(value, seen)
			if i == nobody || found != nobody && found != i {
				return nobody
			}
			found = i
		}
		return found
	}
	return nobody
}

// holder returns the index of the parameter that an expression is or was made
// of, as queries.New(tx), q.WithTx(tx) and &repo{tx} are; nobody if of none.
func (f *flow) holder(e ast.Expr) int { return f.holderOf(e, map[types.Object]bool{}) }

func (f *flow) holderOf(e ast.Expr, seen map[types.Object]bool) int {
	if i := f.param(e); i >= 0 {
		return i
	}
	var parts []ast.Expr
	switch e := ast.Unparen(e).(type) {
	case *ast.TypeAssertExpr:
		parts = []ast.Expr{e.X}
	case *ast.StarExpr:
		parts = []ast.Expr{e.X}
	case *ast.UnaryExpr:
		parts = []ast.Expr{e.X}
	case *ast.KeyValueExpr:
		parts = []ast.Expr{e.Value}
	case *ast.CompositeLit:
		parts = e.Elts
	case *ast.SelectorExpr:
		parts = []ast.Expr{e.X}
	case *ast.IndexExpr:
		parts = []ast.Expr{e.X}
	case *ast.CallExpr:
		if sel, ok := ast.Unparen(e.Fun).(*ast.SelectorExpr); ok {
			parts = append(parts, sel.X)
		}
		parts = append(parts, e.Args...)
	case *ast.Ident:
		v, ok := f.info.ObjectOf(e).(*types.Var)
		if !ok || seen[v] {
			return nobody
		}
		seen[v] = true
		parts = f.defs[v]
	}
	for _, part := range parts {
		if i := f.holderOf(part, seen); i >= 0 && f.carries(i) {
			return i
		}
	}
	return nobody
}

// carries tells whether a parameter can be, or hold, a transaction: a context,
// a message and plain data cannot.
func (f *flow) carries(i int) bool {
	t := types.Unalias(f.fn.sig.Params().At(i).Type())
	if isMessage(t) || isType(t, "context", "Context") || isPool(t) {
		return false
	}
	switch t.Underlying().(type) {
	case *types.Interface, *types.Pointer, *types.Struct:
		return true
	}
	return false
}

// mentions returns the parameter that is the subject of i among those that
// occur in a node.
func (f *flow) mentions(n ast.Node, i int) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && f.param(id) == i {
			found = true
		}
		return !found
	})
	return found
}

// owns tells whether a variable is declared within the function, as a
// parameter or in its body.
func (f *flow) owns(v types.Object) bool {
	return f.fn.node.Pos() <= v.Pos() && v.Pos() < f.fn.node.End()
}

// root returns the variable at the root of a selector or an index: s of
// s.repo.tx.
func (f *flow) root(e ast.Expr) *types.Var {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.SelectorExpr:
			if v, ok := f.info.Uses[x.Sel].(*types.Var); ok && !v.IsField() {
				return v // of another package
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.Ident:
			v, _ := f.info.ObjectOf(x).(*types.Var)
			return v
		default:
			return nil
		}
	}
}
