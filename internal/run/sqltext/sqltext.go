// Package sqltext finds named parameters in statements of SQL, and writes these
// as each database wants them. It reads SQL as far as to know what is text, a
// comment or a name, and no further.
package sqltext

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sekali/sekali/internal/dburl"
)

// Statement is one of SQL with named parameters.
type Statement struct {
	kind dburl.Kind
	// parts of the text: a parameter stands behind each but the last.
	parts []string
	names []string // of the parameters, in their order
	args  []string // whose values are handed over, in their order
	text  string
}

// Error is something that is wrong with a statement.
type Error struct {
	// Offset is where, in bytes.
	Offset int
	// Cause and Mend say what, and what to do.
	Cause, Mend string
}

// Error tells both.
func (e *Error) Error() string { return e.Cause + ": " + e.Mend }

// Parse reads a statement. ":name" is a parameter, where the database does not
// read it as part of a text, a comment, a quoted name, "::" or ":=".
func Parse(query string, kind dburl.Kind) (*Statement, error) {
	s := &Statement{kind: kind}
	l := &lexer{text: query, kind: kind}
	from, ended := 0, -1
	for l.at < len(query) {
		at := l.at
		switch what := l.next(); {
		case what == broken:
			return nil, &Error{at, "the text, comment or name that begins here does not end", "end it"}
		case what == skipped:
			continue
		case ended >= 0:
			return nil, &Error{at, "another statement begins after the \";\"", "give each statement a - sql: of its own"}
		case what == end:
			ended = at
		case what == foreign:
			return nil, &Error{at, fmt.Sprintf("%q is a parameter without a name", query[at:l.at]), "write :name, and give it in params"}
		case what == parameter:
			s.parts = append(s.parts, query[from:at])
			s.names = append(s.names, query[at+1:l.at])
			from = l.at
		}
	}
	if ended < 0 {
		ended = len(query)
	}
	s.parts = append(s.parts, query[from:max(from, ended)])
	if err := refused(query, kind, s); err != nil {
		return nil, err
	}
	s.write()
	return s, nil
}

// write makes the text as the database wants it.
func (s *Statement) write() {
	var b strings.Builder
	for i, name := range s.names {
		b.WriteString(s.parts[i])
		if s.kind != dburl.PostgreSQL {
			b.WriteByte('?')
			s.args = append(s.args, name)
			continue
		}
		n := slices.Index(s.args, name)
		if n < 0 {
			n = len(s.args)
			s.args = append(s.args, name)
		}
		b.WriteString("$" + strconv.Itoa(n+1))
	}
	b.WriteString(s.parts[len(s.parts)-1])
	s.text = strings.TrimSpace(b.String())
}

// Names returns the names of the parameters, each once.
func (s *Statement) Names() []string {
	var once []string
	for _, n := range s.names {
		if !slices.Contains(once, n) {
			once = append(once, n)
		}
	}
	return once
}

// Text returns the statement as the database wants it.
func (s *Statement) Text() string { return s.text }

// Args returns the name of the parameter at each place.
func (s *Statement) Args() []string { return s.args }

// Inline returns the statement with the texts of some parameters in their
// place, and the names of those that remain. The texts must be SQL: numbers.
func (s *Statement) Inline(texts map[string]string) (string, []string) {
	var b strings.Builder
	var args []string
	for i, name := range s.names {
		b.WriteString(s.parts[i])
		if text, is := texts[name]; is {
			b.WriteString(text)
			continue
		}
		b.WriteByte('?')
		args = append(args, name)
	}
	b.WriteString(s.parts[len(s.parts)-1])
	return strings.TrimSpace(b.String()), args
}

// ends are the first words of statements that end the transaction, in which the
// message's key is, or begin another.
var ends = []string{"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE", "XA", "SET", "USE", "LOCK", "UNLOCK", "PRAGMA", "ATTACH", "DETACH", "VACUUM", "LISTEN", "COPY"}

// alters are those that end it without being asked on MySQL.
var alters = []string{"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE"}

func refused(query string, kind dburl.Kind, s *Statement) error {
	word, at := firstWord(query, kind)
	switch {
	case word == "":
		return &Error{0, "there is no statement", "give one of SQL"}
	case slices.Contains(ends, word):
		return &Error{at, word + " has no place here: the statement runs in the transaction that holds the message's key", "remove it"}
	case slices.Contains(alters, word):
		return &Error{at, word + " has no place here: it changes tables, not data, and on some databases commits half of the work", "do it beforehand, once"}
	}
	return nil
}

// firstWord is the first one that is neither a comment nor a bracket.
func firstWord(query string, kind dburl.Kind) (string, int) {
	l := &lexer{text: query, kind: kind}
	for l.at < len(query) {
		at := l.at
		if query[at] == '(' {
			l.at++
			continue
		}
		if isLetter(query[at]) {
			for l.at < len(query) && isWord(query[l.at]) {
				l.at++
			}
			return strings.ToUpper(query[at:l.at]), at
		}
		if l.next() != skipped {
			return "?", at
		}
	}
	return "", 0
}

// Offset returns where a parameter first stands, in bytes of what was parsed.
func (s *Statement) Offset(name string) int {
	at := 0
	for i, n := range s.names {
		at += len(s.parts[i])
		if n == name {
			return at
		}
		at += 1 + len(n)
	}
	return 0
}

// Origin returns the place in what was parsed of one in Text, in bytes.
func (s *Statement) Origin(offset int) int {
	whole := strings.Join(s.parts, "")
	at := len(whole) - len(strings.TrimLeft(whole, " \t\r\n")) // which Text has not
	offset += at
	seen := 0 // of the database's text
	for i, n := range s.names {
		seen += len(s.parts[i])
		if offset < seen {
			break
		}
		mark := "?"
		if s.kind == dburl.PostgreSQL {
			mark = "$" + strconv.Itoa(slices.Index(s.args, n)+1)
		}
		offset += 1 + len(n) - len(mark)
		seen += 1 + len(n)
	}
	return max(offset, 0)
}
