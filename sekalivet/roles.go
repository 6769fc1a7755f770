package sekalivet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// role is what a function is to Sekali.
type role string

const (
	// handler: called in the message's transaction, its second parameter. Also
	// a Commit function, and what Inbox.Process calls.
	handler role = "handler"
	// queue: called in the transaction with the batch of its statements first.
	queue role = "queue"
	// preparer: called outside any transaction, perhaps several times.
	preparer role = "prepare"
	// extractor: makes a key of a message.
	extractor role = "key function"
	// ordering: takes an ordering key or a version from a message.
	ordering role = "ordering function"
)

// transaction returns the index of the parameter that is, or carries, the
// transaction.
func (r role) transaction() int {
	switch r {
	case handler:
		return 1
	case queue:
		return 0
	}
	return nobody
}

// entry is a place where a function becomes something that Sekali calls.
type entry struct {
	role role
	fn   *function // of this package
	// or of another one, known by its facts, to be reported where it is given
	callee *types.Func
	pos    token.Pos
	// or an expression that is a key itself, given to a call, in a function, if
	// in any
	key    ast.Expr
	call   *ast.CallExpr
	around *function
}

// entryID keeps a function from being taken twice in a role.
type entryID struct {
	role   role
	fn     *function
	callee *types.Func
}

func (s *scan) enter(e entry) {
	id := entryID{e.role, e.fn, e.callee}
	if e.key == nil && s.seen[id] {
		return
	}
	s.seen[id] = true
	s.entries = append(s.entries, e)
}

// findEntries looks through the package for functions that become something
// that Sekali calls: by their signature, and by what they are converted to.
func (s *scan) findEntries() {
	for _, f := range s.functions {
		if r := s.roleByShape(f.sig); r != "" {
			s.enter(entry{role: r, fn: f})
		}
	}
	// Twice: only then is known what parameters of functions become, wherever
	// in the package those are declared.
	for range 2 {
		for _, file := range s.Files {
			ast.PreorderStack(file, nil, func(n ast.Node, stack []ast.Node) bool {
				s.conversions(n, stack)
				return true
			})
		}
	}
	slices.SortFunc(s.entries, func(a, b entry) int { return int(a.at() - b.at()) })
}

// at is where an entry stands, for an order.
func (e entry) at() token.Pos {
	if e.fn != nil {
		return e.fn.node.Pos()
	}
	return e.pos
}

// roleByShape tells what a function is by its signature alone: a handler is one
// that takes a message and a transaction.
func (s *scan) roleByShape(sig *types.Signature) role {
	params, results := sig.Params(), sig.Results()
	if params.Len() == 0 || !isMessage(params.At(params.Len()-1).Type()) {
		return ""
	}
	if params.Len() != 3 || results.Len() != 1 || !isError(results.At(0).Type()) {
		return ""
	}
	if _, anything := types.Unalias(params.At(1).Type()).(*types.TypeParam); !anything && isTransaction(params.At(1).Type()) {
		return handler
	}
	return ""
}

func isString(t types.Type) bool {
	b, ok := types.Unalias(t).(*types.Basic)
	return ok && b.Kind() == types.String
}

// isMessage tells whether t is *sekali.Message or a slice of them.
func isMessage(t types.Type) bool {
	if slice, ok := types.Unalias(t).(*types.Slice); ok {
		t = slice.Elem()
	}
	return isType(t, sekaliPath, "Message")
}

// isTransaction tells whether a type is that of a transaction, as far as names
// tell, or stands for one.
func isTransaction(t types.Type) bool {
	if _, is := types.Unalias(t).(*types.TypeParam); is {
		return true
	}
	path, name := typeName(t)
	return name == "Tx" || path == "gorm.io/gorm" && name == "DB" || path == "github.com/uptrace/bun" && name == "IDB"
}

// conversions looks at all places of a node where a value gets another type.
func (s *scan) conversions(n ast.Node, stack []ast.Node) {
	switch n := n.(type) {
	case *ast.FuncLit:
		if sig, ok := s.TypesInfo.TypeOf(n).(*types.Signature); ok {
			if r := s.roleByShape(sig); r != "" {
				s.mark(n, r, stack)
			}
		}
	case *ast.CallExpr:
		s.arguments(n, stack)
	case *ast.CompositeLit:
		s.elements(n, stack)
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if len(n.Lhs) == len(n.Rhs) {
				s.convert(s.roleOfPlace(left), n.Rhs[i], stack, n)
			}
		}
	case *ast.ValueSpec:
		for _, v := range n.Values {
			if n.Type != nil {
				s.convert(roleOf(s.TypesInfo.TypeOf(n.Type)), v, stack, n)
			}
		}
	case *ast.ReturnStmt:
		s.returned(n, stack)
	}
}

// convert marks an expression that takes a role.
func (s *scan) convert(r role, e ast.Expr, stack []ast.Node, inner ...ast.Node) {
	if r != "" {
		s.mark(e, r, append(slices.Clone(stack), inner...))
	}
}

// roleOf returns the role of the values of a named function type.
func roleOf(t types.Type) role {
	if t == nil {
		return ""
	}
	path, name := typeName(t)
	if path != sekaliPath {
		return ""
	}
	switch name {
	case "Handler", "BatchHandler", "Commit":
		return handler
	case "Preparer":
		return preparer
	case "KeyFunc":
		return extractor
	case "FingerprintFunc":
		return ordering
	}
	return ""
}

