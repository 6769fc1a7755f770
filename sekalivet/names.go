package sekalivet

import (
	"go/ast"
	"go/types"
	"regexp"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

const sekaliPath = "github.com/sekali/sekali"

// major is a version at the end of an import path or in front of a slash.
var major = regexp.MustCompile(`/v[0-9]+(/|$)`)

// plainPath returns an import path without its version and what vendoring put
// before it: github.com/jackc/pgx/v5/pgxpool is github.com/jackc/pgx/pgxpool.
func plainPath(path string) string {
	if i := strings.LastIndex(path, "/vendor/"); i >= 0 {
		path = path[i+len("/vendor/"):]
	}
	return major.ReplaceAllString(path, "$1")
}

// opaque are packages that are not looked into: what of them matters is known
// by name, and what they do inside (a pool that dials, say) is their affair.
var opaque = []string{
	"github.com/jackc/pgx", "github.com/jackc/pgconn", "github.com/lib/pq", "github.com/go-sql-driver/mysql", "modernc.org/sqlite",
	"github.com/mattn/go-sqlite3", "github.com/jmoiron/sqlx", "github.com/uptrace/bun", "gorm.io", "entgo.io/ent",
	"github.com/getsentry/sentry-go", "github.com/DataDog", "gopkg.in/DataDog", "github.com/newrelic/go-agent", "go.elastic.co/apm",
	"github.com/bugsnag/bugsnag-go", "github.com/rollbar/rollbar-go", "github.com/honeycombio",
	"go.opentelemetry.io", "github.com/prometheus", "go.uber.org/zap", "github.com/sirupsen/logrus", "github.com/rs/zerolog",
	sekaliPath + "/store", sekaliPath + "/broker", sekaliPath + "/effect", sekaliPath + "/deadletter", sekaliPath + "/migrate",
	sekaliPath + "/outbox", sekaliPath + "/otelsekali",
}

// isOpaque tells whether facts about the functions of a package are left aside.
func isOpaque(path string) bool {
	path = plainPath(path)
	return path == sekaliPath || isBelow(path, opaque) || isBelow(path, clients) || named[path] != nil
}

// isBelow tells whether a path is one of those, or below one.
func isBelow(path string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return true
		}
	}
	return false
}

// calleeOf returns the function or method that is called, as it was declared;
// nil for a function value, a conversion or a builtin.
func calleeOf(info *types.Info, call *ast.CallExpr) *types.Func {
	if f, ok := typeutil.Callee(info, call).(*types.Func); ok {
		return f.Origin()
	}
	return nil
}

// isOf tells whether a function, or a method of whatever type, is of a package.
func isOf(f *types.Func, path string) bool {
	return f.Pkg() != nil && plainPath(f.Pkg().Path()) == path
}

// isMethod tells whether f is the named method of the named type of a package.
func isMethod(f *types.Func, path, typeName, name string) bool {
	recv := f.Signature().Recv()
	return f.Name() == name && recv != nil && isType(recv.Type(), path, typeName)
}

// isEffect tells whether f is effect.Do, whose function argument has rules of
// its own.
func isEffect(f *types.Func) bool {
	return isOf(f, sekaliPath+"/effect") && f.Name() == "Do"
}

// typeName returns the package and name of a type or of what it points to.
func typeName(t types.Type) (path, name string) {
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	if n, ok := t.(*types.Named); ok && n.Obj().Pkg() != nil {
		return plainPath(n.Obj().Pkg().Path()), n.Obj().Name()
	}
	return "", ""
}

// isType tells whether t is, or points to, the named type of a package.
func isType(t types.Type, path, name string) bool {
	p, n := typeName(t)
	return p == path && n == name
}

// isError tells whether t is the type error.
func isError(t types.Type) bool {
	return types.Identical(types.Unalias(t), types.Universe.Lookup("error").Type())
}

// endsInError tells whether a call's last result is an error, and how many
// results it has.
func endsInError(info *types.Info, call *ast.CallExpr) (results int, is bool) {
	t := info.TypeOf(call.Fun)
	if t == nil {
		return 0, false
	}
	sig, ok := t.Underlying().(*types.Signature)
	if !ok || sig.Results().Len() == 0 {
		return 0, false
	}
	n := sig.Results().Len()
	return n, isError(sig.Results().At(n - 1).Type())
}

// nameOf names a function as its package's users write it: Type.Method.
func nameOf(f *types.Func) string {
	if recv := f.Signature().Recv(); recv != nil {
		if _, name := typeName(recv.Type()); name != "" {
			return name + "." + f.Name()
		}
	}
	return f.Name()
}

// qualified is nameOf with the package before it.
func qualified(f *types.Func) string {
	if f.Pkg() == nil {
		return nameOf(f)
	}
	return f.Pkg().Name() + "." + nameOf(f)
}
