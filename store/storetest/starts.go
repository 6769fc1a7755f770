package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/sekali/sekali/store"
)

func startTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a start is recorded at once and lone ones are counted", f: startsCount[Tx]},
		{name: "starts of different messages are apart", f: startsApart[Tx]},
		{name: "a start ends with the claim's commit and not with its rollback", f: startsEndIn[Tx]},
		{name: "lone starts at once lose none", f: startsAtOnce[Tx]},
		{name: "a missing table of starts is named", f: startsWithoutTable[Tx], empty: true},
	}
}

// starts returns the starts that a client's store keeps.
func (b *bench[Tx]) starts(c Client[Tx]) store.Starts[Tx] {
	b.t.Helper()
	s, ok := store.As[interface{ Starts() store.Starts[Tx] }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Starts", c.Store)
	}
	return s.Starts()
}

// start starts, and wants that many lone starts.
func (b *bench[Tx]) start(s store.Starts[Tx], key string, lone bool, want int) {
	b.t.Helper()
	got, err := s.Start(b.ctx, consumer, key, lone)
	if err != nil {
		b.t.Fatal(err)
	}
	if got != want {
		b.t.Fatalf("after a start of %q there are %d lone ones, want %d", key, got, want)
	}
}

// wantStarts looks through another connection; lone below 0: none is recorded.
func (b *bench[Tx]) wantStarts(key string, lone int) {
	b.t.Helper()
	recorded, got, err := b.starts(b.Two).Look(b.ctx, consumer, key)
	if err != nil {
		b.t.Fatal(err)
	}
	if recorded != (lone >= 0) || recorded && got != lone {
		b.t.Fatalf("of %q a start is recorded: %v, with %d lone ones; want %d", key, recorded, got, lone)
	}
}

func (b *bench[Tx]) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func startsCount[Tx any](b *bench[Tx]) {
	s := b.starts(b.One)
	b.wantStarts("k", -1)
	b.start(s, "k", false, 0)
	b.wantStarts("k", 0)
	b.start(s, "k", false, 0)
	for n := 1; n <= 3; n++ {
		b.start(s, "k", true, n)
		b.wantStarts("k", n)
	}
	b.start(s, "k", false, 3)
	for _, n := range []int{2, 1, 0, 0} {
		b.ok(s.TakeBack(b.ctx, consumer, "k"))
		b.wantStarts("k", n)
	}
	b.ok(s.End(b.ctx, consumer, "k"))
	b.wantStarts("k", -1)
	b.ok(s.End(b.ctx, consumer, "k"))
	b.ok(s.TakeBack(b.ctx, consumer, "k"))
	b.wantStarts("k", -1)
	b.start(s, "lone at first", true, 1)
}

func startsApart[Tx any](b *bench[Tx]) {
	s := b.starts(b.One)
	keys := []string{"k", "K", "k ", " k", "k\x00", "\xff", "k\u0301", "sha256:k", strings.Repeat("k", 4096), strings.Repeat("k", 4095) + "l"}
	for i, key := range keys {
		for range i + 1 {
			_, err := s.Start(b.ctx, consumer, key, true)
			b.ok(err)
		}
	}
	_, err := s.Start(b.ctx, "another", "k", true)
	b.ok(err)
	for i, key := range keys {
		b.wantStarts(key, i+1)
	}
	b.ok(s.End(b.ctx, consumer, "k"))
	b.wantStarts("k ", 3)
	if recorded, n, err := s.Look(b.ctx, "another", "k"); err != nil || !recorded || n != 1 {
		b.t.Errorf("the other consumer's start: recorded %v, %d, %v", recorded, n, err)
	}
}

func startsEndIn[Tx any](b *bench[Tx]) {
	s := b.starts(b.One)
	b.start(s, "k", true, 1)
	for _, commit := range []bool{false, true} {
		tx, states, err := b.One.Store.Begin(b.ctx, claimOf("k"))
		b.ok(err)
		if states[0] != store.Fresh {
			b.t.Fatalf("the key is %v", states[0])
		}
		b.ok(s.EndIn(b.ctx, tx, consumer, "k"))
		if commit {
			b.ok(b.One.Store.Commit(b.ctx, tx))
			b.wantStarts("k", -1)
		} else {
			b.ok(b.One.Store.Rollback(b.ctx, tx))
			b.wantStarts("k", 1)
		}
	}
}

func startsAtOnce[Tx any](b *bench[Tx]) {
	var all sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		s := b.starts([]Client[Tx]{b.One, b.Two}[i%2])
		all.Go(func() { _, errs[i] = s.Start(b.ctx, consumer, "k", true) })
	}
	all.Wait()
	b.ok(errors.Join(errs...))
	b.wantStarts("k", len(errs))
}

func startsWithoutTable[Tx any](b *bench[Tx]) {
	s := b.starts(b.One)
	_, _, look := s.Look(b.ctx, consumer, "k")
	_, start := s.Start(b.ctx, consumer, "k", true)
	for name, err := range map[string]error{"Check": s.Check(b.ctx), "Look": look, "Start": start, "End": s.End(b.ctx, consumer, "k")} {
		var schema *store.SchemaError
		if !errors.As(err, &schema) || schema.Table != "message_starts" || !strings.Contains(fmt.Sprint(err), "sekali migrate up") {
			b.t.Errorf("%s: %v, want a SchemaError of message_starts that names sekali migrate up", name, err)
		}
		if class := b.One.Store.Classify(err); class != store.ClassMisconfigured {
			b.t.Errorf("%s: the class is %v", name, class)
		}
	}
}
