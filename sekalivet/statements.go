package sekalivet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"strings"
)

const (
	whyPool = "is not part of the message's transaction: what it writes stays when that is rolled back, and is written again with the" +
		" next delivery; use the transaction that the function is handed"
	whyEnd = "ends the message's transaction before Sekali does: what follows runs without the message's key, and the key may be committed" +
		" without the effect; return nil to commit, an error to roll back"
	whyDDL = "in the message's transaction: MySQL and MariaDB commit before it, the key with half of the effect, and elsewhere it locks" +
		" the table until the commit; do it in a migration"
)

// statements are the methods that run SQL on a transaction, a connection or a
// pool, in pgx, database/sql, sqlx, Bun and GORM.
var statements = map[string]bool{
	"Exec": true, "ExecContext": true, "Query": true, "QueryContext": true, "QueryRow": true, "QueryRowContext": true,
	"Prepare": true, "PrepareContext": true, "SendBatch": true, "CopyFrom": true, "Queue": true,
	"NamedExec": true, "NamedExecContext": true, "NamedQuery": true, "MustExec": true, "MustExecContext": true,
	"Get": true, "GetContext": true, "Select": true, "SelectContext": true, "Queryx": true, "QueryxContext": true, "QueryRowx": true,
	"NewInsert": true, "NewUpdate": true, "NewDelete": true, "NewSelect": true, "NewRaw": true, "NewMerge": true,
	"Raw": true, "Create": true, "Save": true, "Update": true, "Updates": true, "Delete": true, "First": true, "Find": true,
}

// migrations are the methods that change the schema, in GORM and Bun.
var migrations = map[string]bool{
	"AutoMigrate": true, "Migrator": true, "NewCreateTable": true, "NewDropTable": true, "NewTruncateTable": true,
	"NewCreateIndex": true, "NewDropIndex": true, "NewAddColumn": true, "NewDropColumn": true,
}

// starts are the methods of a pool that lead to statements.
var starts = map[string]bool{
	"Begin": true, "BeginTx": true, "BeginTxx": true, "Beginx": true, "Acquire": true, "AcquireFunc": true, "Conn": true,
	"RunInTx": true, "Transaction": true, "Model": true, "Table": true, "WithContext": true,
}

func isStatement(name string) bool { return statements[name] }

// pools are the types that give connections of their own.
var pools = map[string]map[string]bool{
	"github.com/jackc/pgx/pgxpool": {"Pool": true, "Conn": true},
	"github.com/jackc/pgx":         {"Conn": true},
	"database/sql":                 {"DB": true, "Conn": true},
	"github.com/jmoiron/sqlx":      {"DB": true, "Conn": true},
	"github.com/uptrace/bun":       {"DB": true, "Conn": true},
}

// isPool tells whether a type is that of a pool or connection, and no
// transaction whatever it was made of.
func isPool(t types.Type) bool {
	path, name := typeName(t)
	return pools[path][name]
}

func isPoolMethod(t types.Type, name string) bool {
	return t != nil && isPool(t) && (statements[name] || starts[name])
}

// bypasses tells whether a method is called on something that leads to the
// database and does not come from a parameter of the function.
func (w *walk) bypasses(x ast.Expr, callee *types.Func) bool {
	t := w.TypesInfo.TypeOf(x)
	if t == nil || w.holder(x) >= 0 {
		return false
	}
	name := callee.Name()
	path, typeName := typeName(t)
	switch {
	case isPool(t):
		return statements[name] || starts[name]
	case path == "gorm.io/gorm" && typeName == "DB":
		return (statements[name] || starts[name]) && w.isKeptOutside(x)
	case path == "database/sql" && typeName == "Stmt":
		return statements[name] && w.isKeptOutside(x)
	}
	return name != "WithTx" && hasWithTx(t) && w.isKeptOutside(x)
}

// isTurned tells whether a query of Bun is made with the pool, whose models it
// knows, and then turned to the transaction by Conn: in the same chain of
// calls, or by the variable that the chain is kept in.
func (w *walk) isTurned(pool ast.Expr, stack []ast.Node) bool {
	if path, _ := typeName(w.TypesInfo.TypeOf(pool)); path != "github.com/uptrace/bun" {
		return false
	}
	for _, n := range stack {
		switch n := n.(type) {
		case *ast.CallExpr:
			if w.turns(n) {
				return true
			}
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Lhs) == 1 && w.isTurnedLater(w.TypesInfo.ObjectOf(id)) {
				return true
			}
		}
	}
	return false
}

// turns tells whether a call has a query of Bun run on the transaction.
func (w *walk) turns(call *ast.CallExpr) bool {
	callee := calleeOf(w.TypesInfo, call)
	return callee != nil && isOf(callee, "github.com/uptrace/bun") && callee.Name() == "Conn" && len(call.Args) == 1 && w.holder(call.Args[0]) >= 0
}

func (w *walk) isTurnedLater(query types.Object) (turned bool) {
	ast.Inspect(w.fn.body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && w.turns(call) {
			x := call.Fun
			for ok {
				if sel, is := ast.Unparen(x).(*ast.SelectorExpr); is {
					x = sel.X
				} else if inner, is := ast.Unparen(x).(*ast.CallExpr); is {
					x = inner.Fun
				} else {
					ok = false
				}
			}
			id, is := ast.Unparen(x).(*ast.Ident)
			turned = turned || is && w.TypesInfo.ObjectOf(id) == query
		}
		return !turned
	})
	return turned
}

