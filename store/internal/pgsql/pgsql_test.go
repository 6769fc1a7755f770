package pgsql_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

type stateError string

func (e stateError) Error() string    { return "in whatever language" }
func (e stateError) SQLState() string { return string(e) }

func TestErrorsAreClassifiedByStateAndTypeAlone(t *testing.T) {
	for _, c := range []struct {
		err  error
		want store.Class
	}{
		{nil, store.ClassFailed},
		{stateError("40001"), store.ClassConflict},
		{stateError("40P01"), store.ClassConflict},
		{stateError("55P03"), store.ClassConflict},
		{fmt.Errorf("claim: %w", stateError("40001")), store.ClassConflict},
		{stateError("08006"), store.ClassUnavailable},
		{stateError("25006"), store.ClassUnavailable},
		{stateError("53100"), store.ClassUnavailable},
		{stateError("57P01"), store.ClassUnavailable},
		{stateError("57P02"), store.ClassUnavailable},
		{stateError("57P03"), store.ClassUnavailable},
		{stateError("58030"), store.ClassUnavailable},
		{stateError("25P02"), store.ClassFailed},
		{stateError("25P03"), store.ClassFailed},
		{stateError("57014"), store.ClassFailed},
		{stateError("23505"), store.ClassFailed},
		{stateError("42P01"), store.ClassFailed},
		{stateError("08"), store.ClassFailed},
		{fmt.Errorf("x: %w", store.ErrUnavailable), store.ClassUnavailable},
		{fmt.Errorf("x: %w", &store.SchemaError{Err: stateError("40001")}), store.ClassMisconfigured},
		{io.ErrUnexpectedEOF, store.ClassFailed},
		{context.Canceled, store.ClassFailed},
		{errors.New("ERROR: deadlock detected (SQLSTATE 40P01)"), store.ClassFailed},
	} {
		if got := pgsql.Classify(c.err); got != c.want {
			t.Errorf("Classify(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestTransactionIDsBecomeXminByTheirLowerHalf(t *testing.T) {
	for xid, want := range map[string]string{
		"744": "744", "4294967295": "4294967295", "4294967296": "0", "12884902633": "745",
	} {
		if got, err := pgsql.Xmin(xid); got != want || err != nil {
			t.Errorf("Xmin(%s) = %q, %v, want %q", xid, got, err, want)
		}
	}
}

func TestNothingButDigitsGetsIntoTheGuard(t *testing.T) {
	for _, xid := range []string{"1'", "1; DROP TABLE stock", "-1", "１"} {
		if sql, err := pgsql.Guard(xid); err == nil {
			t.Errorf("Guard(%q) = %q", xid, sql)
		}
		if got, err := pgsql.Xmin(xid); err == nil {
			t.Errorf("Xmin(%q) = %q", xid, got)
		}
	}
}

func TestArraysQuoteWhatWouldEndOrChangeAnElement(t *testing.T) {
	got := pgsql.Array([]string{"a", "NULL", "", `b"c\d`, "{e,f}", "é "})
	if want := `{"a","NULL","","b\"c\\d","{e,f}","é "}`; got != want {
		t.Errorf("Array = %s, want %s", got, want)
	}
}

func TestAPlanSortsByStoredFormAndAnswersInTheOrderOfTheClaim(t *testing.T) {
	one, two := strings.Repeat("1", 32), strings.Repeat("2", 32)
	plan := pgsql.NewPlan(store.Claim{Consumer: "stock", Keys: []store.Key{
		{Raw: "d", Fingerprint: []byte(one)},
		{Raw: "b", Fingerprint: []byte(one)},
		{Raw: "c", Fingerprint: []byte(one)},
		{Raw: "a"},
		{Raw: "B"},
	}})
	if got, want := plan.All(), `{"B","a","b","c","d"}`; got != want {
		t.Fatalf("All = %s, want %s", got, want)
	}
	for _, err := range []error{plan.Fresh("B"), plan.Found("b", hexOf(one)), plan.Found("c", nil)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	plan.Duplicates()
	keys, prints, more := plan.Pending()
	if keys != `{"d"}` || prints != "{"+*hexOf(one)+"}" || !more {
		t.Errorf("Pending = %s, %s, %v, want d alone", keys, prints, more)
	}
	if err := plan.Found("d", hexOf(two)); err != nil {
		t.Fatal(err)
	}
	want := []store.State{store.Conflict, store.Duplicate, store.Duplicate, store.Duplicate, store.Fresh}
	if got := plan.States(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("States = %v, want %v", got, want)
	}
	if plan.Fresh("A") == nil {
		t.Error("an answer for a key that was not asked for must be an error")
	}
}

func hexOf(s string) *string {
	h := hex.EncodeToString([]byte(s))
	return &h
}
