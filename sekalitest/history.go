package sekalitest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// A history is what happens to one database: lives of processes, one after
// another. After the last, whatever is not acknowledged is delivered in calm.
type history []life

// life is one or more processes that start, get messages, and end: when
// everything is acknowledged, or when the first crashes.
type life struct {
	arrive   []int // indexes of Messages that are published first, a copy each
	again    bool  // the broker begins again with the first message ever published
	together int   // processes that get every message each; 0 and 1: one process
	redrive  bool  // dead letters are processed again
	alone    bool  // one message a transaction
	troubles []trouble
}

// kind is what goes wrong.
type kind uint8

const (
	crashClaimed kind = iota + 1
	crashHandled
	crashCommitted
	crashAcking
	crashPrepared
	failing
	panicking
	stopping
	cancelling
	erring
	throwing
	poisoned
	providerSlow
	providerRefuses
	providerMute
)

var kinds = map[kind]string{
	crashClaimed: "crashes after the claim", crashHandled: "crashes after the handler", crashCommitted: "crashes after the commit",
	crashAcking: "crashes before the ack", crashPrepared: "crashes after Prepare", failing: "fails after its work, once",
	panicking: "panics after its work, once", stopping: "is in work when its process is to stop",
	cancelling: "is cancelled at every statement, one after another", erring: "gets an error from every statement, one after another",
	throwing: "panics at every statement, one after another",
	poisoned: "always fails after its work", providerSlow: "the provider is slow, once",
	providerRefuses: "the provider refuses, once", providerMute: "the provider acts and gives no answer, once",
}

// trouble befalls the first process of a life, at a message: an index of
// Messages, or any of them below 0.
type trouble struct {
	kind    kind
	message int
}

func (t trouble) crash() bool    { return t.kind <= crashPrepared }
func (t trouble) provider() bool { return t.kind >= providerSlow }

func (t trouble) String() string {
	switch {
	case t.provider():
		return kinds[t.kind]
	case t.message < 0:
		return "a message " + kinds[t.kind]
	case t.crash():
		return fmt.Sprintf("the process %s of message %d", kinds[t.kind], t.message+1)
	}
	return fmt.Sprintf("the handler of message %d %s", t.message+1, kinds[t.kind])
}

// String tells a history before it is played.
func (h history) String() string {
	var b strings.Builder
	for i, l := range h {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, l)
	}
	return b.String()
}

func (l life) String() string {
	var parts []string
	if len(l.arrive) > 0 {
		names := make([]string, len(l.arrive))
		for i, m := range l.arrive {
			names[i] = fmt.Sprint(m + 1)
		}
		parts = append(parts, "published: messages "+strings.Join(names, ", "))
	}
	if l.again {
		parts = append(parts, "the broker begins again with its first message")
	}
	if l.redrive {
		parts = append(parts, "dead letters are redriven")
	}
	if l.together > 1 {
		parts = append(parts, fmt.Sprintf("%d processes get every message", l.together))
	} else {
		parts = append(parts, "a process starts")
	}
	for _, t := range l.troubles {
		parts = append(parts, t.String())
	}
	return strings.Join(parts, "; ")
}

// delivery is a history with a name.
type delivery struct {
	name    string
	history history
	seed    uint64 // of a random one
}

// named returns the deliveries for n messages, of which the last are to be
// refused.
func named(n, refused int, anyOrder, provider bool) []delivery {
	all, good := make([]int, n), n-refused
	var twice []int
	for i := range all {
		all[i] = i
		twice = append(twice, i, i)
	}
	back := slices.Clone(all)
	slices.Reverse(back)
	with := func(k kind, m int) history { return history{{arrive: all, troubles: []trouble{{k, m}}}} }
	each := func(k kind) history {
		var l life
		l.arrive = all
		for i := range good {
			l.troubles = append(l.troubles, trouble{k, i})
		}
		return history{l}
	}
	list := []delivery{
		{name: "once", history: history{{arrive: all}}},
		{name: "twice in a row", history: history{{arrive: twice}}},
		{name: "at once, 2 consumers", history: history{{arrive: all, together: 2}}},
		{name: "at once, 8 consumers", history: history{{arrive: all, together: 8}}},
		{name: "crash after the claim", history: with(crashClaimed, 0)},
		{name: "crash after the handler", history: with(crashHandled, 0)},
		{name: "crash after the commit", history: with(crashCommitted, 0)},
		{name: "crash before the ack", history: with(crashAcking, 0)},
		{name: "handler error then success", history: each(failing)},
		{name: "panic", history: each(panicking)},
		{name: "cancelled at every statement", history: each(cancelling)},
		{name: "error at every statement", history: each(erring)},
		{name: "panic at every statement", history: each(throwing)},
		{name: "stop", history: history{{arrive: all, alone: true, troubles: []trouble{{stopping, 0}}}}},
		{name: "poison neighbour", history: with(poisoned, (good-1)/2)},
		{name: "redrive", history: append(with(poisoned, (good-1)/2), life{redrive: true})},
		{name: "restart", history: history{{arrive: all}, {again: true}}},
		{name: "late", history: history{{arrive: all}, {arrive: all[:1]}}},
	}
	if anyOrder {
		list = append(list, delivery{name: "reversed", history: history{{arrive: back}}})
	}
	if provider {
		list = append(list,
			delivery{name: "crash after Prepare", history: with(crashPrepared, 0)},
			delivery{name: "provider slow", history: history{{arrive: all, together: 2, troubles: []trouble{{providerSlow, -1}}}}},
			delivery{name: "provider refuses", history: with(providerRefuses, -1)},
			delivery{name: "provider acts without an answer", history: with(providerMute, -1)})
	}
	return list
}

// random returns the history of a seed.
func random(seed uint64, n int, anyOrder, provider bool) history {
	chance := rand.New(rand.NewPCG(seed, 1))
	var h history
	next, poison := 0, false
	for len(h) < 1+chance.IntN(4) || next < n {
		var l life
		for range 1 + chance.IntN(3) {
			switch {
			case next < n && chance.IntN(3) > 0:
				l.arrive = append(l.arrive, next)
				next++
			case next > 0:
				l.arrive = append(l.arrive, chance.IntN(next))
			}
		}
		l.again = chance.IntN(6) == 0
		if chance.IntN(4) == 0 {
			l.together = 2 + chance.IntN(2)
		}
		for range chance.IntN(3) {
			kinds := []kind{crashClaimed, crashHandled, crashCommitted, crashAcking, failing, panicking, stopping, poisoned}
			if provider {
				kinds = append(kinds, crashPrepared, providerRefuses, providerMute)
			}
			t := trouble{kinds[chance.IntN(len(kinds))], chance.IntN(n)}
			poison = poison || t.kind == poisoned
			l.troubles = append(l.troubles, t)
		}
		h = append(h, l)
	}
	if poison {
		h = append(h, life{redrive: true})
	}
	if anyOrder && chance.IntN(2) == 0 {
		for _, l := range h {
			chance.Shuffle(len(l.arrive), func(i, j int) { l.arrive[i], l.arrive[j] = l.arrive[j], l.arrive[i] })
		}
	}
	return h
}
