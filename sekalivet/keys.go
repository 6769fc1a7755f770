package sekalivet

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

const whyKey = "differs from one delivery to the next: the key of a message must be the same for every copy of it, or each copy is fresh;" +
	" take it from what the producer sent"

// chances are functions whose results differ from call to call.
var chances = map[string][]string{
	"time":                              {"Now", "Since", "Until"},
	"math/rand":                         {"*"},
	"crypto/rand":                       {"*"},
	"github.com/google/uuid":            {"New", "NewString", "NewRandom*", "NewV6", "NewV7*", "NewUUID", "NewDCE*"},
	"github.com/gofrs/uuid":             {"NewV1*", "NewV4*", "NewV6*", "NewV7*"},
	"github.com/satori/go.uuid":         {"NewV1", "NewV4"},
	"github.com/oklog/ulid":             {"Make", "New", "MustNew", "Now"},
	"github.com/rs/xid":                 {"New"},
	"github.com/segmentio/ksuid":        {"New", "NewRandom*"},
	"github.com/nats-io/nuid":           {"Next"},
	"github.com/lithammer/shortuuid":    {"New"},
	"github.com/teris-io/shortid":       {"Generate", "MustGenerate"},
	"github.com/bwmarrin/snowflake":     {"Generate"},
	"github.com/sony/sonyflake":         {"NextID"},
	"github.com/matoous/go-nanoid":      {"New", "Must", "Generate", "MustGenerate"},
	"github.com/jaevor/go-nanoid":       {"*"},
	"os":                                {"Getpid", "Getppid", "Hostname"},
	"sync/atomic":                       {"Add*"},
	"github.com/hashicorp/go-uuid":      {"GenerateUUID", "GenerateRandomBytes"},
	"k8s.io/apimachinery/pkg/util/uuid": {"NewUUID"},
}

// counts are fields that tell of a delivery, and not of its message.
var counts = map[string][]string{
	sekaliPath + "/broker":                                         {"Attempt", "Redelivered"},
	sekaliPath + "/effect":                                         {"Attempt"},
	"github.com/rabbitmq/amqp091-go":                               {"Redelivered", "DeliveryTag", "ConsumerTag"},
	"github.com/streadway/amqp":                                    {"Redelivered", "DeliveryTag", "ConsumerTag"},
	"github.com/nats-io/nats.go":                                   {"NumDelivered", "NumPending", "Consumer"},
	"github.com/nats-io/nats.go/jetstream":                         {"NumDelivered", "NumPending", "Consumer"},
	"cloud.google.com/go/internal/pubsub":                          {"DeliveryAttempt"},
	"cloud.google.com/go/pubsub":                                   {"DeliveryAttempt"},
	"github.com/aws/aws-sdk-go-v2/service/sqs/types":               {"ReceiptHandle"},
	"github.com/aws/aws-sdk-go/service/sqs":                        {"ReceiptHandle"},
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus": {"DeliveryCount", "LockToken"},
	"github.com/Azure/go-amqp":                                     {"DeliveryCount", "DeliveryTag"},
}

// countName is a header, attribute or metadata field in which brokers and
// libraries count deliveries.
var countName = regexp.MustCompile(`(?i)(^|[-_. ])(attempts?|retries|retry|retry[-_]?count|delivery[-_]?count|delivery[-_]?attempt|receive[-_]?count|redelivered|x-death)([-_. ]|$)|ApproximateReceiveCount`)

// keyDeedsAt returns what is wrong with a key function, or an expression that
// is a key.
func (s *scan) keyDeedsAt(e entry) []deed {
	switch {
	case e.key != nil:
		around := e.around
		if around == nil { // of a variable of the package
			around = &function{node: e.call, sig: types.NewSignatureType(nil, nil, nil, nil, nil, false), body: &ast.BlockStmt{}}
		}
		k := newKeyed(s, around)
		k.look(e.key)
		return k.deeds
	case e.fn != nil:
		return s.keyDeedsOf(e.fn)
	}
	var deeds []deed
	if fact := s.factOf(e.callee); fact != nil {
		for _, d := range fact.Deeds {
			if d.Check == key || d.Check == parts {
				deeds = append(deeds, d.through(qualified(e.callee), nobody))
			}
		}
	}
	return deeds
}

