package sekali

import (
	"testing"
	"time"
)

func TestWhoWantsToBeAloneWaitsOnlyAsLongAsItIsPatient(t *testing.T) {
	g := newGate()
	g.enter()
	if g.enterAlone(10 * time.Millisecond) {
		t.Fatal("alone beside somebody")
	}
	entered := make(chan struct{})
	go func() { // its impatience does not keep others out
		g.enter()
		close(entered)
	}()
	<-entered
	g.leave()
	g.leave()
	if !g.enterAlone(time.Minute) {
		t.Fatal("not let in although nobody is inside")
	}
	if g.enterAlone(10 * time.Millisecond) {
		t.Fatal("two of them alone")
	}
	late := make(chan struct{})
	go func() {
		g.enter()
		close(late)
	}()
	select {
	case <-late:
		t.Fatal("entered beside one that is alone")
	case <-time.After(20 * time.Millisecond):
	}
	g.leaveAlone()
	<-late
	g.leave()
}

func TestWhoWaitsToBeAloneIsNotOvertaken(t *testing.T) {
	g := newGate()
	g.enter()
	alone, overtook := make(chan bool), make(chan struct{})
	go func() { alone <- g.enterAlone(time.Minute) }()
	for waiting := false; !waiting; {
		g.mu.Lock()
		waiting = g.waiting > 0
		g.mu.Unlock()
	}
	go func() {
		g.enter()
		close(overtook)
	}()
	select {
	case <-overtook:
		t.Fatal("entered before the one that waits to be alone")
	case <-time.After(20 * time.Millisecond):
	}
	g.leave()
	if !<-alone {
		t.Fatal("gave up")
	}
	g.leaveAlone()
	<-overtook
	g.leave()
}
