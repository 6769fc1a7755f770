package sekalivet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// toTransaction suggests the transaction in the place of a pool, where there is
// one in the function and its method is the same.
func (w *walk) toTransaction(sel *ast.SelectorExpr, callee *types.Func, stack []ast.Node) []analysis.SuggestedFix {
	if starts[callee.Name()] || len(stack) == 0 {
		return nil
	}
	var tx *types.Var
	for i := range w.fn.sig.Params().Len() {
		p := w.fn.sig.Params().At(i)
		if isTransaction(p.Type()) && w.carries(i) && p.Name() != "" && p.Name() != "_" {
			if tx != nil {
				return nil
			}
			tx = p
		}
	}
	if tx == nil {
		return nil
	}
	obj, _, _ := types.LookupFieldOrMethod(tx.Type(), true, w.Pkg, callee.Name())
	same, ok := obj.(*types.Func)
	if !ok || !types.Identical(same.Signature().Params(), callee.Signature().Params()) || !types.Identical(same.Signature().Results(), callee.Signature().Results()) {
		return nil
	}
	if scope := w.Pkg.Scope().Innermost(sel.Pos()); scope == nil {
		return nil
	} else if _, there := scope.LookupParent(tx.Name(), sel.Pos()); there != tx {
		return nil
	}
	return fix("Use the message's transaction", analysis.TextEdit{Pos: sel.X.Pos(), End: sel.X.End(), NewText: []byte(tx.Name())})
}

func fix(message string, edits ...analysis.TextEdit) []analysis.SuggestedFix {
	return []analysis.SuggestedFix{{Message: message, TextEdits: edits}}
}

// withoutEnd suggests to leave a Commit out, or a deferred Rollback. Any other
// Rollback means that nothing is to be committed: that must be said by an
// error, which only its author knows.
func (w *walk) withoutEnd(call *ast.CallExpr, name string, stack []ast.Node) []analysis.SuggestedFix {
	if len(stack) == 0 {
		return nil
	}
	switch parent := stack[len(stack)-1].(type) {
	case *ast.ExprStmt:
		if name == "Commit" {
			return fix("Leave the commit to Sekali", w.cut(parent))
		}
	case *ast.DeferStmt:
		return fix("Leave the rollback to Sekali", w.cut(parent))
	case *ast.ReturnStmt:
		if name == "Commit" && len(parent.Results) == 1 {
			return fix("Leave the commit to Sekali", analysis.TextEdit{Pos: call.Pos(), End: call.End(), NewText: []byte("nil")})
		}
	}
	return nil
}

// cut takes a statement out, and its line if nothing else stands there.
func (w *walk) cut(s ast.Stmt) analysis.TextEdit {
	f := w.Fset.File(s.Pos())
	first, last := f.Line(s.Pos()), f.Line(s.End())
	if last >= f.LineCount() {
		return analysis.TextEdit{Pos: s.Pos(), End: s.End()}
	}
	source, err := w.ReadFile(f.Name())
	if err != nil {
		return analysis.TextEdit{Pos: s.Pos(), End: s.End()}
	}
	start, end := f.Offset(f.LineStart(first)), f.Offset(f.LineStart(last+1))
	alone := end <= len(source) && strings.TrimSpace(string(source[start:f.Offset(s.Pos())])) == "" &&
		strings.TrimSpace(string(source[f.Offset(s.End()):end])) == ""
	if !alone {
		return analysis.TextEdit{Pos: s.Pos(), End: s.End()}
	}
	return analysis.TextEdit{Pos: f.LineStart(first), End: f.LineStart(last + 1)}
}

// returnError suggests to return the error of a call that stands alone, in a
// function that returns an error and nothing else.
func (w *walk) returnError(call *ast.CallExpr, s *ast.ExprStmt, stack []ast.Node) []analysis.SuggestedFix {
	if s == nil || len(stack) == 0 {
		return nil
	}
	if _, inBlock := stack[len(stack)-1].(*ast.BlockStmt); !inBlock {
		return nil
	}
	sig := w.fn.sig
	for i := len(stack) - 1; i >= 0; i-- {
		if lit, ok := stack[i].(*ast.FuncLit); ok {
			sig, _ = w.TypesInfo.TypeOf(lit).(*types.Signature)
			break
		}
	}
	if sig == nil || sig.Results().Len() != 1 || !isError(sig.Results().At(0).Type()) {
		return nil
	}
	n, _ := endsInError(w.TypesInfo, call)
	before := fmt.Sprintf("if %serr := ", strings.Repeat("_, ", n-1))
	return fix("Return the error",
		analysis.TextEdit{Pos: s.Pos(), End: token.NoPos, NewText: []byte(before)},
		analysis.TextEdit{Pos: s.End(), End: token.NoPos, NewText: []byte("; err != nil {\nreturn err\n}")})
}
