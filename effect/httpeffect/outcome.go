package httpeffect

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
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

// notSent tells whether an error of a Base that reports to no httptrace came
// before anything was sent.
func notSent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) ||
		errors.As(err, &record) || errors.As(err, &verify)
}

// what an answer, or none, means.
type meaning uint8

const (
	notDone meaning = iota // as before the first attempt
	unknown
	done
	refused // certainly not done, and not to be tried again
	mistake // not to be tried again, and perhaps done before
)

func meaningOf(resp *http.Response) meaning {
	_, when := retryAfter(resp)
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		return done
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable && when:
		return notDone
	case s == http.StatusConflict, s == http.StatusRequestTimeout, s >= 500:
		return unknown
	case s == http.StatusUnprocessableEntity, s < 400:
		return mistake
	}
	return refused
}

// maxRetryAfter bounds what is believed of a Retry-After.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header, in seconds or as a date by the provider's
// clock; false if there is none that can be read.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	text := strings.TrimSpace(resp.Header.Get("Retry-After"))
	if text != "" && strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if limit := int64(maxRetryAfter / time.Second); err != nil || seconds > limit {
			seconds = limit
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	now, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(0, at.Sub(now)), maxRetryAfter), true
}

// uncertain marks an answer before which an attempt is unknown. In a header
// field it survives whatever wraps the answer's body.
const uncertain = "Sekali-Earlier-Attempt"

// maxText is how much of an answer's body an error shows, in bytes.
const maxText = 300

// Check returns nil for an answer of a Transport, or of a client that sends by
// it, that is a success (2xx), whose body the caller reads and closes. Else it
// closes the body and returns an error that a ledger understands, which wraps
// a *StatusError: see the package's table.
func Check(resp *http.Response) error {
	what := meaningOf(resp)
	if what == done {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxText)) // what there is of it
	drain(resp.Body)
	var err error = &StatusError{Status: resp.StatusCode, Text: oneLine(string(text))}
	// One of zero is none: coming back at once, and uncounted, has no end.
	if after, _ := retryAfter(resp); after > 0 && (what == notDone || what == unknown) {
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

// WithoutURL returns an error of an http.Client without the URL that it shows,
// whose query may hold secrets. Others it returns as they are, nil too.
func WithoutURL(err error) error {
	if u, ok := err.(*url.Error); ok { // what wraps one shows it already
		return fmt.Errorf("%s: %w", u.Op, u.Err)
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
	host = oneLine(host)
	return &later{fmt.Errorf("%s has failed too often and is sent nothing for %v: %w", host, after.Round(time.Millisecond), circuitbreaker.ErrOpen), after}
}
