package config

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sekali/sekali/internal/brokerurl"
)

// identifier is a name that an expression can use.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expression is one, as it stands there.
func (n node) expression() Text {
	if n.Node == nil {
		return Text{}
	}
	t := n.source("give an expression, such as body.sku, in quotes where it has \": \" or begins with a sign")
	if t.Given() && strings.TrimSpace(t.Value) == "" {
		n.bad("the expression is empty", "give one, such as body.sku, or leave the field out")
		return Text{}
	}
	return t
}

// expressions are some, by name.
func (n node) expressions(valid *regexp.Regexp, mend string) map[string]Text {
	all := map[string]Text{}
	if !n.given() {
		return all
	}
	for name, v := range n.fields("give names with expressions, such as sku: body.sku", nil) {
		if !valid.MatchString(name) {
			v.bad("the name is not possible here", mend)
			continue
		}
		if t := v.expression(); t.Given() {
			all[name] = t
		}
	}
	return all
}

func (n node) brokerURL() Text {
	if !n.given() {
		return Text{}
	}
	t := n.text("give the URL of a broker, such as nats://localhost:4222")
	if t.Given() && t.Value != "" {
		n.file.hidePassword(t.Value)
		if _, err := brokerurl.KindOf(t.Value); err != nil {
			n.bad("it names no broker that is known", brokerurl.ErrURL.Error())
		}
	}
	return t
}

// bare is how long a password has to be to be hidden wherever it stands: a short
// one may be a word of the log.
const bare = 10

// hidePassword keeps that of a URL from being shown.
func (f *file) hidePassword(raw string) {
	for one := range strings.SplitSeq(raw, ",") {
		_, rest, _ := strings.Cut(one, "://")
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			if _, password, found := strings.Cut(rest[:at], ":"); found {
				f.hide(":" + password + "@")
				if len(password) >= bare {
					f.hide(password)
				}
			}
		}
	}
}

const statementWant = "give a statement: - sql: UPDATE …, with params:"

func readStatement(n node) Statement {
	s := n.fields(statementWant, []string{"sql", "params", "when", "rows"}, "sql")
	st := Statement{Params: s["params"].expressions(identifier, "use letters, digits and _"), When: s["when"].expression(), Rows: -1}
	if s["sql"].given() {
		st.SQL = s["sql"].source(mends["sql"])
	}
	if r := s["rows"]; r.given() {
		st.RowsAt = r.pos()
		if st.Rows = r.number(0, 1_000_000); r.Value != "0" && st.Rows == 0 {
			st.Rows = -1
		}
	}
	return st
}

var effectFields = []string{
	"name", "when", "method", "url", "params", "headers", "json", "body", "repeat_for", "idempotency_header", "timeout", "attempts",
}

func (c *File) readEffects(n node) {
	var names []string
	for _, i := range n.items("give a list of effects, each with - name: …") {
		e := i.fields("give an effect: - name: …, with url:", effectFields, "name", "url")
		if e == nil {
			continue
		}
		x := Effect{
			Name: e["name"].text(mends["name"]), When: e["when"].expression(), Method: e["method"].choice("POST", "PUT", "PATCH", "DELETE", "GET"),
			URL: e["url"].text("give the URL, such as https://courier.example/labels"), Params: e["params"].expressions(identifier, "use letters, digits and _"),
			Body: readBody(e), RepeatFor: e["repeat_for"].time(time.Second), Timeout: e["timeout"].time(time.Millisecond), Attempts: e["attempts"].number(1, 100),
		}
		if h := e["idempotency_header"]; h.given() {
			x.Header = h.text("name the header, such as Idempotency-Key").Value
		}
		if h := e["headers"]; h.given() {
			for name, v := range h.fields("give names with values, such as Authorization: Bearer ${TOKEN}", nil) {
				t := v.text("give a single value")
				if t.Value != t.Written {
					n.file.hide(t.Value)
				}
				x.Headers = append(x.Headers, Pair{name, t})
			}
			slices.SortFunc(x.Headers, func(a, b Pair) int { return strings.Compare(a.Name, b.Name) })
		}
		name := x.Name.Value
		switch {
		case !x.Name.Given() || name == "":
		case !identifier.MatchString(name) || len(name) > 100:
			e["name"].bad("the name cannot be used in an expression", "use letters, digits and _, and begin with a letter: results are effects.name")
		case slices.Contains(names, name):
			e["name"].bad("another effect has this name", "give each effect a name of its own")
		}
		names = append(names, name)
		x.checkURL(e["url"])
		c.Effects = append(c.Effects, x)
	}
}

// placeholder is a value in an effect's URL.
var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

