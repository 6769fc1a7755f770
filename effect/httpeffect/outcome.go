package httpeffect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/sekali/sekali/effect"
)

// StatusError is an answer that is no success.
type StatusError struct {
	Status int
	// Text is the beginning of the answer's body, in one line.
	Text string
}

// Error tells both.
func (e *StatusError) Error() string {
	text := "the provider says " + strconv.Itoa(e.Status) + " " + http.StatusText(e.Status)
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// later is an error that says when to come back.
type later struct {
	error
	after time.Duration
}

func (l *later) Unwrap() error             { return l.error }
func (l *later) RetryAfter() time.Duration { return l.after }

// permanent will not become better by trying again, although what was sent may
// have had its effect.
type permanent struct{ error }

func (p *permanent) Unwrap() error   { return p.error }
func (p *permanent) Permanent() bool { return true }

// hostFailed tells whether an attempt counts against its host.
func hostFailed(resp *http.Response, err error) bool {
	if err != nil {
		return !errors.Is(err, context.Canceled) && !errors.Is(err, effect.ErrOtherRequest)
	}
	return resp != nil && resp.StatusCode >= 500
}

// notSent tells whether an error came before anything was sent.
func notSent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) ||
		errors.As(err, &record) || errors.As(err, &verify) || errors.Is(err, circuitbreaker.ErrOpen)
}

// what an answer, or none, means.
type meaning uint8

const (
	done meaning = iota
	notDone
	unknown
	refused // certainly not done, and not to be tried again
	mistake // not to be tried again, and perhaps done before
)

func meaningOf(resp *http.Response, err error) meaning {
	if err != nil {
		if notSent(err) {
			return notDone
		}
		return unknown
	}
	_, when := retryAfter(resp, time.Now())
	switch s := resp.StatusCode; {
	case s < 400:
		return done
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable && when:
		return notDone
	case s == http.StatusConflict, s == http.StatusRequestTimeout, s >= 500:
		return unknown
	case s == http.StatusUnprocessableEntity:
		return mistake
	}
	return refused
}

// maxRetryAfter bounds what is believed of a Retry-After.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header, in seconds or as a date; false if there is
// none that can be read.
func retryAfter(resp *http.Response, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(resp.Header.Get("Retry-After"))
	if text == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		if seconds < 0 {
			return 0, false
		}
		return time.Duration(min(seconds, int64(maxRetryAfter/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(0, at.Sub(now)), maxRetryAfter), true
}

// uncertain marks an answer before which an attempt is unknown.
const uncertain = "Sekali-Earlier-Attempt"

// maxText is how much of an answer's body an error shows, in bytes.
const maxText = 300

// Check returns nil for an answer that is a success, whose body the caller
// reads and closes. Else it closes the body and returns an error that a ledger
// understands: see the package's table. It wraps a *StatusError.
func Check(resp *http.Response) error {
	what := meaningOf(resp, nil)
	if what == done {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxText)) // what there is of it
	_ = resp.Body.Close()
	var err error = &StatusError{Status: resp.StatusCode, Text: oneLine(string(text))}
	if after, ok := retryAfter(resp, time.Now()); ok {
		err = &later{err, after}
	}
	return judged(what, err, resp.Header.Get(uncertain) != "")
}

// judged says what an error means for the effect. doubt: an earlier attempt is
// unknown, so that nothing is certain.
func judged(what meaning, err error, doubt bool) error {
	switch {
	case what == mistake, what == refused && doubt:
		return &permanent{err}
	case doubt:
		return err
	case what == notDone:
		return effect.NotDone(err)
	case what == refused:
		return effect.Refused(err)
	}
	return err
}

// oneLine returns text without what is not printable.
func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))), " ")
}

// opened is the error of a host whose circuit is open.
func opened(host string, after time.Duration) error {
	return &later{fmt.Errorf("%s has failed too often and is sent nothing for %v: %w", host, after.Round(time.Millisecond), circuitbreaker.ErrOpen), after}
}
