package natsbroker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sekali/sekali/broker"
)

const (
	// gatherFor is how long a Receive that has a message waits for others that
	// were there with it. The server says when there are no more, except when
	// MaxAckPending holds them back.
	gatherFor = 10 * time.Millisecond
	// longestRequest bounds how long a request may wait on the server: what is
	// delivered is ours for AckWait from when it was asked for.
	longestRequest = 5 * time.Second
	// lastWait is how long a Receive whose context ended, and Close, wait for
	// what may be on its way.
	lastWait = 50 * time.Millisecond
	// answerGrace is how much later than the end of a request its end may be
	// heard of.
	answerGrace = 2 * time.Second
	// trustFor is how long stream and consumer are taken for unchanged while
	// no request is there that the server would end if they were deleted.
	trustFor = time.Second
)

// pull is a subscription to which requests have messages delivered. There is
// one request at a time, so that all that comes belongs to it or to an earlier
// one.
//
// It is made of the protocol itself, not of nats.go's Fetch and its like: they
// take a message with a header "Status" and no body for one of the server's
// own, and drop it; and they do not tell when it was asked for.
type pull struct {
	inbox string
	sub   *nats.Subscription
	msgs  chan *nats.Msg

	open  int       // how many messages the request may still bring; 0: it has ended
	asked time.Time // when the request was sent
	over  time.Time // when the server ends it
	any   bool      // it brought a message

	connection uint64 // the count of the connection on which it was sent
}

// pullRequest is what the server is asked for. NoWait with Expires means: wait
// for the first message, then send what is there, and say when that was all.
type pullRequest struct {
	Batch   int           `json:"batch"`
	Expires time.Duration `json:"expires"`
	NoWait  bool          `json:"no_wait,omitempty"`
}

// request asks for most messages. s.pull has no open request.
func (s *Source) request(v *view, most int) error {
	most = min(most, v.batch)
	if s.plain {
		most = 1
	}
	if err := s.subscribe(most); err != nil {
		return err
	}
	p := s.pull
	wait := min(longestRequest, v.ackWait/4, v.expires)
	p.asked = time.Now()
	p.over = p.asked.Add(wait)
	p.connection = s.nc.Stats().Reconnects
	if err := s.ask(p.inbox, pullRequest{Batch: most, Expires: wait, NoWait: !s.plain}); err != nil {
		return err
	}
	p.open, p.any = most, false
	s.plain = false
	return nil
}

// apiPrefix is where the API's subjects begin.
func (s *Source) apiPrefix() string {
	o := s.js.Options()
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix == "":
		return "$JS.API."
	case o.APIPrefix[len(o.APIPrefix)-1] == '.':
		return o.APIPrefix
	}
	return o.APIPrefix + "."
}

// subscribe makes a subscription with room for most messages, if there is none.
func (s *Source) subscribe(most int) error {
	if s.pull != nil && cap(s.pull.msgs)-len(s.pull.msgs) > most {
		return nil
	}
	if s.pull != nil {
		ctx, cancel := s.within(context.Background())
		defer cancel()
		s.retire(ctx, 0)
	}
	// One more than messages: a request's end. nats.go drops what finds no room.
	p := &pull{inbox: s.nc.NewInbox(), msgs: make(chan *nats.Msg, max(most, 256)+1)}
	sub, err := s.nc.ChanSubscribe(p.inbox, p.msgs)
	if err != nil {
		return fmt.Errorf("subscribe to what is asked for: %w", connectionError(err))
	}
	p.sub, s.pull = sub, p
	if s.status == nil {
		s.status = s.nc.StatusChanged(nats.CONNECTED)
	}
	return nil
}

// retire ends the subscription and gives back what it brought and nobody has
// received. A message that the server has taken out for us at that very moment
// goes into the void and comes again after AckWait. It cannot be helped in this
// protocol, but is made unlikely: where messages flow, the open request is
// answered within lastWait.
func (s *Source) retire(ctx context.Context, lastWait time.Duration) {
	p := s.pull
	if p == nil {
		return
	}
	s.pull = nil
	s.quiet = time.Now()
	back := p.rest(lastWait)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerGrace)
	defer cancel()
	if s.nc.IsConnected() && p.sub.Drain() == nil {
		_ = s.nc.FlushWithContext(ctx) // what was sent before is in p.msgs now
	} else {
		_ = p.sub.Unsubscribe()
	}
	back = append(back, p.rest(0)...)
	if p.open > 0 && s.nc.IsConnected() {
		back = append(back, s.clearLine(ctx)...)
	}
	_ = s.giveBack(ctx, back) // else they come again when their time is over
}