func (x Effect) checkURL(n node) {
	if !x.URL.Given() || x.URL.Value == "" {
		return
	}
	if !strings.HasPrefix(x.URL.Value, "https://") && !strings.HasPrefix(x.URL.Value, "http://") {
		n.bad("it is no address of HTTP", "begin it with https:// or http://")
	}
	var used []string
	for _, found := range placeholder.FindAllString(x.URL.Written, -1) {
		name := strings.Trim(found, "{}")
		if strings.Contains(x.URL.Written, "$"+found) {
			continue // of the environment
		}
		used = append(used, name)
		if _, given := x.Params[name]; !given {
			n.bad("the value "+found+" is not given", "add "+name+": … to params")
		}
	}
	for name, t := range x.Params {
		if !slices.Contains(used, name) {
			n.file.problem(t.Problem("the URL does not use it", "write {"+name+"} there, or remove it"))
		}
	}
}

// readBody reads json or body.
func readBody(n map[string]node) (b Body) {
	if n["body"].given() {
		b.Text = n["body"].expression()
		if n["json"].given() {
			n["json"].bad("json and body are both given", "keep one")
		}
	}
	if n["json"].given() {
		b.JSON = n["json"].structure()
	}
	return b
}

// structure is a value of JSON whose single values are expressions.
func (n node) structure() any {
	switch n.Kind {
	case yaml.MappingNode:
		all := map[string]any{}
		for name, v := range n.fields("", nil) {
			if v.given() || v.Kind == yaml.ScalarNode {
				all[name] = v.structure()
			}
		}
		return all
	case yaml.SequenceNode:
		all := []any{}
		for _, v := range n.items("") {
			all = append(all, v.structure())
		}
		return all
	}
	if n.Tag == "!!null" { // null is an expression, too
		return Text{Pos: n.pos(), Field: n.field, Value: "null", Written: "null", file: n.file}
	}
	return n.expression()
}

// headerName is that of a header of an event.
var headerName = regexp.MustCompile(`^[!-9;-~]+$`)

func readEvent(n node) Event {
	e := n.fields("give an event: - topic: …, with json:", []string{"topic", "when", "id", "key", "headers", "json", "body"}, "topic")
	x := Event{
		When: e["when"].expression(), ID: e["id"].expression(), Key: e["key"].expression(),
		Headers: e["headers"].expressions(headerName, "use printable ASCII without blanks and colons"), Body: readBody(e),
	}
	if e["topic"].given() {
		x.Topic = e["topic"].text(mends["topic"])
	}
	return x
}

func (c *File) readOutbox(n node) {
	c.Outbox.Relay = len(c.Publish) > 0
	if !n.given() {
		c.Outbox.URL = c.Source.URL
		return
	}
	o := n.fields("give url, on_parked or relay", []string{"url", "on_parked", "relay"})
	c.Outbox.URL = o["url"].brokerURL()
	if !o["url"].given() {
		c.Outbox.URL = c.Source.URL
	}
	c.Outbox.HoldKey = o["on_parked"].choice("pass", "hold_key") == "hold_key"
	c.Outbox.Relay = !o["relay"].given() || o["relay"].yes()
}

var (
	plainKeys = []string{"message_id", "cloud_event", "debezium"}
	otherKeys = []string{"header", "json", "literal", "business", "first_of", "scoped", "fold_uuid"}
)

func readKey(n node) Key {
	want := "give one of " + alternatives(plainKeys) + ", or one of " + alternatives(otherKeys) + " with its value"
	if n.Kind == yaml.ScalarNode && n.given() {
		k := Key{Pos: n.pos(), Kind: strings.ReplaceAll(n.Value, "-", "_")}
		if !slices.Contains(plainKeys, k.Kind) {
			n.bad("there is no such key", want)
		}
		return k
	}
	all := n.fields(want, slices.Concat(plainKeys, otherKeys))
	if all == nil {
		return Key{}
	}
	if len(all) != 1 {
		if len(n.Content) == 2*len(all) {
			n.bad("it is not one way to take a key", "give one; several, to be tried in turn, go into first_of: [ … ]")
		}
		return Key{}
	}
	k := Key{Pos: n.pos()}
	for kind, v := range all {
		k.Kind = kind
		k.readValue(v)
	}
	return k
}

func (k *Key) readValue(v node) {
	switch k.Kind {
	case "header", "json", "literal":
		k.Value = v.text("give a single value")
		if k.Kind == "json" && k.Value.Given() && !strings.HasPrefix(k.Value.Value, "/") {
			v.bad("it is no JSON pointer", "begin it with /, such as /event_id")
		}
	case "business", "first_of":
		for _, i := range v.items("give a list of keys") {
			k.Parts = append(k.Parts, readKey(i))
		}
		if len(k.Parts) == 0 && v.Kind == yaml.SequenceNode {
			v.bad("the list is empty", "give the keys that belong to it")
		}
	case "scoped":
		s := v.fields("give scope and key", []string{"scope", "key"}, "scope", "key")
		if s["key"].given() {
			k.Parts = []Key{readKey(s["key"])}
		}
		k.Value = s["scope"].text("give the scope")
	case "fold_uuid":
		k.Parts = []Key{readKey(v)}
	default:
		if !v.yes() {
			v.bad("it is not true", "write it alone: key: "+k.Kind)
		}
	}
}
