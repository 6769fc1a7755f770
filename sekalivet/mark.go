package sekalivet

import (
	"go/ast"
	"go/types"
	"slices"
)

// mark says that the function that an expression stands for takes a role.
func (s *scan) mark(e ast.Expr, r role, stack []ast.Node) {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		if f := s.own(e, stack); f != nil {
			s.enter(entry{role: r, fn: f})
		}
	case *ast.IndexExpr:
		s.mark(e.X, r, stack)
	case *ast.IndexListExpr:
		s.mark(e.X, r, stack)
	case *ast.Ident:
		s.markObject(s.TypesInfo.Uses[e], e, r, stack)
	case *ast.SelectorExpr:
		s.markObject(s.TypesInfo.Uses[e.Sel], e, r, stack)
	case *ast.CallExpr:
		s.markResult(e, r, stack)
	}
}

func (s *scan) markObject(obj types.Object, e ast.Expr, r role, stack []ast.Node) {
	switch obj := obj.(type) {
	case *types.Func:
		obj = obj.Origin()
		if f := s.decls[obj]; f != nil {
			s.enter(entry{role: r, fn: f})
			return
		}
		if s.roleByShape(obj.Signature()) == "" { // else reported where it is declared
			s.enter(entry{role: r, callee: obj, pos: e.Pos()})
		}
	case *types.Var:
		for f := s.around(stack); f != nil; f = f.around {
			if i := indexOf(f.sig, obj); i >= 0 {
				f.roles[i] = r
				return
			}
		}
		s.markVariable(obj, r, stack)
	}
}

// indexOf returns the index of a parameter, below 0 if it is none.
func indexOf(sig *types.Signature, v *types.Var) int {
	for i := range sig.Params().Len() {
		if sig.Params().At(i) == v {
			return i
		}
	}
	return nobody
}

// markVariable marks what a local variable is set to, in the function around.
func (s *scan) markVariable(v *types.Var, r role, stack []ast.Node) {
	if v.IsField() || len(stack) < 2 || stack[1] == nil {
		return
	}
	ast.PreorderStack(stack[1], stack[:1], func(n ast.Node, inner []ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || len(a.Lhs) != len(a.Rhs) {
			return true
		}
		for i, left := range a.Lhs {
			id, ok := left.(*ast.Ident)
			if !ok || s.TypesInfo.ObjectOf(id) != v {
				continue
			}
			switch value := ast.Unparen(a.Rhs[i]).(type) {
			case *ast.FuncLit, *ast.CallExpr:
				s.mark(value, r, append(slices.Clone(inner), n))
			}
		}
		return true
	})
}

// markResult marks the function that a call returns: what the called function
// of this package returns, and what it was given of the same kind, for it may
// be a wrapper.
func (s *scan) markResult(call *ast.CallExpr, r role, stack []ast.Node) {
	want := s.TypesInfo.TypeOf(call)
	callee := calleeOf(s.TypesInfo, call)
	if callee == nil || want == nil || isOpaque(pathOf(callee)) {
		return
	}
	for _, a := range call.Args {
		if t := s.TypesInfo.TypeOf(a); t != nil && types.Identical(t.Underlying(), want.Underlying()) {
			s.mark(a, r, stack)
		}
	}
	f := s.decls[callee]
	if f == nil || s.marked[entryID{r, f, nil}] {
		return
	}
	s.marked[entryID{r, f, nil}] = true
	ast.PreorderStack(f.node, nil, func(n ast.Node, inner []ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			for _, e := range n.Results {
				if t := s.TypesInfo.TypeOf(e); t != nil && isFunction(t) {
					s.mark(e, r, append(slices.Clone(inner), n))
				}
			}
		}
		return true
	})
}

func isFunction(t types.Type) bool {
	_, is := t.Underlying().(*types.Signature)
	return is
}

func pathOf(f *types.Func) string {
	if f.Pkg() == nil {
		return ""
	}
	return f.Pkg().Path()
}
