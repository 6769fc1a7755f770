package cli

import (
	"testing"
	"unicode"
	"unicode/utf8"
)

func FuzzKeysArePrintedSoThatTheyCanBePastedBack(f *testing.F) {
	for _, key := range []string{"", "order-1", "\x1b[31mred\x00", `C:\new`, `\x41`, "ä\xff\u2028\u00a0\U0010ffff\ufffd", `"'`, "\\"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		printed := escapeKey(key)
		if back, err := unescapeKey(printed); err != nil || back != key {
			t.Errorf("%q is printed as %q, which is read as %q, %v", key, printed, back, err)
		}
		for _, r := range printed {
			if !unicode.IsPrint(r) {
				t.Errorf("%q is printed with %q", key, r)
			}
		}
		if !utf8.ValidString(printed) {
			t.Errorf("%q is printed as %q, which is not UTF-8", key, printed)
		}
		// What nobody printed is refused, or means one key.
		if meant, err := unescapeKey(key); err == nil {
			if again, err := unescapeKey(escapeKey(meant)); err != nil || again != meant {
				t.Errorf("%q means %q, and then %q, %v", key, meant, again, err)
			}
		}
	})
}

func TestKeysAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]string{
		"order-1": "order-1", `a\nb`: "a\nb", `\x1b\xff`: "\x1b\xff", `\u00e4ä`: "ää", `a\\b`: `a\b`, "raw\nline\xff": "raw\nline\xff",
	} {
		if got, err := unescapeKey(text); err != nil || got != want {
			t.Errorf("%q is read as %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`a\`, `\q`, `\x1`, `\ud800`, `\"`} {
		if got, err := unescapeKey(text); err == nil {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}
