//go:build !race

package sekalitest

import (
	"database/sql"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	m00 "github.com/sekali/sekali/testdata/mutants/00-correct"
	m01 "github.com/sekali/sekali/testdata/mutants/01-ack-before-commit"
	m02 "github.com/sekali/sekali/testdata/mutants/02-retry-acknowledged"
	m03 "github.com/sekali/sekali/testdata/mutants/03-key-after-handler"
	m04 "github.com/sekali/sekali/testdata/mutants/04-key-before-handler"
	m05 "github.com/sekali/sekali/testdata/mutants/05-check-then-insert"
	m06 "github.com/sekali/sekali/testdata/mutants/06-key-in-memory"
	m07 "github.com/sekali/sekali/testdata/mutants/07-pool-instead-of-tx"
	m08 "github.com/sekali/sekali/testdata/mutants/08-pool-in-helper"
	m09 "github.com/sekali/sekali/testdata/mutants/09-transaction-of-its-own"
	m10 "github.com/sekali/sekali/testdata/mutants/10-own-commit"
	m11 "github.com/sekali/sekali/testdata/mutants/11-own-rollback"
	m12 "github.com/sekali/sekali/testdata/mutants/12-swallowed-error"
	m13 "github.com/sekali/sekali/testdata/mutants/13-swallowed-in-helper"
	m14 "github.com/sekali/sekali/testdata/mutants/14-dropped-error"
	m15 "github.com/sekali/sekali/testdata/mutants/15-overwritten-error"
	m16 "github.com/sekali/sekali/testdata/mutants/16-rows-without-error"
	m17 "github.com/sekali/sekali/testdata/mutants/17-panic-recovered"
	m18 "github.com/sekali/sekali/testdata/mutants/18-goroutine"
	m19 "github.com/sekali/sekali/testdata/mutants/19-transaction-kept"
	m20 "github.com/sekali/sekali/testdata/mutants/20-ddl-in-handler"
	m21 "github.com/sekali/sekali/testdata/mutants/21-http-in-handler"
	m22 "github.com/sekali/sekali/testdata/mutants/22-effect-in-transaction"
	m23 "github.com/sekali/sekali/testdata/mutants/23-effect-outside-ledger"
	m24 "github.com/sekali/sekali/testdata/mutants/24-effect-key-of-time"
	m25 "github.com/sekali/sekali/testdata/mutants/25-request-key-by-chance"
	m26 "github.com/sekali/sekali/testdata/mutants/26-effect-in-goroutine"
	m27 "github.com/sekali/sekali/testdata/mutants/27-key-of-time"
	m28 "github.com/sekali/sekali/testdata/mutants/28-key-by-chance"
	m29 "github.com/sekali/sekali/testdata/mutants/29-key-of-attempt"
	m30 "github.com/sekali/sekali/testdata/mutants/30-key-counted"
	m31 "github.com/sekali/sekali/testdata/mutants/31-key-of-broker"
	m32 "github.com/sekali/sekali/testdata/mutants/32-key-too-coarse"
	m33 "github.com/sekali/sekali/testdata/mutants/33-key-concatenated"
	m34 "github.com/sekali/sekali/testdata/mutants/34-key-of-body"
	m35 "github.com/sekali/sekali/testdata/mutants/35-ack-in-handler"
	m36 "github.com/sekali/sekali/testdata/mutants/36-state-in-memory"
	m37 "github.com/sekali/sekali/testdata/mutants/37-read-before-transaction"
)

// mutants are the consumers in testdata/mutants, by their directories.
var mutants = map[string]func(*sql.DB, broker.Source, string) sekali.Config[*sql.Tx]{
	"00-correct":                 m00.New,
	"01-ack-before-commit":       m01.New,
	"02-retry-acknowledged":      m02.New,
	"03-key-after-handler":       m03.New,
	"04-key-before-handler":      m04.New,
	"05-check-then-insert":       m05.New,
	"06-key-in-memory":           m06.New,
	"07-pool-instead-of-tx":      m07.New,
	"08-pool-in-helper":          m08.New,
	"09-transaction-of-its-own":  m09.New,
	"10-own-commit":              m10.New,
	"11-own-rollback":            m11.New,
	"12-swallowed-error":         m12.New,
	"13-swallowed-in-helper":     m13.New,
	"14-dropped-error":           m14.New,
	"15-overwritten-error":       m15.New,
	"16-rows-without-error":      m16.New,
	"17-panic-recovered":         m17.New,
	"18-goroutine":               m18.New,
	"19-transaction-kept":        m19.New,
	"20-ddl-in-handler":          m20.New,
	"21-http-in-handler":         m21.New,
	"22-effect-in-transaction":   m22.New,
	"23-effect-outside-ledger":   m23.New,
	"24-effect-key-of-time":      m24.New,
	"25-request-key-by-chance":   m25.New,
	"26-effect-in-goroutine":     m26.New,
	"27-key-of-time":             m27.New,
	"28-key-by-chance":           m28.New,
	"29-key-of-attempt":          m29.New,
	"30-key-counted":             m30.New,
	"31-key-of-broker":           m31.New,
	"32-key-too-coarse":          m32.New,
	"33-key-concatenated":        m33.New,
	"34-key-of-body":             m34.New,
	"35-ack-in-handler":          m35.New,
	"36-state-in-memory":         m36.New,
	"37-read-before-transaction": m37.New,
}

const mutantSchema = m00.Schema
