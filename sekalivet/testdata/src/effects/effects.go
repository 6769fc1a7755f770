// Package effects is about what Prepare does outside the database.
package effects

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/effect"
)

type shop struct {
	ledger *effect.Ledger
	client *http.Client
	events broker.Publisher
}

var wrong = sekali.Config[pgx.Tx]{Prepare: (&shop{}).prepare}

func (s *shop) prepare(ctx context.Context, m *sekali.Message) (sekali.Commit[pgx.Tx], error) {
	label, err := s.label(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.events.Publish(ctx, m.Message); err != nil { // want `broker\.Publisher\.Publish changes something outside the database without an effect\.Ledger`
		return nil, err
	}
	return func(ctx context.Context, tx pgx.Tx) error {
		if _, err := http.Get("https://example.com"); err != nil { // want `http\.Get is called inside the message's transaction`
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO labels VALUES ($1)`, label)
		return err
	}, nil
}

func (s *shop) label(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://example.com", strings.NewReader(""))
	if err != nil {
		return "", err
	}
	_, err = s.client.Do(req) // want `http\.Client\.Do, called through shop\.label, changes something outside`
	return "", err
}

// Right: the ledger knows of it; and asking changes nothing.
func (s *shop) right(ctx context.Context, m *sekali.Message) (sekali.Commit[pgx.Tx], error) {
	req, err := http.NewRequestWithContext(ctx, "GET", "https://example.com", nil)
	if err != nil {
		return nil, err
	}
	if _, err := s.client.Do(req); err != nil {
		return nil, err
	}
	label, err := effect.Do(ctx, s.ledger, m.Key(), "label", func(ctx context.Context, c effect.Call) (string, error) {
		return s.label(ctx)
	}, effect.Repeat(time.Hour))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO labels VALUES ($1)`, label)
		return err
	}, nil
}

var _ sekali.Preparer[pgx.Tx] = (&shop{}).right
