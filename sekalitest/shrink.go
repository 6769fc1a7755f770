package sekalitest

import (
	"slices"
	"testing"
	"time"
)

// Bounds of the search for a shorter history.
const (
	maxShrinks = 60
	shrinkTime = 20 * time.Second
)

// shrink takes things out of a history as long as it still fails.
func (s *suite[Tx]) shrink(t testing.TB, f *failure) *failure {
	t.Helper()
	end, tries := time.Now().Add(shrinkTime), 0
	for shorter := true; shorter; {
		shorter = false
		for _, h := range smaller(f.history) {
			if tries >= maxShrinks || time.Now().After(end) {
				break
			}
			tries++
			if g := s.try(t, h); g != nil {
				f, shorter = g, true
				break
			}
		}
	}
	f.tries = tries
	return f
}

// smaller returns what a history becomes when one thing is taken out of it,
// the largest things first.
func smaller(h history) (all []history) {
	for i := range h {
		if len(h) > 1 {
			all = append(all, slices.Delete(h.clone(), i, i+1))
		}
	}
	for _, m := range h.messages() {
		all = append(all, h.without(m))
	}
	change := func(i int, f func(*life)) {
		c := h.clone()
		f(&c[i])
		all = append(all, c)
	}
	for i, l := range h {
		for j := range l.troubles {
			change(i, func(l *life) { l.troubles = slices.Delete(l.troubles, j, j+1) })
		}
		if l.together > 2 {
			change(i, func(l *life) { l.together = 2 })
		}
		if l.together > 1 {
			change(i, func(l *life) { l.together = 0 })
		}
		if l.again {
			change(i, func(l *life) { l.again = false })
		}
		for j := range l.arrive {
			change(i, func(l *life) { l.arrive = slices.Delete(l.arrive, j, j+1) })
		}
	}
	return slices.DeleteFunc(all, func(h history) bool { return len(h.messages()) == 0 })
}

func (h history) clone() history {
	c := slices.Clone(h)
	for i := range c {
		c[i].arrive, c[i].troubles = slices.Clone(c[i].arrive), slices.Clone(c[i].troubles)
	}
	return c
}

// messages returns the messages that arrive in it, each once.
func (h history) messages() (all []int) {
	for _, l := range h {
		all = append(all, l.arrive...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// without is the history of all messages but one.
func (h history) without(m int) history {
	c := h.clone()
	for i := range c {
		c[i].arrive = slices.DeleteFunc(c[i].arrive, func(x int) bool { return x == m })
		c[i].troubles = slices.DeleteFunc(c[i].troubles, func(t trouble) bool { return t.message == m })
	}
	return c
}
