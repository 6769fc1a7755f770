package config

import (
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// file is one that is being read.
type file struct {
	lines    []string
	lookup   func(name string) (string, bool)
	problems Problems
	secrets  []string
}

func (f *file) problem(p Problem) { f.problems = append(f.problems, p) }

// secretName is that of a variable whose value nobody may see.
var secretName = regexp.MustCompile(`(?i)pass|secret|token|key|credential|auth`)

func (f *file) used(name, value string) {
	if secretName.MatchString(name) {
		f.hide(value)
	}
}

// hide remembers what must not be shown.
func (f *file) hide(value string) {
	if len(value) > 3 && !slices.Contains(f.secrets, value) {
		f.secrets = append(f.secrets, value)
	}
}

// indent returns how many blanks a line begins with.
func (f *file) indent(line int) int {
	for ; line <= len(f.lines); line++ {
		if text := f.lines[line-1]; strings.TrimSpace(text) != "" {
			return len(text) - len(strings.TrimLeft(text, " "))
		}
	}
	return 0
}

// yamlLine is how the parser says where it is.
var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// parse returns the document's content, or nil after a problem.
func (f *file) parse(text string) *yaml.Node {
	f.lines = strings.Split(text, "\n")
	if !utf8.ValidString(text) {
		f.problem(Problem{Pos: Pos{Line: 1}, Cause: "the file is not UTF-8", Mend: "save it as UTF-8"})
		return nil
	}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	var document, more yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		f.problem(Problem{Pos: Pos{Line: 1}, Cause: "the file is empty", Mend: "sekali init writes one with comments"})
		return nil
	case err != nil:
		f.problem(f.syntax(err))
		return nil
	}
	switch err := decoder.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		f.problem(f.syntax(err))
		return nil
	default:
		f.problem(Problem{Pos: Pos{more.Line, more.Column}, Cause: "a second document begins", Mend: `remove the "---": a file is one consumer`})
		return nil
	}
	return document.Content[0]
}

// syntax is the problem of a file that is not YAML.
func (f *file) syntax(err error) Problem {
	found := yamlLine.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(found[1])
	cause := strings.TrimPrefix(err.Error(), found[0])
	if strings.HasPrefix(cause, "did not find expected") {
		line++ // these the library counts from 0
	}
	p := Problem{Pos: Pos{Line: max(line, 1)}, Cause: "it is not YAML: " + cause, Mend: "correct it"}
	switch {
	case strings.Contains(cause, "mapping values are not allowed"):
		p.Mend = `a value with ": " in it needs quotes: '…'; and check how far the line is indented`
	case strings.Contains(cause, "tab character"):
		p.Mend = "indent with blanks, not with tabs"
	case strings.Contains(cause, "found character that cannot start any token"):
		p.Mend = "put a value that begins with a sign into quotes: '…', and indent with blanks, not with tabs"
	case strings.Contains(cause, "did not find expected") && line <= len(f.lines) && strings.Contains(f.lines[line-1], "${"):
		p.Mend = "a ${NAME} between { and }, or [ and ], needs quotes: \"${NAME}\""
	case strings.Contains(cause, "did not find expected"):
		p.Mend = "check how far the line and those above it are indented, and their quotes and brackets"
	}
	return p
}

// node is a place of the file with what is there; the zero value: nothing is.
type node struct {
	*yaml.Node
	file  *file
	field string
}

func (n node) given() bool { return n.Node != nil && n.Tag != "!!null" }

func (n node) pos() Pos { return Pos{n.Line, n.Column} }

func (n node) bad(cause, mend string) {
	n.file.problem(Problem{Pos: n.pos(), Field: n.field, Cause: cause, Mend: mend})
}

func (n node) kind() string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a list of fields"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if !n.given() {
		return "nothing"
	}
	return "a single value"
}

// is tells whether it is of a kind, and says so if it is not.
func (n node) is(kind yaml.Kind, want string) bool {
	if n.Kind == kind && n.given() {
		return true
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		n.bad("it is an anchor or an alias, which are not known here", "write it out")
		return false
	}
	n.bad("here is "+n.kind(), want)
	return false
}

// below is the name of a field below.
func (n node) below(name string) string {
	if n.field == "" {
		return name
	}
	return n.field + "." + name
}