// keyDeedsOf returns what is wrong with the results of a function where they
// are a part of a key.
func (s *scan) keyDeedsOf(f *function) []deed {
	if f.keyDone {
		return f.keyDeeds
	}
	f.keyDone = true
	k := newKeyed(s, f)
	ast.Inspect(f.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			k.returned(n)
		}
		return true
	})
	f.keyDeeds = k.deeds
	return f.keyDeeds
}

// keyed looks at what becomes a key in a function.
type keyed struct {
	*scan
	*flow
	fn    *function
	seen  map[types.Object]bool
	deeds []deed
	// result is the index of the result that is looked at, nobody: none, or any.
	result int
}

func newKeyed(s *scan, f *function) *keyed {
	k := &keyed{scan: s, flow: newFlow(s.TypesInfo, f), fn: f, seen: map[types.Object]bool{}, result: nobody}
	k.written()
	return k
}

// written adds to what variables are set to what is written to them by methods
// (a strings.Builder) and through their addresses.
func (k *keyed) written() {
	ast.Inspect(k.fn.body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		into := []ast.Expr{}
		if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
			into = append(into, sel.X)
		}
		for _, a := range call.Args {
			if u, ok := ast.Unparen(a).(*ast.UnaryExpr); ok && u.Op == token.AND {
				into = append(into, u.X)
			}
		}
		for _, e := range into {
			id, ok := ast.Unparen(e).(*ast.Ident)
			if !ok {
				continue
			}
			if v, ok := k.TypesInfo.Uses[id].(*types.Var); ok && !isMessage(v.Type()) {
				k.defs[v] = append(k.defs[v], call.Args...)
			}
		}
		return true
	})
}

// returned looks at the results of a statement, but for errors.
func (k *keyed) returned(n *ast.ReturnStmt) {
	results := k.fn.sig.Results()
	for i, e := range n.Results {
		k.result = nobody
		if len(n.Results) == results.Len() {
			k.result = i
		}
		if t := k.TypesInfo.TypeOf(e); t != nil && !isError(t) {
			k.look(e)
		}
	}
	for i := range results.Len() {
		v := results.At(i)
		if len(n.Results) > 0 || isError(v.Type()) {
			continue
		}
		k.result = i
		for _, value := range k.defs[v] {
			k.look(value)
		}
	}
}

func (k *keyed) note(c check, at ast.Node, what, why string) {
	d := deed{Check: c, Subject: k.result, What: what, Why: why, Where: where(k.Fset, at.Pos()), pos: at.Pos()}
	if !k.has(d) && !k.allow.allows(d.pos) {
		k.deeds = append(k.deeds, d)
	}
}

func (k *keyed) has(d deed) bool {
	return slices.ContainsFunc(k.deeds, func(known deed) bool { return known.Check == d.Check && known.pos == d.pos })
}

// look finds what is wrong with an expression that becomes a key.
func (k *keyed) look(e ast.Expr) {
	k.join(e)
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			k.call(n, nobody)
		case *ast.SelectorExpr:
			return !k.field(n)
		case *ast.BasicLit:
			k.literal(n)
		case *ast.Ident:
			k.variable(n)
		}
		return true
	})
}

// call looks at a call, of whose results one becomes a key; nobody: any.
func (k *keyed) call(call *ast.CallExpr, result int) {
	f := calleeOf(k.TypesInfo, call)
	if f == nil || f.Pkg() == nil {
		return
	}
	if isNamed(chances[plainPath(f.Pkg().Path())], f.Name()) {
		k.note(key, call, qualified(f), whyKey)
		return
	}
	local := k.decls[f]
	name, deeds := qualified(f), []deed(nil)
	if local != nil {
		name, deeds = nameOf(f), k.keyDeedsOf(local)
	} else if fact := k.factOf(f); fact != nil {
		deeds = fact.Deeds
	}
	for _, d := range deeds {
		if d.Check != key && (d.Check != parts || !isText(k.TypesInfo.TypeOf(call))) {
			continue
		}
		if result >= 0 && d.Subject >= 0 && d.Subject != result {
			continue
		}
		d = d.through(name, k.result)
		if local == nil {
			d.pos = call.Pos()
		}
		if !k.has(d) && !k.allow.allows(call.Pos()) {
			k.deeds = append(k.deeds, d)
		}
	}
}

