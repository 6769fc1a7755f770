package sekalivet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

const whyDropped = "drops the error of a statement in the message's transaction: with nil from the handler Sekali commits the key, and the" +
	" message is never processed again, without its effect (on PostgreSQL the commit fails; on MySQL a deadlock has undone everything" +
	" before); return the error"

// onTransaction returns the parameter that a call which can fail works on:
// statements of the transaction, and functions that are given it.
func (w *walk) onTransaction(call *ast.CallExpr) int {
	if _, fails := endsInError(w.TypesInfo, call); !fails || w.isHarmless(call) {
		return nobody
	}
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		if i := w.session(sel.X); i >= 0 {
			return i
		}
	}
	for _, a := range call.Args {
		if i := w.session(a); i >= 0 {
			return i
		}
	}
	return nobody
}

// isHarmless tells of calls whose errors say nothing about the effect, or are
// another check's.
func (w *walk) isHarmless(call *ast.CallExpr) bool {
	f := calleeOf(w.TypesInfo, call)
	if f == nil {
		return false
	}
	if f.Pkg() != nil && slices.Contains([]string{"fmt", "log", "log/slog", "encoding/json", "io"}, f.Pkg().Path()) {
		return true
	}
	switch f.Name() {
	case "Close":
		return !strings.HasPrefix(nameOf(f), "BatchResults")
	case "Commit", "Rollback", "RowsAffected", "LastInsertId", "Begin", "BeginTx", "Savepoint":
		return true
	}
	return false
}

// drop notes that the error of a call is dropped.
func (w *walk) drop(call *ast.CallExpr, at ast.Node, stack []ast.Node, statement *ast.ExprStmt) {
	if i := w.onTransaction(call); i >= 0 {
		what := types.ExprString(call.Fun)
		if _, chained := ast.Unparen(call.Fun).(*ast.SelectorExpr); chained && strings.Contains(what, "(") {
			what = "…." + ast.Unparen(call.Fun).(*ast.SelectorExpr).Sel.Name
		}
		w.note(dropped, i, at, what, whyDropped, w.returnError(call, statement, stack)...)
	}
}

// discarded looks at a call whose results nobody takes. n is nil for one that
// is deferred or beside.
func (w *walk) discarded(e ast.Expr, n *ast.ExprStmt, stack []ast.Node) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return
	}
	if f := calleeOf(w.TypesInfo, call); n == nil && f != nil && f.Name() == "Close" {
		return
	}
	w.drop(call, call, stack, n)
}

// blank looks for an error that goes to _.
func (w *walk) blank(a *ast.AssignStmt) {
	if len(a.Rhs) != 1 {
		return
	}
	call, ok := ast.Unparen(a.Rhs[0]).(*ast.CallExpr)
	if !ok || !isBlank(a.Lhs[len(a.Lhs)-1]) {
		return
	}
	w.drop(call, a, nil, nil)
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// errorOf returns the variable that takes the error of an assigned call, and
// the parameter that the call works on.
func (w *walk) errorOf(s ast.Stmt) (v types.Object, subject int) {
	a, ok := s.(*ast.AssignStmt)
	if !ok || len(a.Rhs) != 1 {
		return nil, nobody
	}
	call, ok := ast.Unparen(a.Rhs[0]).(*ast.CallExpr)
	id, isIdent := a.Lhs[len(a.Lhs)-1].(*ast.Ident)
	if !ok || !isIdent || id.Name == "_" {
		return nil, nobody
	}
	if v = w.TypesInfo.ObjectOf(id); v == nil {
		return nil, nobody
	}
	return v, w.onTransaction(call)
}

// unread looks for an error that is never read: overwritten by the next
// statement that knows it, or not mentioned again.
func (w *walk) unread(a *ast.AssignStmt, stack []ast.Node) {
	v, subject := w.errorOf(a)
	if subject < 0 || len(stack) == 0 || !w.owns(v) || w.isResult(v) || inLoop(stack) {
		return
	}
	block, ok := stack[len(stack)-1].(*ast.BlockStmt)
	if !ok {
		return
	}
	i := slices.Index(block.List, ast.Stmt(a))
	for _, next := range block.List[i+1:] {
		if !w.reads(next, v) && !w.sets(next, v) {
			continue
		}
		if w.sets(next, v) && !w.reads(next, v) {
			w.note(dropped, subject, a, types.ExprString(ast.Unparen(a.Rhs[0]).(*ast.CallExpr).Fun), whyDropped)
		}
		return
	}
	if !w.readAfter(v, a.End()) {
		w.note(dropped, subject, a, types.ExprString(ast.Unparen(a.Rhs[0]).(*ast.CallExpr).Fun), whyDropped)
	}
}

func inLoop(stack []ast.Node) bool {
	return slices.ContainsFunc(stack, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt, *ast.FuncLit:
			return true
		}
		return false
	})
}