// isKeptOutside tells whether an expression was there before the function was
// called: a field, or a variable from around it.
func (w *walk) isKeptOutside(x ast.Expr) bool {
	if id, ok := ast.Unparen(x).(*ast.Ident); ok {
		v, is := w.TypesInfo.ObjectOf(id).(*types.Var)
		if !is {
			return false
		}
		if !w.owns(v) {
			return true
		}
		for _, value := range w.defs[v] {
			if !w.isKeptOutside(value) {
				return false
			}
		}
		return len(w.defs[v]) > 0
	}
	if call, ok := ast.Unparen(x).(*ast.CallExpr); ok { // s.db.WithContext(ctx)
		sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
		return ok && starts[sel.Sel.Name] && w.isKeptOutside(sel.X)
	}
	sel, ok := ast.Unparen(x).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	root := w.root(sel)
	return root != nil && (!w.owns(root) || w.isReceiver(root))
}

func (w *walk) isReceiver(v *types.Var) bool { return w.fn.sig.Recv() == v }

// hasWithTx tells whether a type is like the Queries that sqlc writes: made
// for a pool or a transaction, and turned to another one by WithTx.
func hasWithTx(t types.Type) bool {
	obj, _, _ := types.LookupFieldOrMethod(t, true, nil, "WithTx")
	f, ok := obj.(*types.Func)
	if !ok {
		return false
	}
	sig := f.Signature()
	return sig.Params().Len() == 1 && sig.Results().Len() == 1 && isTransaction(sig.Params().At(0).Type()) &&
		types.Identical(sig.Results().At(0).Type(), t)
}

// takesStatements tells whether a parameter's type is an interface whose
// methods run statements or begin transactions: a pool fits it, and a
// transaction would.
func takesStatements(t types.Type) bool {
	iface, ok := t.Underlying().(*types.Interface)
	if !ok {
		return false
	}
	for i := range iface.NumMethods() {
		if name := iface.Method(i).Name(); statements[name] && name != "Get" || name == "Begin" || name == "BeginTx" {
			return true
		}
	}
	return false
}

// isClaimed tells whether a function of ours takes pools by its nature: what
// constructs a store.
func isClaimed(f *types.Func) bool { return f.Pkg() != nil && isOpaqueSekali(f.Pkg().Path()) }

func isOpaqueSekali(path string) bool {
	return isOpaque(path) && strings.HasPrefix(plainPath(path), sekaliPath)
}

// verbs are the beginnings of statements that must not run in a message's
// transaction.
var (
	ddlVerbs = regexp.MustCompile(`(?i)^(CREATE|ALTER|DROP|TRUNCATE|RENAME|GRANT|REVOKE|LOCK\s+TABLES|UNLOCK\s+TABLES)\b(\s+(OR\s+REPLACE|UNIQUE|TABLE|INDEX|VIEW|SCHEMA|DATABASE|SEQUENCE|FUNCTION|TRIGGER|TYPE|USER|ROLE|MATERIALIZED|CONCURRENTLY)\b)*`)
	endVerbs = regexp.MustCompile(`(?i)^(COMMIT|ABORT|END|BEGIN|START\s+TRANSACTION|ROLLBACK(\s+(WORK|TRANSACTION))?\s*;?\s*$|PREPARE\s+TRANSACTION)\b`)
	tempVerb = regexp.MustCompile(`(?i)^(CREATE|DROP|ALTER|TRUNCATE)\s+(GLOBAL\s+|LOCAL\s+)?TEMP(ORARY)?\b`)
	comments = regexp.MustCompile(`(?s)^(\s+|--[^\n]*(\n|$)|/\*.*?\*/|;)+`)
)

// sqlText looks at the text of a statement on the transaction.
func (w *walk) sqlText(call *ast.CallExpr, callee *types.Func, subject int) {
	for i, a := range call.Args {
		p := paramType(callee.Signature(), i)
		if p == nil || !isString(p.Underlying()) {
			continue
		}
		sql := comments.ReplaceAllString(w.beginning(a), "")
		if verb := ddlVerbs.FindString(sql); verb != "" && !tempVerb.MatchString(sql) {
			w.note(ddl, subject, call, strings.ToUpper(strings.Join(strings.Fields(verb), " ")), whyDDL)
		} else if verb := endVerbs.FindString(sql); verb != "" {
			w.note(end, subject, call, strings.ToUpper(strings.Join(strings.Fields(verb), " ")), whyEnd)
		}
		return
	}
}

// beginning returns what is known of the beginning of a text: a constant, the
// left of a concatenation, the format of fmt.Sprintf.
func (w *walk) beginning(e ast.Expr) string {
	e = ast.Unparen(e)
	if tv := w.TypesInfo.Types[e]; tv.Value != nil && tv.Value.Kind() == constant.String {
		return constant.StringVal(tv.Value)
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return w.beginning(e.X)
		}
	case *ast.CallExpr:
		if f := calleeOf(w.TypesInfo, e); f != nil && isOf(f, "fmt") && f.Name() == "Sprintf" && len(e.Args) > 0 {
			return w.beginning(e.Args[0])
		}
	case *ast.Ident:
		if values := w.defs[w.TypesInfo.ObjectOf(e)]; len(values) == 1 && values[0] != ast.Expr(e) {
			return w.beginning(values[0])
		}
	}
	return ""
}
