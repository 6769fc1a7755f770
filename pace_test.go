package sekali

import (
	"testing"
	"time"
)

// pass plays a window in which all that may be open was, at a rate of messages
// a second.
func (p *pace) pass(rate int) {
	p.mu.Lock()
	p.open = p.width
	p.window = window{began: time.Now().Add(-time.Second), full: true, messages: rate - 1, transactions: 2*p.width - 1}
	p.mu.Unlock()
	p.went(1, time.Millisecond)
	p.mu.Lock()
	p.open = 0
	p.mu.Unlock()
}

func TestAConsumerGrowsWhileThatDoesNoHarm(t *testing.T) {
	p := newPace(Batch{Size: 100, MaxOpen: time.Second}, 16)
	for _, want := range []int{1, 2, 4, 8, 16, 16} {
		if p.width != want {
			t.Fatalf("%d transactions at once, want %d", p.width, want)
		}
		p.pass(10_000) // no more than before: that is no harm
	}
	if p.size != 100 {
		t.Errorf("batches of %d", p.size)
	}
}

func TestAGrowthThatWasAMistakeIsTakenBackAndNotTriedSoonAgain(t *testing.T) {
	p := newPace(Batch{Size: 100, MaxOpen: time.Second}, 16)
	for _, rate := range []int{10_000, 10_000, 3_000} {
		p.pass(rate)
	}
	if p.width != 2 || p.patience < firstPatience {
		t.Errorf("%d transactions at once, patient for %v; want 2, for %v", p.width, p.patience, firstPatience)
	}
	p.pass(10_000)
	if p.width != 2 {
		t.Errorf("it grew at once again, to %d", p.width)
	}
	p.since = time.Now().Add(-2 * firstPatience)
	p.pass(10_000)
	if p.width != 4 {
		t.Errorf("it did not grow when its patience was over: %d", p.width)
	}
	p.pass(1_000)
	if p.width != 2 || p.patience != 2*firstPatience {
		t.Errorf("after another mistake: %d at once, patient for %v", p.width, p.patience)
	}
}

func TestAConflictAloneMakesBatchesSmallerAndBesideOthersFewer(t *testing.T) {
	p := newPace(Batch{Size: 100, MaxOpen: time.Second}, 16)
	p.width, p.open = 8, 5
	p.conflict()
	if p.width != 4 || p.size != 100 {
		t.Errorf("beside others: %d of %d", p.width, p.size)
	}
	p.width, p.open = 1, 1
	for range 10 {
		p.conflict()
	}
	if p.width != 1 || p.size != 1 {
		t.Errorf("alone: %d of %d", p.width, p.size)
	}
	p.since = time.Now().Add(-2 * lastPatience)
	for range 10 {
		p.pass(10_000)
		p.since = time.Now().Add(-2 * lastPatience)
	}
	if p.size != 100 || p.width != 8 {
		t.Errorf("grown again: %d of %d, want 8 of 100: batches first", p.width, p.size)
	}
}

func TestSlowHandlersGetSmallBatches(t *testing.T) {
	p := newPace(Batch{Size: 100, MaxOpen: 200 * time.Millisecond}, 1)
	for range 100 {
		p.went(1, 50*time.Millisecond)
	}
	if n := p.batch(); n < 3 || n > 5 {
		t.Errorf("batches of %d handlers of 50 ms, want about 4", n)
	}
	for range 100 {
		p.went(100, time.Millisecond)
	}
	if n := p.batch(); n != 100 {
		t.Errorf("batches of %d handlers of 10 µs, want 100", n)
	}
}