// isResult tells whether a variable is a named result of the function, which
// every return reads.
func (w *walk) isResult(v types.Object) bool {
	for i := range w.fn.sig.Results().Len() {
		if w.fn.sig.Results().At(i) == v {
			return true
		}
	}
	return false
}

// sets tells whether a statement is an assignment to a variable.
func (w *walk) sets(s ast.Stmt, v types.Object) bool {
	a, ok := s.(*ast.AssignStmt)
	return ok && slices.ContainsFunc(a.Lhs, func(left ast.Expr) bool {
		id, ok := left.(*ast.Ident)
		return ok && w.TypesInfo.ObjectOf(id) == v
	})
}

// reads tells whether a variable is used in a node otherwise than to be set.
func (w *walk) reads(n ast.Node, v types.Object) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, right := range a.Rhs {
				found = found || w.reads(right, v)
			}
			for _, left := range a.Lhs {
				if _, plain := left.(*ast.Ident); !plain {
					found = found || w.reads(left, v)
				}
			}
			return false
		}
		if id, ok := n.(*ast.Ident); ok && w.TypesInfo.ObjectOf(id) == v {
			found = true
		}
		return !found
	})
	return found
}

// readAfter tells whether a variable is mentioned behind a position.
func (w *walk) readAfter(v types.Object, after token.Pos) bool {
	found := false
	ast.Inspect(w.fn.body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Pos() >= after && w.TypesInfo.ObjectOf(id) == v {
			found = true
		}
		return !found
	})
	return found
}

// swallowed looks for "if err != nil" that does not hand the error on.
func (w *walk) swallowed(n *ast.IfStmt, stack []ast.Node) {
	v := w.comparedToNil(n.Cond)
	if v == nil {
		return
	}
	before := n.Init
	if before == nil && len(stack) > 0 {
		if block, ok := stack[len(stack)-1].(*ast.BlockStmt); ok {
			if i := slices.Index(block.List, ast.Stmt(n)); i > 0 {
				before = block.List[i-1]
			}
		}
	}
	from, subject := w.errorOf(before)
	if from != v || subject < 0 || !w.isIgnoredIn(n.Body, v) {
		return
	}
	if !leaves(n.Body) && n.Init == nil && (w.isResult(v) || inLoop(stack) || w.readAfter(v, n.End())) {
		return
	}
	w.note(dropped, subject, before, types.ExprString(ast.Unparen(before.(*ast.AssignStmt).Rhs[0]).(*ast.CallExpr).Fun), whyDropped)
}

// comparedToNil returns the variable of a condition "err != nil".
func (w *walk) comparedToNil(cond ast.Expr) types.Object {
	b, ok := ast.Unparen(cond).(*ast.BinaryExpr)
	if !ok || b.Op != token.NEQ {
		return nil
	}
	id, ok := ast.Unparen(b.X).(*ast.Ident)
	if y, isIdent := ast.Unparen(b.Y).(*ast.Ident); !ok || !isIdent || y.Name != "nil" {
		return nil
	}
	v := w.TypesInfo.ObjectOf(id)
	if v == nil || !isError(v.Type()) {
		return nil
	}
	return v
}

// leaves tells whether a block ends in a return.
func leaves(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	_, is := b.List[len(b.List)-1].(*ast.ReturnStmt)
	return is
}