// field looks at a field: those that count deliveries, and what is put into
// one here. Of what else is in the same value, nothing becomes a key.
func (k *keyed) field(sel *ast.SelectorExpr) (is bool) {
	v, ok := k.TypesInfo.Uses[sel.Sel].(*types.Var)
	if !ok || !v.IsField() {
		return false
	}
	if v.Pkg() != nil && slices.Contains(counts[plainPath(v.Pkg().Path())], v.Name()) {
		k.note(key, sel, types.ExprString(sel), whyKey)
		return true
	}
	id, ok := ast.Unparen(sel.X).(*ast.Ident)
	if !ok || k.seen[v] {
		return true
	}
	k.seen[v] = true
	of := k.TypesInfo.ObjectOf(id)
	ast.Inspect(k.fn.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			k.assignedTo(n, of, v)
		case *ast.KeyValueExpr:
			if name, ok := n.Key.(*ast.Ident); ok && k.TypesInfo.Uses[name] == v {
				k.look(n.Value)
			}
		}
		return true
	})
	return true
}

// assignedTo looks at what is assigned to a field of a variable.
func (k *keyed) assignedTo(a *ast.AssignStmt, of types.Object, field *types.Var) {
	for i, left := range a.Lhs {
		sel, ok := left.(*ast.SelectorExpr)
		if !ok || len(a.Lhs) != len(a.Rhs) || k.TypesInfo.Uses[sel.Sel] != field {
			continue
		}
		if id, ok := ast.Unparen(sel.X).(*ast.Ident); ok && k.TypesInfo.ObjectOf(id) == of {
			k.look(a.Rhs[i])
		}
	}
}

// literal looks at names of headers that count deliveries: only such a text is
// looked up under, so what it names is what counts.
func (k *keyed) literal(lit *ast.BasicLit) {
	tv := k.TypesInfo.Types[lit]
	if tv.Value != nil && tv.Value.Kind() == constant.String && countName.MatchString(constant.StringVal(tv.Value)) && k.isLookedUp(lit) {
		k.note(key, lit, fmt.Sprintf("the header or field %s", lit.Value), whyKey)
	}
}

// isLookedUp tells whether a literal is an index, or an argument of a Get.
func (k *keyed) isLookedUp(lit *ast.BasicLit) bool {
	found := false
	root := k.fn.node
	if lit.Pos() < root.Pos() || lit.End() > root.End() {
		return false
	}
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IndexExpr:
			found = found || ast.Unparen(n.Index) == ast.Expr(lit)
		case *ast.CallExpr:
			f := calleeOf(k.TypesInfo, n)
			if f == nil || !strings.Contains(f.Name(), "Get") && !strings.Contains(f.Name(), "Header") && !strings.Contains(f.Name(), "Values") {
				return true
			}
			for _, a := range n.Args {
				found = found || ast.Unparen(a) == ast.Expr(lit)
			}
		}
		return !found
	})
	return found
}

// variable goes on with what a variable is set to, and finds counters: those
// that are there before the function runs and that it raises.
func (k *keyed) variable(id *ast.Ident) {
	v, ok := k.TypesInfo.ObjectOf(id).(*types.Var)
	if !ok || v.IsField() || k.seen[v] {
		return
	}
	k.seen[v] = true
	if !k.owns(v) && k.isRaised(v) {
		k.note(key, id, id.Name+", which counts calls,", whyKey)
		return
	}
	if k.owns(v) && indexOf(k.fn.sig, v) < 0 {
		for _, value := range k.defs[v] {
			k.value(v, value)
		}
	}
}

// value looks at what a variable is set to.
func (k *keyed) value(v *types.Var, value ast.Expr) {
	call, ok := ast.Unparen(value).(*ast.CallExpr)
	if _, several := k.TypesInfo.TypeOf(value).(*types.Tuple); !ok || !several {
		k.look(value)
		return
	}
	k.call(call, k.results[v])
	k.look(call.Fun)
	for _, a := range call.Args {
		k.look(a)
	}
}

// isRaised tells whether a function counts in a variable.
func (k *keyed) isRaised(v *types.Var) bool {
	found := false
	ast.Inspect(k.fn.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IncDecStmt:
			id, ok := n.X.(*ast.Ident)
			found = found || ok && k.TypesInfo.ObjectOf(id) == v
		case *ast.AssignStmt:
			id, ok := n.Lhs[0].(*ast.Ident)
			found = found || ok && n.Tok != token.ASSIGN && n.Tok != token.DEFINE && k.TypesInfo.ObjectOf(id) == v
		}
		return !found
	})
	return found
}
