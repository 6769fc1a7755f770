//go:build !fast

package sqlstore_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

// inBytes are options of a MySQL table that compares byte for byte.
const inBytes = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */"

const keyColumns = "consumer_name VARCHAR(100), message_key VARCHAR(200), processed_at TIMESTAMP, PRIMARY KEY (consumer_name, message_key)"

func TestMoreKeysThanOneStatementTakesOnMySQL(t *testing.T) {
	db := dbtest.MySQL(t)
	claimMany(t, sqlstore.New(db.Open(map[string]string{"interpolateParams": "false"}), mysql.Dialect))
}

func TestManyKeysOnPostgreSQL(t *testing.T) {
	claimMany(t, sqlstore.New(dbtest.Postgres(t).SQL, postgres.Dialect))
}

func TestTablesCanHaveOtherNamesOnServers(t *testing.T) {
	tables := store.Tables{ProcessedMessages: "order", DeadLetters: "group"}
	for name, open := range map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB{"mysql": dbtest.MySQL, "postgres": dbtest.Postgres} {
		t.Run(name, func(t *testing.T) {
			d := mysql.Dialect
			if name == "postgres" {
				d = postgres.Dialect
			}
			db := open(t, dbtest.Tables(tables))
			otherNames(t, db.SQL, d, tables)
			run(t, db.SQL, map[string]string{"mysql": "DELETE FROM `order`", "postgres": `DELETE FROM "order"`}[name],
				map[string]string{"mysql": "TRUNCATE TABLE `group`", "postgres": `TRUNCATE TABLE "group" RESTART IDENTITY`}[name])
			elsewhere := tables
			elsewhere.Schema = db.Schema
			otherNames(t, db.SQL, d, elsewhere)
		})
	}
}

// The driver breaks a connection on which a statement follows unread rows; that
// must not look like a server that was lost, which is retried for ever.
func TestRowsThatTheHandlerLeftUnreadAreItsOwnFault(t *testing.T) {
	for _, each := range []struct {
		name    string
		dialect sqlstore.Dialect
		open    func(testing.TB, ...dbtest.Option) *dbtest.DB
	}{{"mysql", mysql.Dialect, dbtest.MySQL}, {"postgres", postgres.Dialect, dbtest.Postgres}} {
		t.Run(each.name, func(t *testing.T) {
			db := each.open(t).SQL
			s := sqlstore.New(db, each.dialect)
			unread := func() (*sql.Tx, *sql.Rows) {
				tx := begin(t, s, "order-42")
				rows, err := tx.QueryContext(t.Context(), "SELECT 1 UNION ALL SELECT 2")
				if err != nil {
					t.Fatal(err)
				}
				if !rows.Next() {
					t.Fatal(rows.Err())
				}
				return tx, rows
			}
			tx, rows := unread()
			defer rows.Close()
			err := s.Commit(t.Context(), tx)
			if err == nil || s.Classify(err) != store.ClassFailed || errors.Is(err, store.ErrTransactionLost) {
				t.Errorf("commit: %v, of class %v", err, s.Classify(err))
			}
			tx, again := unread()
			defer again.Close()
			if err := s.Rollback(t.Context(), tx); err != nil {
				t.Errorf("roll back: %v", err)
			}
			wantIdle(t, db)
			wantState(t, s, "order-42", store.Fresh)
		})
	}
}

func TestMySQLTablesThatWouldLoseMessagesAreRefused(t *testing.T) {
	for name, each := range map[string]struct {
		table, says string
		settings    map[string]string
	}{
		"a unique index that refuses what is no duplicate": {
			table: keyColumns + ", UNIQUE KEY one_for_all (message_key))" + inBytes, says: "one_for_all",
		},
		"a primary key of a part of the key": {
			table: strings.Replace(keyColumns, "message_key)", "message_key(50))", 1) + ")" + inBytes, says: "primary key",
		},
		"a fingerprint that is cut": {
			table: keyColumns + ", fingerprint BINARY(16))" + inBytes, says: "fingerprint",
		},
		"a narrow VARBINARY": {
			table: strings.Replace(keyColumns, "VARCHAR(200)", "VARBINARY(199)", 1) + ")" + inBytes, says: "narrower",
		},
		"a connection that cannot send every key": {
			table: keyColumns + ")" + inBytes, says: "charset=utf8mb4", settings: map[string]string{"charset": "latin1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := dbtest.MySQL(t, dbtest.Empty())
			run(t, db.SQL, "CREATE TABLE processed_messages ("+each.table)
			wantSchemaError(t, sqlstore.New(db.Open(each.settings), mysql.Dialect).Check(t.Context()), each.says)
		})
	}
}

func TestKeysInVarbinaryAreFineOnMySQL(t *testing.T) {
	db := dbtest.MySQL(t, dbtest.Empty())
	run(t, db.SQL, "CREATE TABLE processed_messages (consumer_name VARBINARY(100), message_key VARBINARY(200),"+
		" processed_at DATETIME(6), fingerprint BINARY(32), UNIQUE KEY also (message_key, consumer_name), PRIMARY KEY (message_key, consumer_name))")
	claimMany(t, sqlstore.New(db.SQL, mysql.Dialect))
}

// A column of whole seconds cannot tell our row from that of a rival that
// came in the same second. Then a person is asked, and nothing is lost.
func TestSurvivorIsSeenInAColumnOfWholeSeconds(t *testing.T) {
	for _, kind := range []string{"TIMESTAMP", "DATETIME"} {
		db := dbtest.MySQL(t, dbtest.Empty())
		run(t, db.SQL, "CREATE TABLE processed_messages ("+strings.Replace(keyColumns, "TIMESTAMP", kind, 1)+")"+inBytes)
		s := sqlstore.New(db.SQL, mysql.Dialect)
		tx := begin(t, s, "order-42")
		for _, statement := range []string{"COMMIT", "SET time_zone = '-08:00'"} {
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		wantError(t, s.Rollback(t.Context(), tx), store.ErrKeySurvived)
	}
}
