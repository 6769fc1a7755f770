package natsbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/sekali/sekali/broker"
)

var _ broker.Retention = (*Source)(nil)

// Retention implements broker.Retention: it is the stream's MaxAge. A stream
// without one keeps messages without a limit of time, also where its limits of
// bytes and messages make it drop them sooner.
func (s *Source) Retention(ctx context.Context) (age time.Duration, limited bool, err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if err != nil {
		return 0, false, fmt.Errorf("look at stream %q: %w", s.cfg.Stream, connectionError(err))
	}
	age = stream.CachedInfo().Config.MaxAge
	return age, age > 0, nil
}
