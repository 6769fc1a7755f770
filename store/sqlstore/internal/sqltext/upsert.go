package sqltext

import "strings"

// OnCopy is sqlstore.Texts.OnCopy where the database knows ON CONFLICT. old
// stands before the column of the row that is there.
func OnCopy(old string) func(columns ...string) string {
	return func(columns ...string) string {
		set := "ON CONFLICT (open_identity) DO UPDATE SET copies = " + old + "copies + 1"
		for _, c := range columns {
			if c == "status" {
				set += ", status = CASE WHEN " + old + "status = 'requested' THEN " + old + "status ELSE excluded.status END"
				continue
			}
			set += ", " + c + " = excluded." + c
		}
		return set
	}
}

// OnStart is sqlstore.Texts.OnStart where the database knows ON CONFLICT.
func OnStart(old string) string {
	return "ON CONFLICT (consumer_name, message_key) DO UPDATE SET lone_starts = " + old +
		"lone_starts + excluded.lone_starts, started_at = excluded.started_at"
}

// OnVersion is sqlstore.Texts.OnVersion where the database knows ON CONFLICT.
// greatest is its function for the greater of two.
func OnVersion(greatest, old string) string {
	return "ON CONFLICT (consumer_name, entity) DO UPDATE SET version = " + greatest + "(" + old +
		"version, excluded.version), updated_at = excluded.updated_at"
}

// OnStats is sqlstore.Texts.OnStats where the database knows ON CONFLICT.
func OnStats(old string) func(columns ...string) string {
	return func(columns ...string) string {
		set := make([]string, len(columns))
		for i, c := range columns {
			set[i] = c + " = " + old + c + " + excluded." + c
		}
		return "ON CONFLICT (at_minute, consumer_name) DO UPDATE SET " + strings.Join(set, ", ")
	}
}

// OnMark is sqlstore.PruningTexts.OnMark where the database knows ON CONFLICT.
func OnMark(greatest, old string) string {
	return "ON CONFLICT (consumer_name) DO UPDATE SET pruned_until = " + greatest + "(" + old + "pruned_until, excluded.pruned_until)"
}
