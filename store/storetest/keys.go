package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sekali/sekali/store"
)

func keyTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "different bytes are different keys in one claim", f: differentInOneClaim[Tx]},
		{name: "different bytes are different keys in claims of their own", f: differentOneByOne[Tx]},
		{name: "a key is stored in the form that is the same everywhere", f: storedForm[Tx]},
		{name: "blank keys have no identity", f: blankKeys[Tx]},
		{name: "names that no column holds are refused and never a duplicate", f: badConsumers[Tx]},
		{name: "the longest name of a consumer fits", f: longConsumers[Tx]},
		{name: "consumers with one key do not see each other", f: consumersApart[Tx]},
		{name: "a key that is in a claim twice is refused", f: keyTwice[Tx]},
		{name: "a claim without keys is refused", f: noKeys[Tx]},
	}
}

// differentKeys are pairwise different byte strings that some database,
// collation or client takes for equal, or cannot store.
func differentKeys() []string {
	long := strings.Repeat("order-", 33) + "x" // 199 bytes
	return []string{
		"order-42", "Order-42", "ORDER-42", // letter case
		"order-42 ", "order-42  ", " order-42", "order-42\t", "order-42\n", "order-42\u00a0", // blanks
		"cafe", "café", "cafe\u0301", "CAFÉ", // accents, composed and decomposed
		"strasse", "straße", "ss", "ß", "æ", "ae", "ı", "i", "I", "İ", "å", "\u212b", "\u00c5", // equal in some languages
		"ａ", "a", "①", "1", "ﬁ", "fi", // equal after compatibility folding
		"☕", "🍵", "🍵🍵", "👩‍👧", "👩👧", "\U0001F1EE\U0001F1E9", // beyond the BMP; weightless to old collations
		"a\u200bb", "ab", "a\u00adb", "a\ufeffb", // invisible
		"\x00", "a\x00", "a\x00b", "a\x00c", // NUL
		"\xff", "\xfe", "a\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\ufffd", // invalid UTF-8
		long, long + "y", long + "yz", long + "zz", // 199, 200, 201 bytes
		strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 4096), strings.Repeat("k", 4095) + "K",
		strings.Repeat("é", 100), strings.Repeat("é", 101), strings.Repeat("🍵", 50), strings.Repeat("🍵", 51),
		store.StoredKey(long + "yz"), store.StoredKey(store.StoredKey(long + "yz")), // looks like another's stored form
		store.StoredKey("\x00"), "sha256:", "sha256:x", "SHA256:x", strings.ToUpper(store.StoredKey("\x00")),
		"'", "''", `"`, `\`, `\\`, "\\'", "`", "%", "_", "?", "$1", ":a", "{}", "{a,b}", "NULL", "null", `a"b,c{`, "--", "/*", "1e3", "1000",
	}
}

func differentInOneClaim[Tx any](b *bench[Tx]) {
	raw := differentKeys()
	fresh, dup := make([]store.State, len(raw)), make([]store.State, len(raw))
	for i := range dup {
		dup[i] = store.Duplicate
	}
	b.commit(b.One, b.begin(b.One, claimOf(raw...), fresh...))
	b.wantRows(len(raw))
	reversed := slices.Clone(raw)
	slices.Reverse(reversed)
	b.rollback(b.Two, b.begin(b.Two, claimOf(reversed...), dup...))
	got, err := b.Two.Store.Seen(b.ctx, claimOf(raw...))
	if err != nil || !slices.Equal(got, dup) {
		b.t.Errorf("seen: %v, %v", got, err)
	}
	b.wantRows(len(raw))
	b.wantIdle()
}

func differentOneByOne[Tx any](b *bench[Tx]) {
	for i, raw := range differentKeys() {
		got, err := b.One.Store.Seen(b.ctx, claimOf(raw))
		if err != nil || !slices.Equal(got, []store.State{store.Fresh}) {
			b.t.Errorf("key %q, before its claim, is seen as %v, %v", raw, got, err)
		}
		tx, got, err := b.One.Store.Begin(b.ctx, claimOf(raw))
		if err != nil || got[0] != store.Fresh {
			b.t.Fatalf("key %q: %v, %v; want fresh", raw, got, err)
		}
		b.commit(b.One, tx)
		b.wantState(raw, store.Duplicate)
		b.wantRows(i + 1)
	}
	b.wantIdle()
}

func storedForm[Tx any](b *bench[Tx]) {
	for _, raw := range []string{
		"order-42", strings.Repeat("k", 200), strings.Repeat("k", 201), "a\x00b", "\xff", "sha256:x", "☕", "☕ ",
	} {
		b.commit(b.One, b.begin(b.One, claimOf(raw), store.Fresh))
		hex := fmt.Sprintf("%x", store.StoredKey(raw))
		column := map[Database]string{
			Postgres: "encode(convert_to(message_key, 'UTF8'), 'hex')", MySQL: "lower(hex(message_key))", SQLite: "lower(hex(message_key))",
		}[b.h.Database]
		n := b.number("SELECT count(*) FROM processed_messages WHERE consumer_name = '" + consumer + "' AND " + column + " = '" + hex + "'")
		if n != 1 {
			b.t.Errorf("the stored form of key %q is not in the table", raw)
		}
	}
}

// refusals calls all that takes a claim, and wants errors for which ok holds.
func (b *bench[Tx]) refusals(claim store.Claim, ok func(error) bool) {
	b.t.Helper()
	tx, _, err := b.One.Store.Begin(b.ctx, claim)
	if err == nil {
		_ = b.One.Store.Rollback(b.ctx, tx)
	}
	if !ok(err) {
		b.t.Errorf("begin: %v", err)
	}
	if _, err := b.One.Store.Seen(b.ctx, claim); !ok(err) {
		b.t.Errorf("seen: %v", err)
	}
	b.ownTx(b.One, false, func(tx Tx) {
		if _, err := b.One.Store.Claim(b.ctx, tx, claim); !ok(err) {
			b.t.Errorf("claim: %v", err)
		}
	})
	b.wantRows(0)
	b.wantIdle()
}

// ownTx runs f in a transaction of the user's own, which it ends.
func (b *bench[Tx]) ownTx(c Client[Tx], commit bool, f func(tx Tx)) {
	b.t.Helper()
	tx, err := c.Begin(b.ctx)
	if err != nil {
		b.t.Fatalf("begin a transaction of the user's own: %v", err)
	}
	ended := false
	defer func() {
		if !ended { // f failed the test
			_ = c.Rollback(context.Background(), tx)
		}
	}()
	f(tx)
	ended = true
	end := c.Rollback
	if commit {
		end = c.Commit
	}
	if err := end(context.WithoutCancel(b.ctx), tx); err != nil {
		b.t.Fatalf("end a transaction of the user's own: %v", err)
	}
}

func blankKeys[Tx any](b *bench[Tx]) {
	for _, raw := range []string{"", " ", "   ", "\t\r\n", "\u00a0", "\u3000"} {
		for _, claim := range []store.Claim{claimOf(raw), claimOf("order-42", raw)} {
			b.refusals(claim, func(err error) bool { return errors.Is(err, store.ErrNoKey) })
		}
	}
}

func badConsumers[Tx any](b *bench[Tx]) {
	for _, name := range []string{
		"", strings.Repeat("n", 101), strings.Repeat("é", 51), strings.Repeat("n", 5000),
		"a\x00b", "a\nb", "\xff", " stock", "stock ",
	} {
		claim := claimOf("order-42")
		claim.Consumer = name
		b.refusals(claim, func(err error) bool { return err != nil && !errors.Is(err, store.ErrNoKey) })
	}
}

func longConsumers[Tx any](b *bench[Tx]) {
	for i, name := range []string{strings.Repeat("n", 100), strings.Repeat("é", 50), strings.Repeat("🍵", 25)} {
		claim := claimOf("order-42", strings.Repeat("k", 200))
		claim.Consumer = name
		b.commit(b.One, b.begin(b.One, claim, store.Fresh, store.Fresh))
		b.rollback(b.Two, b.begin(b.Two, claim, store.Duplicate, store.Duplicate))
		b.wantRows(2 * (i + 1))
	}
}

func consumersApart[Tx any](b *bench[Tx]) {
	for i, name := range []string{"stock", "Stock", "stöck", "stock-service", "courier"} {
		claim := claimOf("order-42")
		claim.Consumer = name
		b.commit(b.One, b.begin(b.One, claim, store.Fresh))
		b.wantRows(i + 1)
	}
}

func keyTwice[Tx any](b *bench[Tx]) {
	b.refusals(claimOf("a", "b", "a"), func(err error) bool { return err != nil })
}

func noKeys[Tx any](b *bench[Tx]) {
	b.refusals(claimOf(), func(err error) bool { return err != nil && !errors.Is(err, store.ErrNoKey) })
}
