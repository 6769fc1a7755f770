package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/sekali/sekali/store"
)

// names are what the SQL files take their names from.
type names struct {
	dialect Dialect
	tables  store.Tables // with defaults

	// AddFingerprint tells that processed_messages is there without the column
	// fingerprint. Only SQLite's files ask: the SQL of others can look itself.
	AddFingerprint bool
}

func namesFor(d Dialect, opts []Option) (names, error) {
	switch d {
	case Postgres, MySQL, SQLite:
	default:
		return names{}, fmt.Errorf("dialect %q is unknown: use %s, %s or %s", d, Postgres, MySQL, SQLite)
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.tables.Validate(); err != nil {
		return names{}, err
	}
	return names{dialect: d, tables: o.tables.WithDefaults()}, nil
}

// Quoted returns a name in quotes: names such as "order" are key words.
func (n names) Quoted(name string) string {
	if n.dialect == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

func (n names) qualified(name string) string {
	if n.tables.Schema == "" {
		return n.Quoted(name)
	}
	return n.Quoted(n.tables.Schema) + "." + n.Quoted(name)
}

// MessagesName is the bare name of processed_messages.
func (n names) MessagesName() string { return n.tables.ProcessedMessages }

// LettersName is the bare name of dead_letters.
func (n names) LettersName() string { return n.tables.DeadLetters }

// StartsName is the bare name of message_starts.
func (n names) StartsName() string { return n.tables.MessageStarts }

// EffectsName is the bare name of external_effects.
func (n names) EffectsName() string { return n.tables.ExternalEffects }

// VersionsName is the bare name of entity_versions.
func (n names) VersionsName() string { return n.tables.EntityVersions }

// StatsName is the bare name of consumer_stats.
func (n names) StatsName() string { return n.tables.ConsumerStats }

// AuditName is the bare name of audit_trail.
func (n names) AuditName() string { return n.tables.AuditTrail }

// OutboxName is the bare name of outbox_messages.
func (n names) OutboxName() string { return n.tables.OutboxMessages }

// Outbox is outbox_messages, with its schema, in quotes.
func (n names) Outbox() string { return n.qualified(n.OutboxName()) }

// OutboxSide is one of the tables beside it, with its schema, in quotes.
func (n names) OutboxSide(suffix string) string { return n.qualified(n.OutboxName() + "_" + suffix) }

// MarksName is the bare name of pruning_marks.
func (n names) MarksName() string { return n.tables.PruningMarks }

// Marks is pruning_marks, with its schema, in quotes.
func (n names) Marks() string { return n.qualified(n.MarksName()) }

// Messages is processed_messages, with its schema, in quotes.
func (n names) Messages() string { return n.qualified(n.MessagesName()) }

// Letters is dead_letters, with its schema, in quotes.
func (n names) Letters() string { return n.qualified(n.LettersName()) }

// Starts is message_starts, with its schema, in quotes.
func (n names) Starts() string { return n.qualified(n.StartsName()) }

// Effects is external_effects, with its schema, in quotes.
func (n names) Effects() string { return n.qualified(n.EffectsName()) }

// Versions is entity_versions, with its schema, in quotes.
func (n names) Versions() string { return n.qualified(n.VersionsName()) }

// Stats is consumer_stats, with its schema, in quotes.
func (n names) Stats() string { return n.qualified(n.StatsName()) }

// Audit is audit_trail, with its schema, in quotes.
func (n names) Audit() string { return n.qualified(n.AuditName()) }

// SchemaValue is an expression whose value is the name of the schema.
func (n names) SchemaValue() string {
	switch {
	case n.tables.Schema != "":
		return "'" + n.tables.Schema + "'"
	case n.dialect == Postgres:
		return "current_schema()"
	}
	return "DATABASE()"
}

// IndexName returns the bare name of an index of one of the tables.
func (n names) IndexName(of, suffix string) string {
	switch of {
	case "Letters":
		return n.LettersName() + "_" + suffix
	case "Effects":
		return n.EffectsName() + "_" + suffix
	case "Audit":
		return n.AuditName() + "_" + suffix
	case "Outbox":
		return n.OutboxName() + "_" + suffix
	}
	return n.MessagesName() + "_" + suffix
}

// Index returns the name of an index as CREATE INDEX wants it. On SQLite the
// index bears the schema and its table does not, elsewhere it is the reverse.
func (n names) Index(of, suffix string) string {
	if n.dialect == SQLite {
		return n.qualified(n.IndexName(of, suffix))
	}
	return n.Quoted(n.IndexName(of, suffix))
}

// versionTable is where it is recorded what was applied to these names.
func (n names) versionTable() string {
	const base = "sekali_migrations"
	plain := store.Tables{}.WithDefaults()
	h := sha256.New()
	renamed := false
	for _, pair := range [][3]string{
		{"processed_messages", n.tables.ProcessedMessages, plain.ProcessedMessages},
		{"dead_letters", n.tables.DeadLetters, plain.DeadLetters},
		{"message_starts", n.tables.MessageStarts, plain.MessageStarts},
		{"external_effects", n.tables.ExternalEffects, plain.ExternalEffects},
		{"entity_versions", n.tables.EntityVersions, plain.EntityVersions},
		{"consumer_stats", n.tables.ConsumerStats, plain.ConsumerStats},
		{"audit_trail", n.tables.AuditTrail, plain.AuditTrail},
		{"outbox_messages", n.tables.OutboxMessages, plain.OutboxMessages},
		{"pruning_marks", n.tables.PruningMarks, plain.PruningMarks},
	} {
		if pair[1] != pair[2] { // a later version's further tables change nothing
			renamed = true
			fmt.Fprintf(h, "%s=%s\n", pair[0], pair[1])
		}
	}
	if !renamed {
		return base
	}
	return base + "_" + hex.EncodeToString(h.Sum(nil)[:4])
}
