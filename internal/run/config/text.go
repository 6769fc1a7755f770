package config

import (
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Text is a single value of the file.
type Text struct {
	Pos
	// Field is where it is in words.
	Field string
	// Value as it is to be used: that of the environment is in it, where it may
	// be.
	Value string
	// Written is the value as it stands in the file: what messages may show.
	Written string

	file  *file
	style yaml.Style
}

// Given tells whether the file has it.
func (t Text) Given() bool { return t.Line > 0 }

// Problem returns what is wrong with the value.
func (t Text) Problem(cause, mend string) Problem {
	return Problem{Pos: t.Pos, Field: t.Field, Cause: cause, Mend: mend}
}

// At returns the place of the line and the column, both from 1, within the
// value; that of the whole where it cannot be told.
func (t Text) At(line, column int) Pos {
	switch {
	case t.style&yaml.LiteralStyle != 0:
		// The lines below the mark are the value's own, indented.
		at := t.Line + line
		if at > len(t.file.lines) {
			return t.Pos
		}
		return Pos{at, t.file.indent(t.Line+1) + column}
	case line > 1 || t.style&yaml.FoldedStyle != 0:
		return t.Pos
	case t.style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		column++
	}
	return Pos{t.Line, t.Column + column - 1}
}

// Offset is At for a byte of the value.
func (t Text) Offset(n int) Pos {
	before := t.Written[:min(n, len(t.Written))]
	line := strings.Count(before, "\n") + 1
	return t.At(line, len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))+1)
}

// variable is one of the environment in a value: $$ stands for a single dollar
// before a brace.
var variable = regexp.MustCompile(`\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{`)

// expand puts values of the environment into a text.
func (f *file) expand(t Text) string {
	return variable.ReplaceAllStringFunc(t.Written, func(found string) string {
		parts := variable.FindStringSubmatch(found)
		switch {
		case found == "$${":
			return "${"
		case parts[1] == "":
			f.problem(t.Problem(`it has a "${" that names no variable of the environment`, `write ${NAME} or ${NAME:-default}, or $${ for the text itself`))
			return found
		}
		value, set := f.lookup(parts[1])
		switch {
		case value != "":
			f.used(parts[1], value)
			return value
		case parts[2] != "":
			return parts[3]
		case !set:
			f.problem(t.Problem("the variable "+parts[1]+" is not set in the environment", "set it, or give a default: ${"+parts[1]+":-…}"))
		default:
			f.problem(t.Problem("the variable "+parts[1]+" is empty in the environment", "set it, or give a default: ${"+parts[1]+":-…}"))
		}
		return ""
	})
}
