package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	// Error: messages are not processed, or an effect may be lost or happen
	// twice.
	Error Severity = "error"
	// Warning: something waits for a person, or will become an error.
	Warning Severity = "warning"
)

// Finding is something that is not as it should be.
type Finding struct {
	// Check names what was looked at: see Checks.
	Check    string
	Severity Severity
	// About is the table, the consumer or the setting; empty: the whole.
	About string
	// Found is what is so, Means what comes of it, Mend the command or the
	// statement that mends it, or what to do.
	Found, Means, Mend string
}

// Question is what to judge Facts by.
type Question struct {
	// Workers is how many transactions a process has open at once: the sum of
	// Config.Workers of its consumers. 0: it is not judged.
	Workers int
	// Retention is how long rows of processed_messages are kept; 0: for ever.
	Retention time.Duration
	// BrokerRetention is how long the broker keeps messages, and so may deliver
	// them again; 0: it is not known.
	BrokerRetention time.Duration
	// BrokerUnlimited tells that the broker keeps messages for ever.
	BrokerUnlimited bool
}

// What is normal up to a limit.
const (
	clockWarning  = 2 * time.Second
	clockError    = 5 * time.Minute
	effectPatient = 10 * time.Minute // consumers look every few seconds
	lagWarning    = time.Minute
	lagError      = 15 * time.Minute
	margin        = 3 * 24 * time.Hour // DESIGN's, of retention
	fullServer    = 0.9                // of the connections that a server takes
)

// check is one of Checks.
type check struct {
	name  string
	judge func(Facts, Question) []Finding
}

var checks = []check{
	{"schema", judgeSchema},
	{"writable", judgeWritable},
	{"durability", judgeDurability},
	{"isolation", judgeIsolation},
	{"pooler", judgePooler},
	{"pool", judgePool},
	{"connections", judgeConnections},
	{"clock", judgeClock},
	{"retention", judgeRetention},
	{"index", judgeIndex},
	{"bloat", judgeBloat},
	{"dead letters", judgeLetters},
	{"effects", judgeEffects},
	{"outbox", judgeOutbox},
	{"names", judgeNames},
}

// Checks are the names of what Diagnose looks at, in its order.
func Checks() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// Diagnose returns what is not as it should be, errors first; nothing if all is
// well.
func Diagnose(f Facts, q Question) (findings []Finding) {
	for _, c := range checks {
		if f.Confused && c.name != "pooler" {
			continue // nothing else is known
		}
		for _, finding := range c.judge(f, q) {
			finding.Check = c.name
			findings = append(findings, finding)
		}
	}
	SortFindings(findings)
	return findings
}

// SortFindings puts errors first and leaves the order else.
func SortFindings(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // "error" is before "warning"
	})
}

// broken tells whether processed_messages is not as it must be.
func (f Facts) broken() bool {
	return slices.ContainsFunc(f.Unfit, func(u Unfit) bool { return u.Main })
}

func judgeSchema(f Facts, _ Question) (findings []Finding) {
	for _, u := range f.Unfit {
		finding := Finding{Severity: Warning, About: u.Table, Found: u.Cause, Mend: u.Mend, Means: u.Without}
		if u.Main {
			finding.Severity = Error
		}
		if u.SQL != "" {
			finding.Mend += ":\n" + u.SQL
		}
		findings = append(findings, finding)
	}
	return findings
}

func judgeWritable(f Facts, _ Question) []Finding {
	if f.ReadOnly == "" {
		return nil
	}
	return []Finding{{
		Severity: Error, Found: f.ReadOnly, Means: "no key can be recorded, so consumers wait and process nothing",
		Mend: "connect to the primary, or let this user write",
	}}
}

func judgeDurability(f Facts, _ Question) []Finding {
	switch {
	case f.Volatile != "":
		return []Finding{{
			Severity: Error, About: f.Volatile, Found: "a crash of the server can destroy what was committed",
			Means: "messages that were acknowledged are lost with their effect, and duplicates are processed again", Mend: "set it back to its default",
		}}
	case f.SomewhatVolatile != "":
		return []Finding{{
			Severity: Warning, About: f.SomewhatVolatile, Found: "a crash of the server can lose the last commits before it",
			Means: "the messages of these commits were acknowledged and do not come again: their effect is lost",
			Mend:  "set it back to its default, for the consumers' sessions at least",
		}}
	}
	return nil
}

func judgeIsolation(f Facts, _ Question) []Finding {
	switch f.Isolation {
	case "read uncommitted":
		return []Finding{{
			Severity: Error, About: f.Isolation, Found: "statements see what others have not committed",
			Means: "a key whose transaction then rolls back can be taken for processed: its message is acknowledged without its effect",
			Mend:  "set the default isolation to read committed",
		}}
	case "serializable":
		return []Finding{{
			Severity: Warning, About: f.Isolation, Found: "every transaction is serializable by default",
			Means: "claims of neighbouring keys get in each other's way and are tried again, the more the busier it is",
			Mend:  "set the default isolation to read committed, and raise it in the handlers that need more",
		}}
	}
	return nil
}