// isIgnoredIn tells whether a block does nothing with an error but write it to
// a log, and returns no error.
func (w *walk) isIgnoredIn(b *ast.BlockStmt, v types.Object) bool {
	ignored := true
	ast.Inspect(b, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ReturnStmt:
			ignored = ignored && len(n.Results) > 0 && isNil(n.Results[len(n.Results)-1])
			return false
		case *ast.BranchStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
			ignored = false
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && w.isLogging(call) {
				return false
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "panic" {
				ignored = false
			}
			// It may be what mends it: a savepoint, a second try.
			ignored = ignored && w.onTransaction(n) < 0
		case *ast.Ident:
			if w.TypesInfo.ObjectOf(n) == v {
				ignored = false
			}
		}
		return ignored
	})
	return ignored
}

func isNil(e ast.Expr) bool {
	id, ok := ast.Unparen(e).(*ast.Ident)
	return ok && id.Name == "nil"
}

// isLogging tells whether a call writes to a log and comes back.
func (w *walk) isLogging(call *ast.CallExpr) bool {
	f := calleeOf(w.TypesInfo, call)
	if f == nil || f.Pkg() == nil || strings.HasPrefix(f.Name(), "Fatal") || strings.HasPrefix(f.Name(), "Panic") {
		return false
	}
	path := plainPath(f.Pkg().Path())
	return path == "log" || path == "log/slog" || strings.HasPrefix(f.Name(), "Print") || strings.HasPrefix(f.Name(), "Fprint") ||
		isBelow(path, []string{"go.uber.org/zap", "github.com/sirupsen/logrus", "github.com/rs/zerolog", "github.com/go-kit/log"})
}

// unreadRows looks for rows that are read to their end without asking whether
// that was an error.
func (w *walk) unreadRows(a *ast.AssignStmt) {
	if len(a.Rhs) != 1 || len(a.Lhs) == 0 {
		return
	}
	call, ok := ast.Unparen(a.Rhs[0]).(*ast.CallExpr)
	id, isIdent := a.Lhs[0].(*ast.Ident)
	if !ok || !isIdent || id.Name == "_" {
		return
	}
	v := w.TypesInfo.ObjectOf(id)
	if v == nil || !isDatabase(v.Type()) {
		return
	}
	if _, name := typeName(v.Type()); name != "Rows" || !w.iterates(v) {
		return
	}
	if subject := w.onTransaction(call); subject >= 0 {
		w.note(dropped, subject, a, id.Name+".Next without "+id.Name+".Err", whyDropped)
	}
}

// iterates tells whether rows are gone through by Next, and neither Err asked
// nor the rows handed on.
func (w *walk) iterates(rows types.Object) bool {
	next, asked := false, false
	ast.PreorderStack(w.fn.body, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || w.TypesInfo.Uses[id] != rows {
			return true
		}
		sel, ok := stack[len(stack)-1].(*ast.SelectorExpr)
		switch {
		case !ok || sel.Sel.Name == "Err":
			asked = true
		case sel.Sel.Name == "Next":
			next = true
		}
		return true
	})
	return next && !asked
}

const whyRecovered = "in the message's transaction makes a panic a success: the handler returns nil, and Sekali commits what was done" +
	" until then; leave it out, for Sekali takes panics for failures, or set a named result to an error"

// recovers looks for a deferred recover that ends a panic with the function's
// result as it was: nil, unless the result has a name.
func (w *walk) recovers(call *ast.CallExpr, stack []ast.Node) {
	id, ok := ast.Unparen(call.Fun).(*ast.Ident)
	if !ok || id.Name != "recover" || w.TypesInfo.Uses[id] != types.Universe.Lookup("recover") {
		return
	}
	for i := len(stack) - 1; i >= 2; i-- {
		lit, ok := stack[i].(*ast.FuncLit)
		if !ok {
			continue
		}
		if _, deferred := stack[i-2].(*ast.DeferStmt); !deferred || slices.ContainsFunc(stack[:i], isLiteral) {
			return
		}
		results, panics := w.fn.sig.Results(), false
		ast.Inspect(lit, func(n ast.Node) bool {
			again, ok := n.(*ast.Ident)
			panics = panics || ok && again.Name == "panic"
			return true
		})
		if n := results.Len(); n > 0 && isError(results.At(n-1).Type()) && results.At(n-1).Name() == "" && !panics {
			w.note(dropped, nobody, call, "recover", whyRecovered)
		}
		return
	}
}

func isLiteral(n ast.Node) bool {
	_, is := n.(*ast.FuncLit)
	return is
}