// roleOfPlace returns the role of what is assigned to a variable or field.
func (s *scan) roleOfPlace(left ast.Expr) role {
	if sel, ok := ast.Unparen(left).(*ast.SelectorExpr); ok {
		if owner := s.TypesInfo.TypeOf(sel.X); owner != nil && isType(owner, sekaliPath, "Config") {
			return roleOfField(sel.Sel.Name, s.TypesInfo.TypeOf(left))
		}
	}
	return roleOf(s.TypesInfo.TypeOf(left))
}

// roleOfField is roleOf for a field of sekali.Config.
func roleOfField(name string, t types.Type) role {
	if name == "Order" || name == "Version" {
		return ordering
	}
	return roleOf(t)
}

func (s *scan) elements(lit *ast.CompositeLit, stack []ast.Node) {
	t := s.TypesInfo.TypeOf(lit)
	if t == nil {
		return
	}
	for i, e := range lit.Elts {
		var name string
		value := e
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			value = kv.Value
			if id, ok := kv.Key.(*ast.Ident); ok {
				name = id.Name
			}
		}
		var r role
		switch u := t.Underlying().(type) {
		case *types.Struct:
			r = roleOfElement(t, u, name, i)
		case *types.Slice:
			r = roleOf(u.Elem())
		case *types.Array:
			r = roleOf(u.Elem())
		case *types.Map:
			r = roleOf(u.Elem())
		}
		s.convert(r, value, stack, lit)
	}
}

func roleOfElement(t types.Type, u *types.Struct, name string, i int) role {
	for j := range u.NumFields() {
		f := u.Field(j)
		if name == f.Name() || name == "" && i == j {
			if isType(t, sekaliPath, "Config") {
				return roleOfField(f.Name(), f.Type())
			}
			return roleOf(f.Type())
		}
	}
	return ""
}

// arguments looks at what a call, or a conversion, is given.
func (s *scan) arguments(call *ast.CallExpr, stack []ast.Node) {
	if tv, ok := s.TypesInfo.Types[call.Fun]; ok && tv.IsType() {
		for _, a := range call.Args {
			s.convert(roleOf(tv.Type), a, stack, call)
		}
		return
	}
	callee := calleeOf(s.TypesInfo, call)
	known := s.knownRoles(callee)
	sig, _ := s.TypesInfo.TypeOf(call.Fun).(*types.Signature)
	for i, a := range call.Args {
		r := known[i]
		if r == "" && sig != nil {
			r = roleOf(paramType(sig, i))
		}
		s.convert(r, a, stack, call)
	}
	if callee == nil {
		return
	}
	for _, k := range s.keyArguments(callee, call) {
		if k < len(call.Args) {
			s.keyExpression(call.Args[k], call, stack)
		}
	}
}

// keyArguments are the indexes of the arguments of a call that are a key, or a
// part of one: of a message, of an effect, or what a request is known by.
func (s *scan) keyArguments(f *types.Func, call *ast.CallExpr) []int {
	switch {
	case isMethod(f, sekaliPath, "Inbox", "Process"):
		return []int{1}
	case isMethod(f, sekaliPath, "Inbox", "Claim"):
		return []int{2}
	case isOf(f, sekaliPath) && (f.Name() == "Literal" || f.Name() == "Scoped" || f.Name() == "Header"):
		return []int{0}
	case isEffect(f):
		return []int{2, 3}
	case isMethod(f, "net/http", "Header", "Set") || isMethod(f, "net/http", "Header", "Add"):
		if name := s.TypesInfo.Types[call.Args[0]].Value; name != nil && name.Kind() == constant.String &&
			strings.EqualFold(constant.StringVal(name), "Idempotency-Key") {
			return []int{1}
		}
	}
	return nil
}

func (s *scan) keyExpression(e ast.Expr, call *ast.CallExpr, stack []ast.Node) {
	for _, known := range s.entries {
		if known.key == e {
			return
		}
	}
	s.enter(entry{role: extractor, key: e, call: call, pos: e.Pos(), around: s.around(stack)})
}

// knownRoles returns what becomes of the arguments of a function that are
// functions, where their types do not tell.
func (s *scan) knownRoles(f *types.Func) map[int]role {
	switch {
	case f == nil:
		return nil
	case isMethod(f, sekaliPath, "Inbox", "Process"):
		return map[int]role{2: handler}
	case isOf(f, sekaliPath+"/store/pgxstore") && f.Name() == "Pipelined":
		return map[int]role{0: queue}
	}
	if own := s.decls[f]; own != nil {
		return own.roles
	}
	if fact := s.factOf(f); fact != nil {
		return fact.Roles
	}
	return nil
}

// paramType is the type of the i-th argument of a call.
func paramType(sig *types.Signature, i int) types.Type {
	n := sig.Params().Len()
	if n == 0 || i >= n && !sig.Variadic() {
		return nil
	}
	if sig.Variadic() && i >= n-1 {
		if slice, ok := sig.Params().At(n - 1).Type().(*types.Slice); ok {
			return slice.Elem()
		}
		return nil
	}
	return sig.Params().At(i).Type()
}

// returned looks at the results of the function that a statement ends.
func (s *scan) returned(r *ast.ReturnStmt, stack []ast.Node) {
	for i := len(stack) - 1; i >= 0; i-- {
		var sig *types.Signature
		switch n := stack[i].(type) {
		case *ast.FuncLit:
			sig, _ = s.TypesInfo.TypeOf(n).(*types.Signature)
		case *ast.FuncDecl:
			if obj, ok := s.TypesInfo.Defs[n.Name].(*types.Func); ok {
				sig = obj.Signature()
			}
		default:
			continue
		}
		for j, e := range r.Results {
			if sig != nil && len(r.Results) == sig.Results().Len() {
				s.convert(roleOf(sig.Results().At(j).Type()), e, stack, r)
			}
		}
		return
	}
}
