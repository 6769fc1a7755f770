package sekalivet

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

const (
	whyGoroutine = "uses the message's transaction beside the handler: when that returns, Sekali commits, whatever the goroutine has" +
		" done by then, and its error is lost; do it before the handler returns, in the same goroutine"
	whyKept = "keeps the message's transaction longer than the handler runs: it is over by then, and what is done with it fails or" +
		" happens to another message; keep the data instead"
)

// startsGoroutine tells whether a function runs one that it is given beside
// the caller, or later.
func startsGoroutine(f *types.Func) bool {
	if f.Pkg() == nil {
		return false
	}
	path, name := plainPath(f.Pkg().Path()), f.Name()
	switch path {
	case "sync", "golang.org/x/sync/errgroup", "github.com/sourcegraph/conc", "github.com/sourcegraph/conc/pool":
		return name == "Go" || name == "TryGo"
	case "time", "context":
		return name == "AfterFunc"
	case "github.com/panjf2000/ants", "github.com/alitto/pond":
		return strings.HasPrefix(name, "Submit") || strings.HasPrefix(name, "Go")
	}
	return false
}

// concurrent looks at a call that runs beside the function, or has something
// run so.
func (w *walk) concurrent(call *ast.CallExpr) {
	for i := range w.fn.sig.Params().Len() {
		if w.carries(i) && w.mentions(call, i) {
			w.note(kept, i, call, "a goroutine", whyGoroutine)
		}
	}
}

// storing looks at what is assigned to something that outlives the function.
func (w *walk) storing(a *ast.AssignStmt) {
	if a.Tok == token.DEFINE || len(a.Lhs) != len(a.Rhs) {
		return
	}
	for i, left := range a.Lhs {
		subject := w.keeps(a.Rhs[i])
		if subject >= 0 && w.outlives(left) {
			w.note(kept, subject, a, types.ExprString(left), whyKept)
		}
	}
}

func (w *walk) sending(n *ast.SendStmt) {
	if subject := w.keeps(n.Value); subject >= 0 {
		w.note(kept, subject, n, types.ExprString(n.Chan)+" <-", whyKept)
	}
}

// storingCall looks at what is put into a container that outlives the function.
func (w *walk) storingCall(call *ast.CallExpr, callee *types.Func) {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok || !isOf(callee, "sync") && !isOf(callee, "sync/atomic") && !isOf(callee, "container/list") {
		return
	}
	switch callee.Name() {
	case "Store", "LoadOrStore", "Swap", "Put", "PushBack", "PushFront":
	default:
		return
	}
	for _, a := range call.Args {
		if subject := w.keeps(a); subject >= 0 && w.outlives(sel) {
			w.note(kept, subject, call, types.ExprString(sel.X), whyKept)
		}
	}
}

// outlives tells whether what is assigned to stays when the function returns:
// a variable from around it, or a part of something that is not its own.
func (w *walk) outlives(left ast.Expr) bool {
	if id, ok := ast.Unparen(left).(*ast.Ident); ok {
		v, is := w.TypesInfo.ObjectOf(id).(*types.Var)
		return is && !w.owns(v)
	}
	root := w.root(left)
	if root == nil {
		return false
	}
	return !w.owns(root) || w.isReceiver(root) || indexOf(w.fn.sig, root) >= 0
}

// keeps returns the parameter that is the transaction and that a value holds;
// nobody if it holds none.
func (w *walk) keeps(e ast.Expr) int {
	if i := w.session(e); i >= 0 {
		return i
	}
	var inside []ast.Expr
	switch e := ast.Unparen(e).(type) {
	case *ast.UnaryExpr:
		inside = []ast.Expr{e.X}
	case *ast.CompositeLit:
		inside = e.Elts
	case *ast.KeyValueExpr:
		inside = []ast.Expr{e.Value}
	case *ast.CallExpr:
		if id, ok := ast.Unparen(e.Fun).(*ast.Ident); ok && id.Name == "append" {
			inside = e.Args
		}
	case *ast.FuncLit:
		for i := range w.fn.sig.Params().Len() {
			if w.carries(i) && w.mentions(e, i) {
				return i
			}
		}
	}
	for _, part := range inside {
		if i := w.keeps(part); i >= 0 {
			return i
		}
	}
	return nobody
}

// session returns the parameter that an expression is, or that it runs
// statements on: the transaction itself, what was made for it, such as
// queries.New(tx), and what it answers with, such as rows.
func (w *walk) session(e ast.Expr) int { return w.sessionOf(e, map[types.Object]bool{}) }

func (w *walk) sessionOf(e ast.Expr, seen map[types.Object]bool) int {
	if i := w.param(e); i >= 0 {
		if w.carries(i) {
			return i
		}
		return nobody
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.StarExpr:
		return w.sessionOf(e.X, seen)
	case *ast.UnaryExpr:
		return w.sessionOf(e.X, seen)
	case *ast.TypeAssertExpr:
		return w.sessionOf(e.X, seen)
	case *ast.CallExpr:
		return w.sessionOfCall(e, seen)
	case *ast.Ident:
		v, ok := w.TypesInfo.ObjectOf(e).(*types.Var)
		if !ok || seen[v] || isError(v.Type()) {
			return nobody
		}
		seen[v] = true
		for _, value := range w.defs[v] {
			// Of several results only what the database answers with counts:
			// loadOrder(ctx, tx) makes an order, which is no session.
			if i := w.sessionOf(value, seen); i >= 0 && (isDatabase(v.Type()) || w.isSingle(value)) {
				return i
			}
		}
	}
	return nobody
}

func (w *walk) isSingle(e ast.Expr) bool {
	_, many := w.TypesInfo.TypeOf(e).(*types.Tuple)
	return !many
}

func (w *walk) sessionOfCall(e *ast.CallExpr, seen map[types.Object]bool) int {
	t := w.TypesInfo.TypeOf(e)
	if t == nil || isError(t) {
		return nobody
	}
	if sel, ok := ast.Unparen(e.Fun).(*ast.SelectorExpr); ok && !strings.HasPrefix(sel.Sel.Name, "Begin") && sel.Sel.Name != "Savepoint" {
		if answers(t) {
			if i := w.sessionOf(sel.X, seen); i >= 0 {
				return i
			}
		}
	}
	if tuple, many := t.(*types.Tuple); many && tuple.Len() > 0 || !isObject(t) {
		return nobody
	}
	for _, a := range e.Args {
		if i := w.sessionOf(a, seen); i >= 0 {
			return i
		}
	}
	return nobody
}

// isObject tells whether a value can hold a transaction.
func isObject(t types.Type) bool {
	switch t.Underlying().(type) {
	case *types.Pointer, *types.Interface, *types.Struct:
		return true
	}
	return false
}

// answers tells whether a type, or the first of several results, is one of a
// library for databases.
func answers(t types.Type) bool {
	if tuple, ok := t.(*types.Tuple); ok {
		return tuple.Len() > 0 && isDatabase(tuple.At(0).Type())
	}
	return isDatabase(t)
}

// databases are the libraries that statements go through.
var databases = []string{"database/sql", "github.com/jackc/pgx", "github.com/jmoiron/sqlx", "github.com/uptrace/bun", "gorm.io/gorm"}

func isDatabase(t types.Type) bool {
	path, name := typeName(t)
	return isBelow(path, databases) && name != "Result" && name != "CommandTag" && !strings.HasPrefix(name, "Null")
}
