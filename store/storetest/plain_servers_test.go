//go:build !fast

package storetest_test

import (
	"testing"

	"github.com/sekali/sekali/store/storetest"
)

func TestPlainStorePassesOnPostgreSQL(t *testing.T) { passes(t, storetest.Postgres) }
func TestPlainStorePassesOnMySQL(t *testing.T)      { passes(t, storetest.MySQL) }

func TestSuiteNoticesWhatAStoreDoesWrongOnPostgreSQL(t *testing.T) {
	notices(t, storetest.Postgres, []mutant{
		{"no look at what was inserted", "rivals", "twenty_workers"},
		{"caller's lock order", "rivals", "batches_that_have_the_same_keys"},
		{"no guard", "lost_transactions", "a_handler_that_rolls_back_and_begins_anew"},
		{"a rival's survivor", "lost_transactions", "a_rival_that_takes_the_key_after_the_handler's_own"},
		{"local time", "time", "processed_at_is_UTC"},
		{"leak", "conflicts", "a_rival's_key"},
	})
}

func TestSuiteNoticesWhatAStoreDoesWrongOnMySQL(t *testing.T) {
	notices(t, storetest.MySQL, []mutant{
		{"no guard", "lost_transactions", "a_deadlock_that_the_handler_swallows"},
		{"no survivors", "lost_transactions", "DDL_in_a_handler"},
		{"a rival's survivor", "lost_transactions", "a_rival_that_takes_the_key_after_the_handler's_own"},
		{"fingerprints without a lock", "isolation", "repeatable_read:_a_key_committed_after"},
		{"folded keys", "keys", "different_bytes_are_different_keys_in_one_claim"},
		{"local time", "time", "processed_at_is_UTC"},
	})
}
