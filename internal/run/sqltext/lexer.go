package sqltext

import (
	"strings"

	"github.com/sekali/sekali/internal/dburl"
)

// token is what stands at a place.
type token uint8

const (
	skipped   token = iota // blanks and comments
	other                  // names, texts, numbers, signs
	parameter              // :name
	foreign                // a parameter of the database's own kind
	end                    // ;
	broken                 // it does not end
)

type lexer struct {
	text string
	kind dburl.Kind
	at   int
}

// next goes over one token.
func (l *lexer) next() token {
	rest := l.text[l.at:]
	c := rest[0]
	switch {
	case strings.IndexByte(" \t\r\n\f\v", c) >= 0:
		return l.over(1, skipped)
	case l.comment(rest):
		return l.toLineEnd()
	case strings.HasPrefix(rest, "/*"):
		return l.block()
	case c == '\'' || c == '"' || c == '`' && l.kind != dburl.PostgreSQL:
		return l.quoted(c, l.backslashes(c))
	case c == '[' && l.kind == dburl.SQLite:
		return l.until("]")
	case c == '$' && l.kind == dburl.PostgreSQL:
		return l.dollar(rest)
	case c == ';':
		return l.over(1, end)
	case isLetter(c):
		return l.word(rest)
	case c >= '0' && c <= '9':
		return l.over(span(rest, func(b byte) bool { return isWord(b) || b == '.' }), other)
	}
	return l.sign(rest)
}

func (l *lexer) over(n int, what token) token {
	l.at += n
	return what
}

func isLetter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isWord(c byte) bool { return isLetter(c) || c >= '0' && c <= '9' || c == '$' }

// isName tells what the name of a parameter is made of.
func isName(c byte) bool { return c < 0x80 && c != '$' && isWord(c) }

func span(s string, is func(byte) bool) int {
	n := 0
	for n < len(s) && is(s[n]) {
		n++
	}
	return n
}

// comment tells whether one to the end of the line begins. MySQL wants a blank
// after two minus signs: a--1 is a sum there.
func (l *lexer) comment(rest string) bool {
	if l.kind == dburl.MySQL {
		return rest[0] == '#' || strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' ')
	}
	return strings.HasPrefix(rest, "--")
}

func (l *lexer) toLineEnd() token {
	n := strings.IndexByte(l.text[l.at:], '\n')
	if n < 0 {
		n = len(l.text) - l.at
	}
	return l.over(n, skipped)
}

// block goes over a comment, which on PostgreSQL can hold others. What MySQL
// executes in one (/*! … */) is not looked at.
func (l *lexer) block() token {
	depth, i := 0, l.at
	for i < len(l.text) {
		switch two := l.text[i:min(i+2, len(l.text))]; {
		case two == "/*" && (depth == 0 || l.kind == dburl.PostgreSQL):
			depth, i = depth+1, i+2
		case two == "*/":
			depth, i = depth-1, i+2
		default:
			i++
		}
		if depth == 0 {
			l.at = i
			return skipped
		}
	}
	if l.kind == dburl.SQLite { // which takes the end for the end
		l.at = len(l.text)
		return skipped
	}
	l.at = len(l.text)
	return broken
}

// backslashes tells whether one takes the next character in.
func (l *lexer) backslashes(quote byte) bool { return l.kind == dburl.MySQL && quote != '`' }

// quoted goes over a text or a name; a quote that stands twice is one of it.
func (l *lexer) quoted(quote byte, backslashes bool) token {
	for i := l.at + 1; i < len(l.text); i++ {
		switch {
		case l.text[i] == '\\' && backslashes:
			i++
		case l.text[i] != quote:
		case i+1 < len(l.text) && l.text[i+1] == quote:
			i++
		default:
			l.at = i + 1
			return other
		}
	}
	l.at = len(l.text)
	return broken
}

func (l *lexer) until(mark string) token {
	n := strings.Index(l.text[l.at+1:], mark)
	if n < 0 {
		l.at = len(l.text)
		return broken
	}
	return l.over(1+n+len(mark), other)
}

// dollar is a text in dollars ($tag$ … $tag$), or a parameter by number.
func (l *lexer) dollar(rest string) token {
	n := 1 + span(rest[1:], func(b byte) bool { return isWord(b) && b != '$' })
	if n > 1 && rest[1] >= '0' && rest[1] <= '9' {
		return l.over(1+span(rest[1:], func(b byte) bool { return b >= '0' && b <= '9' }), foreign)
	}
	if n == len(rest) || rest[n] != '$' {
		return l.over(1, other)
	}
	tag := rest[:n+1]
	l.at += len(tag)
	return l.until2(tag)
}

func (l *lexer) until2(mark string) token {
	n := strings.Index(l.text[l.at:], mark)
	if n < 0 {
		l.at = len(l.text)
		return broken
	}
	return l.over(n+len(mark), other)
}

// word is a name, or on PostgreSQL the sign before a text with backslashes.
func (l *lexer) word(rest string) token {
	n := span(rest, isWord)
	if l.kind == dburl.PostgreSQL && n == 1 && (rest[0] == 'e' || rest[0] == 'E') && len(rest) > 1 && rest[1] == '\'' {
		l.at++
		return l.quoted('\'', true)
	}
	return l.over(n, other)
}

// sign is whatever else there is.
func (l *lexer) sign(rest string) token {
	two := rest[:min(2, len(rest))]
	name := 0
	if len(rest) > 1 && isLetter(rest[1]) {
		name = span(rest[1:], isName)
	}
	switch {
	case two == "::" || two == ":=":
		return l.over(2, other)
	case rest[0] == ':' && name > 0:
		return l.over(1+name, parameter)
	case rest[0] == '?' && l.kind != dburl.PostgreSQL: // an operator there
		return l.over(1+span(rest[1:], func(b byte) bool { return b >= '0' && b <= '9' }), foreign)
	case l.kind == dburl.SQLite && name > 0 && (rest[0] == '@' || rest[0] == '$'):
		return l.over(1+name, foreign)
	case l.kind == dburl.MySQL && rest[0] == '@': // a variable of the session
		return l.over(1+span(rest[1:], func(b byte) bool { return isWord(b) || b == '@' || b == '.' }), other)
	}
	return l.over(1, other)
}
