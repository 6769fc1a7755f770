package sekali

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// KeyFunc takes the message key from a message: any bytes that name one
// business intent. It must give the same key for every copy of a message, so
// it looks at nothing else: no clock, no random numbers, no count of attempts.
// It returns an error that wraps ErrNoKey if the message has none.
//
// The best key is an id that the producer made when the event happened and
// stored with its data. A broker's id is a fallback: it does not catch what a
// producer sends twice.
type KeyFunc func(m *Message) (string, error)

// noKey says where no key was found.
func noKey(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrNoKey}, args...)...)
}

// Header takes the key from the header of that name (compared byte for byte).
// A header that comes twice with different values is an error.
func Header(name string) KeyFunc {
	return func(m *Message) (string, error) {
		value, ok := m.Headers.Get(name)
		if !ok || store.IsBlank(string(value)) {
			return "", noKey("header %q is missing or blank", name)
		}
		for _, h := range m.Headers {
			if h.Name == name && string(h.Value) != string(value) {
				return "", fmt.Errorf("header %q comes twice with different values: no single key", name)
			}
		}
		return string(value), nil
	}
}

// MessageID takes the broker's id of the message: the one that the producer
// set there, or else its position in the broker, which does not catch what a
// producer sends twice.
func MessageID() KeyFunc {
	return func(m *Message) (string, error) {
		if store.IsBlank(m.ID) {
			return "", noKey("the broker gave the message no id")
		}
		return m.ID, nil
	}
}

// Literal is always the same text, as a part of a Business key.
func Literal(text string) KeyFunc {
	return func(*Message) (string, error) { return text, nil }
}

// Business makes a key of several parts, such as an order's number and what
// happened to it: Business(JSON("/order_id"), Literal("paid")). Each part must
// be there. The parts are joined by JoinKey.
func Business(parts ...KeyFunc) KeyFunc {
	return func(m *Message) (string, error) {
		texts := make([]string, len(parts))
		for i, part := range parts {
			text, err := part(m)
			if err == nil && store.IsBlank(text) {
				err = noKey("it is blank")
			}
			if err != nil {
				return "", fmt.Errorf("part %d of the business key: %w", i+1, err)
			}
			texts[i] = text
		}
		return JoinKey(texts...), nil
	}
}

// FirstOf takes the key from the first of the extractors that finds one, in
// their order. Its error holds those of all.
func FirstOf(extractors ...KeyFunc) KeyFunc {
	return func(m *Message) (string, error) {
		var errs []error
		for _, extract := range extractors {
			key, err := extract(m)
			switch {
			case err != nil:
				errs = append(errs, err)
			case !store.IsBlank(key):
				return key, nil
			}
		}
		if len(errs) == 0 {
			return "", noKey("no extractor found one")
		}
		return "", errors.Join(errs...)
	}
}

// Scoped puts a scope before the key, for producers whose ids are unique only
// within the scope (a tenant, a source system).
func Scoped(scope string, extract KeyFunc) KeyFunc {
	return Business(Literal(scope), extract)
}

// JoinKey joins parts with ":", so that two different lists of parts never
// make the same key: ":" and "\" within a part get a "\" before them.
func JoinKey(parts ...string) string {
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		for j := range len(part) {
			if part[j] == ':' || part[j] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(part[j])
		}
	}
	return b.String()
}

// FoldUUID writes a key that is a UUID in lower case and without braces or
// "urn:uuid:", so that its spellings are one key. Other keys stay as they are,
// and so do UUIDs where FoldUUID is not used: keys are exact by default.
func FoldUUID(extract KeyFunc) KeyFunc {
	return func(m *Message) (string, error) {
		key, err := extract(m)
		if err != nil {
			return "", err
		}
		return foldUUID(key), nil
	}
}

func foldUUID(key string) string {
	bare := key
	if len(bare) == 38 && bare[0] == '{' && bare[37] == '}' {
		bare = bare[1:37]
	}
	if len(bare) == 45 && strings.EqualFold(bare[:9], "urn:uuid:") {
		bare = bare[9:]
	}
	if len(bare) != 36 {
		return key
	}
	for i := range len(bare) {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (bare[i] == '-') || !dash && !isHex(bare[i]) {
			return key
		}
	}
	return strings.ToLower(bare)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// takeKey returns the key of a message for a consumer: the one that a copy
// made by Sekali carries for it, else what extract says.
func takeKey(consumer string, extract KeyFunc, m *Message) (string, error) {
	if c, ok := m.Headers.Get(HeaderConsumer); ok && deadletter.UnescapeHeader(string(c)) == consumer {
		if raw, ok := m.Headers.Get(HeaderKey); ok {
			if key := deadletter.UnescapeHeader(string(raw)); !store.IsBlank(key) {
				return key, nil
			}
		}
	}
	key, err := extract(m)
	if err == nil && store.IsBlank(key) {
		err = ErrNoKey
	}
	return key, err
}