func judgePooler(f Facts, _ Question) []Finding {
	const mend = "add default_query_exec_mode=exec to the consumers' URL, or let the pooler pool sessions"
	switch {
	case f.Confused:
		return []Finding{{
			Severity: Error, Found: "a pooler lends one session to several connections, and prepared statements are looked for in the wrong one",
			Means: "statements fail at random; nothing else could be looked at", Mend: mend,
		}}
	case f.SharedSession:
		return []Finding{{
			Severity: Warning, Found: "a pooler lends one session to several connections (transaction mode)",
			Means: "prepared statements work only if the pooler follows them; SET, LISTEN and locks of a session hold for nobody;" +
				" sekali migrate needs a direct connection", Mend: mend,
		}}
	}
	return nil
}

func judgePool(f Facts, q Question) []Finding {
	if f.Pool == 0 || q.Workers <= f.Pool {
		return nil
	}
	return []Finding{{
		Severity: Warning, Found: fmt.Sprintf("the pool has %d connections at most for %d workers", f.Pool, q.Workers),
		Means: "workers wait for each other, and dead letters for all of them",
		Mend:  fmt.Sprintf("give the pool %d connections (pool_max_conns in a postgres URL, SetMaxOpenConns), or the consumers fewer Workers", q.Workers+2),
	}}
}

func judgeConnections(f Facts, q Question) []Finding {
	switch {
	case f.Connections == 0:
		return nil
	case q.Workers > f.Connections:
		return []Finding{{
			Severity: Error, Found: fmt.Sprintf("the server takes %d connections, and one process has %d workers", f.Connections, q.Workers),
			Means: "workers fail to connect and wait", Mend: "raise max_connections, or lower Workers",
		}}
	case float64(f.InUse) >= fullServer*float64(f.Connections):
		return []Finding{{
			Severity: Warning, Found: fmt.Sprintf("%d of the server's %d connections are in use", f.InUse, f.Connections),
			Means: "the next process that starts finds none", Mend: "raise max_connections, or lower the pools of what is connected",
		}}
	}
	return nil
}

func judgeClock(f Facts, _ Question) []Finding {
	off := f.ClockAhead.Abs() - f.ClockWithin
	if off < clockWarning {
		return nil
	}
	finding := Finding{
		Severity: Warning, Found: fmt.Sprintf("the database's clock is %v ahead of this machine's", f.ClockAhead.Round(time.Second/10)),
		Means: "times of messages and of rows do not compare: delays, ages and what counts as too old are off by that much",
		Mend:  "let both machines follow the same time server: chronyc tracking, timedatectl",
	}
	if f.ClockAhead < 0 {
		finding.Found = fmt.Sprintf("the database's clock is %v behind this machine's", -f.ClockAhead.Round(time.Second/10))
	}
	if off >= clockError {
		finding.Severity = Error
	}
	return []Finding{finding}
}

func judgeRetention(_ Facts, q Question) []Finding {
	switch {
	case q.Retention == 0:
		return nil
	case q.BrokerUnlimited:
		return []Finding{{
			Severity: Warning, Found: fmt.Sprintf("rows are kept for %s, and the broker keeps messages for ever", days(q.Retention)),
			Means: "a message that is replayed after its row is gone is processed again",
			Mend:  "limit the broker's retention, or say how old a duplicate may be (MaxDuplicateAge)",
		}}
	case q.BrokerRetention > 0 && q.Retention < q.BrokerRetention+margin:
		return []Finding{{
			Severity: Error,
			Found:    fmt.Sprintf("rows are kept for %s, and the broker keeps messages for %s", days(q.Retention), days(q.BrokerRetention)),
			Means:    "a message that is delivered again after its row is gone is processed again",
			Mend:     fmt.Sprintf("keep rows for %s at least: the broker's retention and a margin of %s", days(q.BrokerRetention+margin), days(margin)),
		}}
	}
	return nil
}

// days writes a long time in days, a short one as it is.
func days(d time.Duration) string {
	const day = 24 * time.Hour
	if d < 2*day || d%day != 0 {
		return d.String()
	}
	return fmt.Sprintf("%d days", d/day)
}

func judgeIndex(f Facts, _ Question) (findings []Finding) {
	if f.broken() {
		return nil // it comes with the table
	}
	for _, column := range f.NoIndex {
		findings = append(findings, Finding{
			Severity: Warning, About: column, Found: "processed_messages has no index on " + column,
			Means: "sekali prune reads the whole table for each of its batches", Mend: "sekali migrate up",
		})
	}
	return findings
}

