package sekalivet

import (
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// judge makes findings of what the functions do that Sekali calls.
func (s *scan) judge() map[check][]analysis.Diagnostic {
	found := map[check][]analysis.Diagnostic{}
	told := map[telling]bool{}
	for _, e := range s.entries {
		if !e.at().IsValid() || s.inTest(e.at()) {
			continue
		}
		for _, d := range s.wrongs(e) {
			at := d.pos
			if e.fn == nil && e.callee != nil {
				at = e.pos // the line is of another package
			}
			if id := (telling{d.Check, at}); !told[id] {
				told[id] = true
				found[d.Check] = append(found[d.Check], analysis.Diagnostic{
					Pos: at, Category: string(d.Check), Message: d.message(s.lineAt(at)), SuggestedFixes: d.fixes,
				})
			}
		}
	}
	return found
}

// telling keeps a finding from being told twice, because two handlers call what
// does it.
type telling struct {
	check check
	pos   token.Pos
}

// inTest tells whether something stands in a test.
func (s *scan) inTest(pos token.Pos) bool {
	return strings.HasSuffix(s.Fset.Position(pos).Filename, "_test.go")
}

func (s *scan) lineAt(pos token.Pos) string { return where(s.Fset, pos) }

// wrongs returns what an entry does and must not.
func (s *scan) wrongs(e entry) []deed {
	switch e.role {
	case extractor:
		return s.keyDeedsAt(e)
	case ordering:
		var wrong []deed
		for _, d := range s.keyDeedsAt(e) {
			if d.Check == key {
				wrong = append(wrong, d)
			}
		}
		return wrong
	}
	var wrong []deed
	for _, d := range s.deedsAt(e) {
		switch {
		case s.allow.allows(e.at()) && e.fn == nil:
		case e.role == preparer && d.Check == network && d.Sends:
			d.Check, d.Why = effects, whyEffect
			wrong = append(wrong, d)
		case e.role == preparer && d.Check == settle:
			wrong = append(wrong, d)
		case e.role != preparer && (d.Subject == nobody || d.Subject == e.role.transaction()):
			wrong = append(wrong, d)
		}
	}
	return wrong
}

// deedsAt returns what an entry's function does.
func (s *scan) deedsAt(e entry) []deed {
	if e.fn != nil {
		return s.deedsOf(e.fn)
	}
	var deeds []deed
	if fact := s.factOf(e.callee); fact != nil {
		for _, d := range fact.Deeds {
			deeds = append(deeds, d.through(qualified(e.callee), d.Subject))
		}
	}
	return deeds
}

// message is what is told of a deed that is reported at a line.
func (d deed) message(line string) string {
	text := d.What
	if len(d.Via) > 0 {
		text += ", called through " + strings.Join(d.Via, " → ")
		if d.Where != line {
			text += " (" + d.Where + ")"
		}
		text += ","
	}
	return text + " " + d.Why
}
