package sekalivet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
)

const whyParts = "puts parts together so that two messages can have the same key (\"a:b\" with \"c\" and \"a\" with \"b:c\"), of which" +
	" the second is then lost as a duplicate; use sekali.Business or sekali.JoinKey, which escape the parts (the keys of messages" +
	" processed before change by that)"

// join finds parts that are put together without escaping.
func (k *keyed) join(e ast.Expr) {
	n := 0
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			n = k.operands(e)
		}
	case *ast.CallExpr:
		n = k.formatted(e)
	}
	if n > 1 {
		k.note(parts, e, types.ExprString(shortened(e)), whyParts)
	}
}

// shortened is what a message shows of an expression.
func shortened(e ast.Expr) ast.Expr {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok {
		return call.Fun
	}
	return e
}

// operands counts the parts of a concatenation that may hold anything.
func (k *keyed) operands(e ast.Expr) int {
	if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && b.Op == token.ADD {
		return k.operands(b.X) + k.operands(b.Y)
	}
	if k.isFree(e) {
		return 1
	}
	return 0
}

// verbs of a format, without %%.
var formatVerb = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?([a-zA-Z%])`)

// formatted counts the parts of a fmt.Sprintf, Sprint or strings.Join that may
// hold anything.
func (k *keyed) formatted(call *ast.CallExpr) (n int) {
	f := calleeOf(k.TypesInfo, call)
	if f == nil || len(call.Args) == 0 {
		return 0
	}
	args := call.Args
	switch {
	case isOf(f, "fmt") && f.Name() == "Sprintf":
		format := k.TypesInfo.Types[args[0]].Value
		if format == nil || format.Kind() != constant.String {
			return 0
		}
		args = args[1:]
		i := 0
		for _, m := range formatVerb.FindAllStringSubmatch(constant.StringVal(format), -1) {
			if m[1] == "%" {
				continue
			}
			if i < len(args) && (m[1] == "s" || m[1] == "v") && k.isFree(args[i]) {
				n++
			}
			i++
		}
		return n
	case isOf(f, "fmt") && f.Name() == "Sprint":
	case isOf(f, "strings") && f.Name() == "Join":
		lit, ok := ast.Unparen(args[0]).(*ast.CompositeLit)
		if !ok {
			return 0
		}
		args = lit.Elts
	default:
		return 0
	}
	for _, a := range args {
		if k.isFree(a) {
			n++
		}
	}
	return n
}

// isFree tells whether a part of a key may hold any text: it is one, no
// constant, and made of no number.
func (k *keyed) isFree(e ast.Expr) bool {
	e = ast.Unparen(e)
	tv := k.TypesInfo.Types[e]
	if tv.Value != nil || tv.Type == nil || !isText(tv.Type) {
		return false
	}
	switch e := e.(type) {
	case *ast.CallExpr:
		if conversion := k.TypesInfo.Types[e.Fun]; conversion.IsType() && len(e.Args) == 1 {
			return k.isFree(e.Args[0])
		}
		f := calleeOf(k.TypesInfo, e)
		if f == nil || f.Pkg() == nil {
			return true
		}
		path := f.Pkg().Path()
		return path != "strconv" && path != "encoding/hex" && path != "time" && path != "net/url" && f.Name() != "String"
	case *ast.Ident:
		if values := k.defs[k.TypesInfo.ObjectOf(e)]; len(values) == 1 && values[0] != ast.Expr(e) {
			if _, constant := values[0].(*ast.BasicLit); constant {
				return false
			}
			if call, ok := values[0].(*ast.CallExpr); ok && isText(k.TypesInfo.TypeOf(call)) {
				return k.isFree(call)
			}
		}
	}
	return true
}

// isText tells whether a type is a string or bytes, by whatever name.
func isText(t types.Type) bool {
	if t == nil {
		return false
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return u.Info()&types.IsString != 0
	case *types.Slice:
		b, ok := u.Elem().Underlying().(*types.Basic)
		return ok && b.Kind() == types.Byte
	}
	return false
}