// clearLine has the server drop the request that retire left without a
// subscription. Servers before 2.10 find that out only when they want to serve
// it, and if what they want to serve is a message that was given back, they
// mislay it until AckWait is over. A request of the shortest kind makes them
// look at all. It returns what that request brought.
func (s *Source) clearLine(ctx context.Context) []*handle {
	p := &pull{inbox: s.nc.NewInbox(), msgs: make(chan *nats.Msg, 2), open: 1}
	sub, err := s.nc.ChanSubscribe(p.inbox, p.msgs)
	if err != nil {
		return nil
	}
	defer func() { _ = sub.Unsubscribe() }()
	if s.ask(p.inbox, pullRequest{Batch: 1, Expires: time.Millisecond}) != nil {
		return nil
	}
	wait, _ := ctx.Deadline() // retire has set one
	return p.rest(time.Until(wait))
}

// ask sends a request for messages.
func (s *Source) ask(inbox string, r pullRequest) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("make a request for messages: %w", err)
	}
	subject := fmt.Sprintf("%sCONSUMER.MSG.NEXT.%s.%s", s.apiPrefix(), s.cfg.Stream, s.cfg.Consumer)
	if err := s.nc.PublishRequest(subject, inbox, data); err != nil {
		return fmt.Errorf("ask for messages: %w", connectionError(err))
	}
	return nil
}

// rest takes out what is there, and what the open request brings within wait.
func (p *pull) rest(wait time.Duration) (back []*handle) {
	over := time.NewTimer(wait)
	defer over.Stop()
	take := func(m *nats.Msg) {
		if isStatus(m) {
			p.open = 0
			return
		}
		p.open = max(p.open-1, 0)
		back = append(back, &handle{reply: m.Reply})
	}
	for p.open > 0 && wait > 0 {
		select {
		case m := <-p.msgs:
			take(m)
		case <-over.C:
			wait = 0
		}
	}
	for len(p.msgs) > 0 {
		take(<-p.msgs)
	}
	return back
}

// isStatus tells the server's own messages, which ask for no acknowledgement.
func isStatus(m *nats.Msg) bool {
	return m.Reply == "" && len(m.Data) == 0 && m.Header.Get("Status") != ""
}

// ended takes the server's word that the request is over. An error is trouble
// that the caller of Receive hears of.
func (s *Source) ended(m *nats.Msg) error {
	p := s.pull
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	if status == "100" { // a sign of life
		return nil
	}
	p.open = 0
	s.quiet = time.Now()
	if s.quiet.After(p.over) { // it has lain here since
		s.quiet = p.over
	}
	if status == "404" || status == "408" { // no more messages; or its time was over
		// Refused at once, for others have asked before us: stand in line, with
		// a request that is not refused.
		s.plain = !p.any && s.quiet.Sub(p.asked) < p.over.Sub(p.asked)/2
		return nil
	}
	s.doubt.Store(true)
	if status == "503" {
		text = "nobody answers for the consumer"
	}
	return fmt.Errorf("the server ended the request: %s (%s)", text, status)
}

// position tells how far a stream was read: a message further on is younger.
type position struct {
	sequence uint64
	at       time.Time
}

// recreated tells that a message cannot be of the stream that was read so far:
// it stands before what we had and was stored after it.
func (h position) recreated(m *nats.MsgMetadata) bool {
	return m.Sequence.Stream <= h.sequence && m.Timestamp.After(h.at)
}

// delivery makes a delivery of a message, after a look at the stream if it is
// another one of the same name: what was delivered from the old one must not be
// acknowledged in the new one.
func (s *Source) delivery(ctx context.Context, m *nats.Msg) (*broker.Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("read where message on %q stands: %w", m.Subject, err)
	}
	if s.highest.recreated(meta) {
		s.doubt.Store(true)
	}
	if err := s.look(ctx); err != nil {
		return nil, err
	}
	if meta.Sequence.Stream > s.highest.sequence {
		s.highest = position{meta.Sequence.Stream, meta.Timestamp}
	}
	return s.deliveryOf(m, meta, s.view.Load(), s.pull.asked), nil
}
