// Package config reads the file of sekali run and finds what is wrong with it:
// where, why, and what mends it.
package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in the file; lines and columns count from 1, columns in
// characters. Column 0: it is not known.
type Pos struct{ Line, Column int }

// Problem is something that is wrong with the file.
type Problem struct {
	Pos
	// Field is where it is in words, such as "handle[0].params.sku"; empty: it
	// is the file as a whole.
	Field string
	// Cause is what is wrong, Mend what to do about it.
	Cause, Mend string
}

// Error returns the place, the field, the cause and the mend in one line.
func (p Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "line %d", p.Line)
	if p.Column > 0 {
		fmt.Fprintf(&b, ", column %d", p.Column)
	}
	b.WriteString(": ")
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(oneLine(p.Cause))
	if p.Mend != "" {
		b.WriteString(": " + oneLine(p.Mend))
	}
	return b.String()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Problems are all that is wrong, in the order of the file.
type Problems []Problem

// Error returns a line for each.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems in order as an error; nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return p
}

// near returns the name of known ones that was probably meant; empty: none is
// like it.
func near(name string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(strings.ReplaceAll(strings.ToLower(name), "-", "_"), k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is how many letters have to be added, taken out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
