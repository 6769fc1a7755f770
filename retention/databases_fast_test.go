//go:build fast

package retention_test

func databases() map[string]database { return map[string]database{"SQLite": onSQLite} }
