package sekalivet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// walk goes through the body of a function and notes what it does.
type walk struct {
	*scan
	*flow
	fn *function
}

func newWalk(s *scan, fn *function) *walk {
	return &walk{scan: s, flow: newFlow(s.TypesInfo, fn), fn: fn}
}

func (w *walk) run() {
	ast.PreorderStack(w.fn.body, nil, func(n ast.Node, stack []ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return w.literals[n] == nil
		case *ast.CallExpr:
			w.call(n, stack)
		case *ast.ExprStmt:
			w.discarded(n.X, n, stack)
		case *ast.DeferStmt:
			w.discarded(n.Call, nil, stack)
		case *ast.GoStmt:
			w.discarded(n.Call, nil, stack)
			w.concurrent(n.Call)
		case *ast.AssignStmt:
			w.blank(n)
			w.unread(n, stack)
			w.unreadRows(n)
			w.storing(n)
		case *ast.SendStmt:
			w.sending(n)
		case *ast.IfStmt:
			w.swallowed(n, stack)
		}
		return true
	})
}

// add notes a deed, unless a comment allows it where it stands.
func (w *walk) add(d deed) {
	if w.allow.allows(d.pos) || w.has(d) {
		return
	}
	w.fn.deeds = append(w.fn.deeds, d)
}

// note makes a deed of what stands at a position.
func (w *walk) note(c check, subject int, at ast.Node, what, why string, fixes ...analysis.SuggestedFix) {
	w.add(deed{Check: c, Subject: subject, What: what, Why: why, Where: where(w.Fset, at.Pos()), pos: at.Pos(), fixes: fixes})
}

func (w *walk) call(call *ast.CallExpr, stack []ast.Node) {
	w.recovers(call, stack)
	callee := calleeOf(w.TypesInfo, call)
	if callee == nil {
		return
	}
	if isSettling(callee) {
		w.note(settle, nobody, call, qualified(callee), whySettle)
		return
	}
	if isEffect(callee) {
		w.note(network, nobody, call, "effect.Do", whyEffectInside)
		return
	}
	if isNetwork(callee) {
		w.add(deed{
			Check: network, Subject: nobody, What: qualified(callee), Why: whyNetwork, Sends: w.sends(call, callee),
			Where: where(w.Fset, call.Pos()), pos: call.Pos(),
		})
		return
	}
	w.method(call, callee, stack)
	if startsGoroutine(callee) {
		w.concurrent(call)
	}
	w.ending(call, callee)
	w.given(call, callee)
	w.storingCall(call, callee)
	w.follow(call, callee)
}

// method looks at a call on the transaction, or on what should be it.
func (w *walk) method(call *ast.CallExpr, callee *types.Func, stack []ast.Node) {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok || callee.Signature().Recv() == nil {
		return
	}
	if w.isTurned(sel.X, stack) {
		return
	}
	subject := w.param(sel.X)
	if subject < 0 {
		if w.bypasses(sel.X, callee) {
			w.note(pool, nobody, call, text(sel), whyPool, w.toTransaction(sel, callee, stack)...)
		}
		return
	}
	switch name := callee.Name(); {
	case isPoolMethod(w.TypesInfo.TypeOf(sel.X), name):
		w.note(pool, nobody, call, text(sel), whyPool, w.toTransaction(sel, callee, stack)...)
	case migrations[name]:
		w.note(ddl, subject, call, text(sel), whyDDL)
	case isStatement(name):
		w.sqlText(call, callee, subject)
	case name == "Commit" || name == "Rollback":
		w.note(end, subject, call, text(sel), whyEnd, w.withoutEnd(call, name, stack)...)
	}
}

// ending looks for Commit and Rollback of a store, which take the transaction.
func (w *walk) ending(call *ast.CallExpr, callee *types.Func) {
	if callee.Name() != "Commit" && callee.Name() != "Rollback" || callee.Signature().Recv() == nil || len(call.Args) != 2 {
		return
	}
	if subject := w.param(call.Args[1]); subject >= 0 && w.carries(subject) {
		w.note(end, subject, call, types.ExprString(call.Fun), whyEnd)
	}
}

// given looks for a pool that is given where a transaction could be.
func (w *walk) given(call *ast.CallExpr, callee *types.Func) {
	sig, _ := w.TypesInfo.TypeOf(call.Fun).(*types.Signature)
	if sig == nil || isClaimed(callee) {
		return
	}
	for i, a := range call.Args {
		t := w.TypesInfo.TypeOf(a)
		if t == nil || !isPool(t) || w.holder(a) >= 0 {
			continue
		}
		if p := paramType(callee.Signature(), i); p != nil && takesStatements(p) {
			w.note(pool, nobody, a, types.ExprString(a)+" given to "+callee.Name(), whyPool)
		}
	}
}

// follow takes over what a called function does, with what it is given here.
func (w *walk) follow(call *ast.CallExpr, callee *types.Func) {
	local := w.decls[callee] != nil
	name := qualified(callee)
	if local {
		name = nameOf(callee)
	}
	for _, d := range w.summaryOf(callee) {
		subject := nobody
		if d.Subject >= 0 {
			if d.Subject >= len(call.Args) {
				continue
			}
			argument := call.Args[d.Subject]
			if subject = w.param(argument); subject < 0 {
				continue
			}
		}
		d = d.through(name, subject)
		if !local {
			d.pos, d.fixes = call.Pos(), nil
		}
		if !w.allow.allows(call.Pos()) && !w.has(d) {
			w.fn.deeds = append(w.fn.deeds, d)
		}
	}
}

// has tells whether a deed is there already, on another way.
func (w *walk) has(d deed) bool {
	for _, known := range w.fn.deeds {
		if known.Check == d.Check && known.Subject == d.Subject && known.pos == d.pos {
			return true
		}
	}
	return false
}

// text is a method call without its arguments: pool.Exec.
func text(sel *ast.SelectorExpr) string { return types.ExprString(sel) }
