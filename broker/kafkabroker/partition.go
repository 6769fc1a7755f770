package kafkabroker

import (
	"sort"
	"strconv"

	"github.com/sekali/sekali/broker"
	"github.com/twmb/franz-go/pkg/kgo"
)

// place names a partition.
type place struct {
	topic  string
	number int32
}

func (p place) lane() string { return p.topic + "/" + strconv.Itoa(int(p.number)) }

// state is where a record stands.
type state uint8

const (
	waiting state = iota // to be handed over
	out                  // in the Consumer's hand
	done                 // settled
)

// entry is a record on its way.
type entry struct {
	record *kgo.Record // nil once it is done
	offset int64
	epoch  int32
	state  state
	turn   int // grows when the record is taken back: older deliveries are lost
}

// partition is an assigned partition: its records from the first one that is
// not done, in the order of their offsets. An instance lives from the
// assignment to the revocation; a delivery of an earlier one settles nothing.
type partition struct {
	place
	incarnation string // of the topic: its id

	entries []*entry
	// next is an index before which no entry waits.
	next int
	// end is the offset after the last record received: gaps do not matter.
	end      int64
	endEpoch int32
	handed   int64 // offset after the last record that was ever handed over

	// suspects are the records below this offset: a predecessor that did not
	// end cleanly may have begun them.
	suspects int64
	// committed and noted are what the broker knows: the offset, and the note
	// up to where records may have been handed over. None above is.
	committed, noted int64
	sinceNote        int // records handed over since the last note

	paused bool
}

const none = int64(-1)

func newPartition(p place) *partition {
	return &partition{place: p, end: none, handed: none, suspects: none, committed: none, noted: none, endEpoch: -1}
}

// add takes a record in. Those that are there already do not count.
func (p *partition) add(r *kgo.Record) {
	if r.Offset < p.end {
		return
	}
	e := &entry{record: r, offset: r.Offset, epoch: r.LeaderEpoch}
	if r.Attrs.IsControl() {
		e.record, e.state = nil, done
	}
	p.entries = append(p.entries, e)
	p.end, p.endEpoch = r.Offset+1, r.LeaderEpoch
	p.trim()
}

// peek returns the first record that waits; nil: none does.
func (p *partition) peek() *entry {
	for p.next < len(p.entries) && p.entries[p.next].state != waiting {
		p.next++
	}
	if p.next == len(p.entries) {
		return nil
	}
	return p.entries[p.next]
}

// waits tells how many records wait, those between them that are done
// included.
func (p *partition) waits() int { return len(p.entries) - p.next }

// handOver hands the first record that waits over.
func (p *partition) handOver() *broker.Delivery {
	e := p.peek()
	e.state = out
	p.next++
	p.handed = max(p.handed, e.offset+1)
	p.sinceNote++
	return &broker.Delivery{
		Message: message(e.record, p.incarnation), Lane: p.lane(),
		Redelivered: e.offset < p.suspects || e.turn > 0,
		Handle:      &ticket{p, e, e.turn},
	}
}

// finish marks an entry as done.
func (p *partition) finish(e *entry) {
	e.state, e.record = done, nil
	p.trim()
}

// takeBack has a record wait again, in its place. Others that are in hand
// stay there: who holds several of an order gives all of them back.
func (p *partition) takeBack(e *entry) {
	e.state = waiting
	e.turn++
	at := sort.Search(len(p.entries), func(i int) bool { return p.entries[i].offset >= e.offset })
	p.next = min(p.next, at)
}

// trim drops what is done from the front.
func (p *partition) trim() {
	n := 0
	for n < len(p.entries) && p.entries[n].state == done {
		p.entries[n] = nil
		n++
	}
	p.entries = p.entries[n:]
	p.next = max(p.next-n, 0)
}

// head is the offset to commit: all records before it are done. False: no
// record was received yet.
func (p *partition) head() (kgo.EpochOffset, bool) {
	if len(p.entries) > 0 {
		return kgo.EpochOffset{Offset: p.entries[0].offset, Epoch: p.entries[0].epoch}, true
	}
	return kgo.EpochOffset{Offset: p.end, Epoch: p.endEpoch}, p.end != none
}

// How far a note reaches beyond what was handed over, so that not every
// delivery needs a commit of its own: twice as far as it took since the last
// one. The less it reaches, the fewer records are suspect after a death.
const (
	noteAtLeast = 16
	noteAtMost  = 1000
)

// note says up to where records may have been begun: what was handed over,
// what may be before the next commit, and a predecessor's that are still
// ahead.
func (p *partition) note() int64 {
	n := p.handed
	if e := p.peek(); e != nil {
		n = max(n, e.offset)
	}
	return max(n+int64(min(max(2*p.sinceNote, noteAtLeast), noteAtMost)), p.suspects)
}

// cleanNote is the note of a lane that is given up: records in hand are open,
// and a predecessor's that were not reached.
func (p *partition) cleanNote() int64 {
	head, _ := p.head()
	n := head.Offset
	if p.suspects > n {
		n = p.suspects
	}
	for _, e := range p.entries {
		if e.state == out {
			n = max(n, e.offset+1)
		}
	}
	return n
}

// ticket is the Handle of a delivery.
type ticket struct {
	partition *partition
	entry     *entry
	turn      int
}
