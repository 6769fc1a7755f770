package pgsql

import (
	"errors"

	"github.com/sekali/sekali/store"
)

// State returns the SQLSTATE of an error of the server, or "" if it is none.
func State(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// Classify says whose fault an error is, by type and SQLSTATE. An error
// without either is ClassFailed: a bare network error could as well come from
// a handler's own call to somebody else.
func Classify(err error) store.Class {
	var schema *store.SchemaError
	switch {
	case err == nil:
		return store.ClassFailed
	case errors.As(err, &schema):
		return store.ClassMisconfigured
	case errors.Is(err, store.ErrUnavailable):
		return store.ClassUnavailable
	}
	return classOf(State(err))
}

func classOf(state string) store.Class {
	switch state {
	case "40001", // serialization_failure
		"40P01", // deadlock_detected
		"55P03": // lock_not_available
		return store.ClassConflict
	case "25006", // read_only_sql_transaction: demoted, or a replica
		"57P01", "57P02", "57P03", // admin_shutdown, crash_shutdown, cannot_connect_now
		"57P04", "57P05": // database_dropped, idle_session_timeout
		return store.ClassUnavailable
	}
	if len(state) == 5 {
		switch state[:2] {
		case "08", // connection exceptions
			"53", // insufficient resources: disk full, out of memory, too many connections
			"58": // system errors
			return store.ClassUnavailable
		}
	}
	return store.ClassFailed
}

// IsSchema tells whether a statement of Sekali's own failed because the table
// is not as it must be: undefined_table, undefined_column, invalid_schema_name,
// or no primary key to refuse duplicates.
func IsSchema(err error) bool {
	switch State(err) {
	case "42P01", "42703", "3F000", "42P10":
		return true
	}
	return false
}
