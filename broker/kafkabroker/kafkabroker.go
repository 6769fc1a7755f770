// Package kafkabroker receives from and publishes to Apache Kafka, through
// franz-go. It works with what franz-go works with; it is tested against
// Apache Kafka 4.
//
// # How a message travels
//
// Message.Topic is the topic, Message.OrderingKey the record's key, Body its
// value; null and empty ones are kept apart. Message.ID is
// "<topic id>/<partition>/<offset>": the id is new when a topic is deleted and
// made again, so that the messages of the new one are new. Before Kafka 2.8
// topics have no id, and the topic's name stands there: do not make such a
// topic again under its old name. Headers keep their order and their bytes.
//
// # Lanes
//
// A lane is a partition. It belongs to one member of the consumer group at a
// time. Records of one partition may finish in any order; the offset that is
// committed stands before the first one that has not finished, and a Source
// receives no more than MaxAhead records beyond it. A restart delivers those
// after it again, and the keys that are in the database make duplicates of
// those that had finished.
//
// When a lane goes to another member, the Consumer finishes the message that
// it has in work, its offset is committed, and the rest is the other member's.
//
// # Who died
//
// Kafka counts no deliveries. With each committed offset the Source leaves a
// note up to which offset it had handed records over; when it gives a lane up
// in good order the note says that nothing is open. Whoever gets the lane next
// thereby knows which records a dead predecessor may have begun, and marks
// them as Redelivered, which makes the Consumer careful.
package kafkabroker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Options returns the options for franz-go that a URL stands for:
//
//	kafka://[user:password@]host:9092[,host:9092…][?tls=true][&sasl=plain|scram-sha-256|scram-sha-512]
//
// With a user, sasl defaults to plain. What a URL cannot say, such as
// certificates of one's own, goes into SourceConfig.Options. Its errors never
// show a password.
func Options(raw string) ([]kgo.Opt, error) {
	wrong := func(why string) error {
		return fmt.Errorf("the Kafka URL %s %s: write kafka://host:9092", RedactURL(raw), why)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil: // the parser's own error quotes what it could not parse
		return nil, wrong("is not a URL")
	case u.Scheme != "kafka":
		return nil, wrong("does not begin with kafka://")
	case u.Path != "" && u.Path != "/":
		return nil, wrong("has a path, which means nothing here")
	}
	seeds := strings.Split(u.Host, ",")
	for _, seed := range seeds {
		if seed == "" || strings.HasPrefix(seed, ":") {
			return nil, wrong("names no host")
		}
	}
	opts := []kgo.Opt{kgo.SeedBrokers(seeds...)}
	for name, values := range u.Query() {
		switch {
		case name == "tls" && values[0] == "true":
			opts = append(opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
		case name == "tls" && values[0] == "false", name == "sasl":
		default:
			// Not its value, which may be a secret.
			return nil, wrong(fmt.Sprintf("has the parameter %s, and there are only tls=true|false and sasl=plain|scram-sha-256|scram-sha-512", name))
		}
	}
	if u.User == nil {
		if u.Query().Has("sasl") {
			return nil, wrong("asks for sasl, but has no user and password")
		}
		return opts, nil
	}
	mechanism, err := mechanismFor(u)
	if err != nil {
		return nil, wrong(err.Error())
	}
	return append(opts, kgo.SASL(mechanism)), nil
}

func mechanismFor(u *url.URL) (sasl.Mechanism, error) {
	user := u.User.Username()
	password, _ := u.User.Password()
	switch name := u.Query().Get("sasl"); name {
	case "", "plain":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	default:
		return nil, errors.New("asks for an unknown sasl mechanism: use plain, scram-sha-256 or scram-sha-512")
	}
}

// RedactURL returns a URL without its password, and without parameters that it
// does not know, which may hold another one.
func RedactURL(raw string) string {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return "…"
	}
	if rest, parameters, has := strings.Cut(rest, "?"); has {
		known := ""
		for p := range strings.SplitSeq(parameters, "&") {
			if name, _, _ := strings.Cut(p, "="); name == "tls" || name == "sasl" {
				known += "&" + p
			} else {
				known += "&…"
			}
		}
		return RedactURL(scheme+"://"+rest) + "?" + strings.TrimPrefix(known, "&")
	}
	at := strings.LastIndex(rest, "@")
	if at < 0 {
		return raw
	}
	user, _, has := strings.Cut(rest[:at], ":")
	if has {
		user += ":…"
	}
	return scheme + "://" + user + rest[at:]
}
