package sqlstore

import (
	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/outbox"
)

var _ admin.Keeper = (*Store)(nil)

// Admin returns what people look at and decide about.
func (s *Store) Admin() admin.Admin {
	l := letters{s}
	return admin.Admin{
		Keys:        keyDesk{l},
		DeadLetters: l,
		Effects:     effects{l},
		Outbox:      events{l},
		Health:      health{l},
	}
}

var (
	_ deadletter.Desk = letters{}
	_ effect.Desk     = effects{}
	_ outbox.Desk     = events{}
)
