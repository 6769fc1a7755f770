package store

import (
	"fmt"
	"regexp"
)

// Tables names the tables that a store uses. The zero value means the
// defaults.
type Tables struct {
	// Schema that holds the tables (on MySQL a database). Defaults to none:
	// the connection's own.
	Schema string
	// ProcessedMessages defaults to "processed_messages".
	ProcessedMessages string
	// DeadLetters defaults to "dead_letters".
	DeadLetters string
	// MessageStarts defaults to "message_starts".
	MessageStarts string
	// ExternalEffects defaults to "external_effects".
	ExternalEffects string
	// EntityVersions defaults to "entity_versions".
	EntityVersions string
	// ConsumerStats defaults to "consumer_stats".
	ConsumerStats string
	// AuditTrail defaults to "audit_trail".
	AuditTrail string
	// OutboxMessages defaults to "outbox_messages". Beside it are the tables
	// with which Relays share it: its name with _lanes, _relays and, on MySQL,
	// _locks behind it.
	OutboxMessages string
	// PruningMarks defaults to "pruning_marks".
	PruningMarks string
}

// identifier is what a name of a table may be: it is short enough for every
// database, with room for the suffixes of index names, and never needs quotes
// to keep its meaning.
var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// WithDefaults returns t with its empty names filled in.
func (t Tables) WithDefaults() Tables {
	if t.ProcessedMessages == "" {
		t.ProcessedMessages = "processed_messages"
	}
	if t.DeadLetters == "" {
		t.DeadLetters = "dead_letters"
	}
	if t.MessageStarts == "" {
		t.MessageStarts = "message_starts"
	}
	if t.ExternalEffects == "" {
		t.ExternalEffects = "external_effects"
	}
	if t.EntityVersions == "" {
		t.EntityVersions = "entity_versions"
	}
	if t.ConsumerStats == "" {
		t.ConsumerStats = "consumer_stats"
	}
	if t.AuditTrail == "" {
		t.AuditTrail = "audit_trail"
	}
	if t.OutboxMessages == "" {
		t.OutboxMessages = "outbox_messages"
	}
	if t.PruningMarks == "" {
		t.PruningMarks = "pruning_marks"
	}
	return t
}

// Validate returns an error if one of the names is not made of 1 to 48
// lower-case letters, digits and underscores, or if two are the same. Names
// become part of SQL text, so nothing else is let through.
func (t Tables) Validate() error {
	t = t.WithDefaults()
	if t.Schema != "" && !identifier.MatchString(t.Schema) {
		return fmt.Errorf("schema %q: use 1 to 48 lower-case letters, digits and underscores", t.Schema)
	}
	named := map[string]bool{}
	for _, name := range []string{t.ProcessedMessages, t.DeadLetters, t.MessageStarts, t.AuditTrail, t.ExternalEffects, t.EntityVersions, t.ConsumerStats, t.OutboxMessages, t.PruningMarks} {
		if !identifier.MatchString(name) {
			return fmt.Errorf("table %q: use 1 to 48 lower-case letters, digits and underscores", name)
		}
		if named[name] {
			return fmt.Errorf("table %q is named for two purposes", name)
		}
		named[name] = true
	}
	return nil
}

// In returns name with the schema before it, if there is one.
func (t Tables) In(name string) string {
	if t.Schema == "" {
		return name
	}
	return t.Schema + "." + name
}
