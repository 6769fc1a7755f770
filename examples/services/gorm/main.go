// Command gorm keeps what customers owe: an invoice and its lines. GORM on
// PostgreSQL. The transaction is Sekali's; GORM works in it.
//
//	DATABASE_URL=postgres://… NATS_URL=nats://… go run ./gorm
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	_ "github.com/jackc/pgx/v5/stdlib"
	driver "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/examples/services/internal/service"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

// Invoice is one order's.
type Invoice struct {
	ID       string `gorm:"primaryKey" json:"invoice"`
	Customer string `json:"customer"`
	Lines    []Line `json:"lines"`
}

// Line of an invoice.
type Line struct {
	ID        uint   `json:"-"`
	InvoiceID string `json:"-"`
	Text      string `json:"text"`
	Cents     int    `json:"cents"`
}

// Account is what a customer owes.
type Account struct {
	Customer string `gorm:"primaryKey"`
	Cents    int
}

const schema = `
	CREATE TABLE IF NOT EXISTS invoices (id TEXT PRIMARY KEY, customer TEXT NOT NULL);
	CREATE TABLE IF NOT EXISTS lines (id BIGSERIAL PRIMARY KEY, invoice_id TEXT NOT NULL REFERENCES invoices, text TEXT NOT NULL, cents INTEGER NOT NULL);
	CREATE TABLE IF NOT EXISTS accounts (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL)`

func main() {
	service.Main(func(ctx context.Context, database string) error {
		db, err := sql.Open("pgx", database)
		if err != nil {
			return err
		}
		defer db.Close()
		if _, err := db.ExecContext(ctx, schema); err != nil {
			return err
		}
		cfg, err := newConsumer(db)
		if err != nil {
			return err
		}
		return service.Consume(ctx, "INVOICES", cfg)
	})
}

func newConsumer(db *sql.DB) (cfg sekali.Config[*sql.Tx], err error) {
	orm, err := gorm.Open(driver.New(driver.Config{Conn: db}), &gorm.Config{})
	if err != nil {
		return cfg, err
	}
	return sekali.Config[*sql.Tx]{
		Name:  "accounts-service",
		Store: sqlstore.New(db, postgres.Dialect),
		Key:   sekali.JSON("/invoice"),
		Handle: func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			return book(within(ctx, orm, tx), m)
		},
	}, nil
}

// within returns a session of GORM whose statements go through tx. The session
// has a context, which gives it a Statement of its own; without that, orm
// itself would be left with tx. GORM begins no transactions in it.
func within(ctx context.Context, orm *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := orm.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	session.Statement.ConnPool = tx
	return session
}

func book(orm *gorm.DB, m *sekali.Message) error {
	var invoice Invoice
	if err := json.Unmarshal(m.Body, &invoice); err != nil {
		return sekali.Permanent(fmt.Errorf("read the invoice: %w", err))
	}
	account := Account{Customer: invoice.Customer}
	for _, line := range invoice.Lines {
		account.Cents += line.Cents
	}
	if err := orm.Create(&invoice).Error; err != nil { // with its lines
		return fmt.Errorf("save invoice %s: %w", invoice.ID, err)
	}
	err := orm.Clauses(clause.OnConflict{
		Columns:   []clause.Column{{Name: "customer"}},
		DoUpdates: clause.Assignments(map[string]any{"cents": gorm.Expr("accounts.cents + excluded.cents")}),
	}).Create(&account).Error
	if err != nil {
		return fmt.Errorf("book invoice %s: %w", invoice.ID, err)
	}
	return nil
}