// fields returns the node of each field of a mapping; only those of known are
// let through, of which required ones must be there.
func (n node) fields(want string, known []string, required ...string) map[string]node {
	got := map[string]node{}
	if !n.is(yaml.MappingNode, want) {
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		name := node{n.Content[i], n.file, n.below(n.Content[i].Value)}
		value := node{n.Content[i+1], n.file, name.field}
		switch _, twice := got[name.Value]; {
		case twice:
			name.bad("it is given twice", "remove one of them")
		case known != nil && !slices.Contains(known, name.Value):
			mend := "use " + alternatives(known)
			if meant := near(name.Value, known); meant != "" {
				mend = "do you mean " + meant + "?"
			}
			name.bad("there is no such field", mend)
		default:
			got[name.Value] = value
		}
	}
	for _, name := range required {
		if !got[name].given() {
			at := n.pos()
			if v, there := got[name]; there {
				at = v.pos()
			}
			n.file.problem(Problem{Pos: at, Field: n.below(name), Cause: "it is missing", Mend: mends[name]})
		}
	}
	return got
}

// alternatives lists names.
func alternatives(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// items returns the elements of a list.
func (n node) items(want string) []node {
	if !n.given() || !n.is(yaml.SequenceNode, want) {
		return nil
	}
	all := make([]node, len(n.Content))
	for i, c := range n.Content {
		all[i] = node{c, n.file, fmt.Sprintf("%s[%d]", n.field, i)}
	}
	return all
}

// source is a single value as it stands there: SQL, an expression.
func (n node) source(want string) Text {
	if n.Node == nil || !n.is(yaml.ScalarNode, want) {
		return Text{}
	}
	return Text{Pos: n.pos(), Field: n.field, Value: n.Value, Written: n.Value, file: n.file, style: n.Style}
}

// text is a single value with those of the environment in it.
func (n node) text(want string) Text {
	t := n.source(want)
	if t.Given() {
		t.Value = n.file.expand(t)
		if strings.TrimSpace(t.Written) == "" {
			n.bad("it is blank", want)
		}
	}
	return t
}

// texts is a list of them; a single one is a list of one.
func (n node) texts(want string) (all []Text) {
	if n.given() && n.Kind == yaml.ScalarNode {
		return []Text{n.text(want)}
	}
	for _, i := range n.items(want) {
		if t := i.text(want); t.Given() {
			all = append(all, t)
		}
	}
	return all
}

// address is a host, which may be left out, and a port.
func (n node) address() Text {
	want := mends["listen"]
	t := n.text(want)
	if t.Value == "" {
		return t
	}
	_, port, err := net.SplitHostPort(t.Value)
	if err != nil {
		n.bad("it is no address with host and port", want)
		return t
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		n.bad(fmt.Sprintf("%q is no port", port), "use a number from 1 to 65535")
	}
	return t
}

// choice is one of some words; the first is the default.
func (n node) choice(words ...string) string {
	if n.Node == nil {
		return words[0]
	}
	t := n.text("use " + alternatives(words))
	if t.Given() && !slices.Contains(words, t.Value) {
		n.bad(fmt.Sprintf("%q is none of its values", t.Written), "use "+alternatives(words))
		return words[0]
	}
	return t.Value
}

// yes is true or false.
func (n node) yes() bool {
	if n.Node == nil {
		return false
	}
	t := n.text("use true or false")
	switch t.Value {
	case "true":
		return true
	case "false", "":
		return false
	}
	n.bad(fmt.Sprintf("%q is neither true nor false", t.Written), "use true or false")
	return false
}

// number is a whole one; 0 if it is not given.
func (n node) number(least, most int) int {
	if n.Node == nil {
		return 0
	}
	want := fmt.Sprintf("use a whole number from %d to %d", least, most)
	t := n.text(want)
	if !t.Given() {
		return 0
	}
	v, err := strconv.Atoi(t.Value)
	if err != nil || v < least || v > most {
		n.bad(fmt.Sprintf("%q is no such number", t.Written), want)
		return 0
	}
	return v
}

// time is a duration; 0 if it is not given.
func (n node) time(least time.Duration) time.Duration {
	if n.Node == nil {
		return 0
	}
	want := fmt.Sprintf("use a time with its unit, such as 500ms, 30s or 24h; %v at least", least)
	t := n.text(want)
	if !t.Given() {
		return 0
	}
	v, err := time.ParseDuration(t.Value)
	if err != nil || v < least {
		n.bad(fmt.Sprintf("%q is no such time", t.Written), want)
		return 0
	}
	return v
}
