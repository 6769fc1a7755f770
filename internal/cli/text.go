package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// plain returns text as a terminal may show it: what is not printable is
// escaped, for a key or an error can hold any bytes, commands to the terminal
// among them.
func plain(text string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.QuoteToGraphic(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// short returns plain text of at most n runes.
func short(text string, n int) string { return cut(plain(text), n) }

func cut(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-1]) + "…"
}

// escapeKey returns a key as a terminal may show it, without loss: unescapeKey
// takes it back, so that what was printed can be pasted into a command.
func escapeKey(key string) string {
	var b strings.Builder
	for rest := key; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, rest[0])
		case r == '\\' || !unicode.IsPrint(r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
		rest = rest[size:]
	}
	return b.String()
}

// unescapeKey returns the key that a person means: bytes as they are, but those
// that a backslash begins, which escapeKey writes and Go reads.
func unescapeKey(text string) (string, error) {
	var b strings.Builder
	for rest := text; ; {
		before, _, escaped := strings.Cut(rest, `\`)
		b.WriteString(before)
		if !escaped {
			return b.String(), nil
		}
		rest = rest[len(before):]
		r, multibyte, tail, err := strconv.UnquoteChar(rest, 0)
		if err != nil {
			return "", fmt.Errorf(`%s: what follows the backslash at %q is none of \n, \r, \t, \x1b, \u00e4 and the like: a backslash itself is written \\`, text, rest)
		}
		if r < utf8.RuneSelf || multibyte {
			b.WriteRune(r)
		} else {
			b.WriteByte(byte(r))
		}
		rest = tail
	}
}

// escapes is said in the help of commands that take keys.
const escapes = "A key is written as lists print it: \\n, \\x1b and the like for what a terminal cannot show, \\\\ for a backslash."

// shortKey returns an escaped key of at most n runes.
func shortKey(key string, n int) string { return cut(escapeKey(key), n) }

// givenText is the value of a flag that chooses: an empty one, as a shell makes
// of a variable that is not set, would choose all, or change nothing.
type givenText struct {
	to   *string
	read func(string) (string, error)
}

func (g givenText) String() string {
	if g.to == nil {
		return ""
	}
	return *g.to
}

func (g givenText) Type() string { return "string" }

func (g givenText) Set(text string) (err error) {
	if text == "" {
		return errors.New("it is empty: leave it out, or say which")
	}
	*g.to, err = g.read(text)
	return err
}

// textFlag adds a flag whose text must not be empty.
func textFlag(c *cobra.Command, to *string, name, use string) {
	c.Flags().Var(givenText{to, func(text string) (string, error) { return text, nil }}, name, use)
}

// keyFlag adds a flag for a key as escapeKey writes it.
func keyFlag(c *cobra.Command, to *string, name, use string) {
	c.Flags().Var(givenText{to, unescapeKey}, name, use)
}

// keysOf reads keys among a command's arguments.
func keysOf(args []string) ([]string, error) {
	keys := make([]string, len(args))
	for i, arg := range args {
		key, err := unescapeKey(arg)
		if err != nil {
			return nil, usagef("key %w", err)
		}
		keys[i] = key
	}
	return keys, nil
}

// printable tells whether bytes are text that a person can read as it is.
func printable(b []byte) bool {
	return utf8.Valid(b) && strings.IndexFunc(string(b), func(r rune) bool {
		return !unicode.IsPrint(r) && r != '\n' && r != '\t' && r != '\r'
	}) < 0
}

// jsonBytes is a byte string in JSON without loss: text where it is valid
// UTF-8, else an object with its base64; null where there is none.
func jsonBytes(b []byte) any {
	switch {
	case b == nil:
		return nil
	case utf8.Valid(b):
		return string(b)
	}
	return map[string][]byte{"base64": b}
}

// writeJSON writes one value, indented.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// writeTable writes rows in columns, the first one as their heads.
func writeTable(w io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}