func judgeBloat(f Facts, _ Question) (findings []Finding) {
	for _, w := range f.Wastes {
		what := fmt.Sprintf("%d dead rows", w.Rows)
		if w.Rows == 0 {
			what = fmt.Sprintf("%d MiB", w.Bytes>>20)
		}
		findings = append(findings, Finding{
			Severity: Warning, About: w.Table, Found: fmt.Sprintf("%.0f%% of it is empty (%s)", 100*w.Share, what),
			Means: "claims read more pages than they need, and slow down; on PostgreSQL an old open transaction or autovacuum turned off can be the cause",
			Mend:  w.Mend,
		})
	}
	return findings
}

// some is how many there are, for people.
func some(w Waiting) string {
	if w.Count >= MaxCount {
		return fmt.Sprintf("%d or more", w.Count)
	}
	return fmt.Sprint(w.Count)
}

func since(w Waiting) string { return w.Oldest.Round(time.Second).String() }

func judgeLetters(f Facts, _ Question) (findings []Finding) {
	if w := f.Overview.DeadLetters[deadletter.Open]; w.Count > 0 {
		found := fmt.Sprintf("%s dead letters are open, the oldest for %s", some(w), since(w))
		if held := f.Overview.DeadLetters[deadletter.Held]; held.Count > 0 {
			found += fmt.Sprintf("; %s messages are held behind them", some(held))
		}
		findings = append(findings, Finding{
			Severity: Warning, Found: found, Means: "these messages have not had their effect",
			Mend: "sekali deadletters list, then redrive or discard",
		})
	}
	if w := f.Overview.DeadLetters[deadletter.Requested]; w.Oldest > effectPatient {
		findings = append(findings, Finding{
			Severity: Warning, Found: fmt.Sprintf("%s dead letters are to be processed again, and nobody takes them", some(w)),
			Means: "their consumer does not run, or a letter before them is being processed", Mend: "sekali deadletters list --status requested, then start the consumer that they name",
		})
	}
	return findings
}

func judgeEffects(f Facts, _ Question) (findings []Finding) {
	if w := f.Overview.Effects[effect.Parked]; w.Count > 0 {
		findings = append(findings, Finding{
			Severity: Warning, Found: fmt.Sprintf("%s effects are parked, the oldest for %s", some(w), since(w)),
			Means: "their messages wait until a person says what became of them", Mend: "sekali effects list --status parked, then resolve",
		})
	}
	for state, text := range map[effect.State]string{
		effect.Unknown: "the outcome of %s effects is unknown, of the oldest for %s",
		effect.Started: "%s effects were started by processes that ended, the oldest %s ago",
	} {
		if w := f.Overview.Effects[state]; w.Oldest > effectPatient {
			findings = append(findings, Finding{
				Severity: Warning, About: string(state), Found: fmt.Sprintf(text, some(w), since(w)),
				Means: "nobody has gone on with them: their messages are dead letters, or their consumer does not run",
				Mend:  "sekali effects list --status " + string(state) + ", then ask the provider and resolve",
			})
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.About, b.About) })
	return findings
}

func judgeOutbox(f Facts, _ Question) (findings []Finding) {
	o := f.Overview.Outbox
	if o.Lag > lagWarning {
		finding := Finding{
			Severity: Warning, Found: fmt.Sprintf("the oldest of %s events has waited for %s to be published", some(Waiting{Count: o.Pending}), o.Lag.Round(time.Second)),
			Means: "no Relay runs, the broker is away, or the Relays are too slow", Mend: "sekali outbox list; sekali outbox relay",
		}
		if o.Lag > lagError {
			finding.Severity = Error
		}
		findings = append(findings, finding)
	}
	if o.Parked > 0 {
		findings = append(findings, Finding{
			Severity: Warning, Found: fmt.Sprintf("the broker refuses %s events", some(Waiting{Count: o.Parked})),
			Means: "they are not published until somebody decides", Mend: "sekali outbox list --status parked, then retry or discard",
		})
	}
	return findings
}

// judgeNames needs at least one consumer that keeps statistics: else it is
// StatsEvery that is off.
func judgeNames(f Facts, _ Question) (findings []Finding) {
	if !slices.ContainsFunc(f.Overview.Consumers, func(c Consumer) bool { return !c.LastActive.IsZero() }) {
		return nil
	}
	for _, c := range f.Overview.Consumers {
		if c.HasKeys && c.LastActive.IsZero() {
			findings = append(findings, Finding{
				Severity: Warning, About: c.Name, Found: fmt.Sprintf("it has rows, and did nothing for %s", days(ActiveWithin)),
				Means: "it is gone, or was renamed: then under its new name it takes old messages for new ones",
				Mend:  "if it was renamed, set Config.StoredName to " + fmt.Sprintf("%q", c.Name) + "; if it is gone, leave its rows to sekali prune",
			})
		}
	}
	return findings
}
