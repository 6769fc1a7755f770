package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxConsumer is the length of the longest consumer name, in bytes: the width
// of the column consumer_name.
const MaxConsumer = 100

// MaxStoredKey is the length of the longest stored form of a key, in bytes:
// the width of the column message_key.
const MaxStoredKey = 200

// hashPrefix starts the stored form of a key that cannot be stored as it is.
const hashPrefix = "sha256:"

// StoredKey returns the form in which a message key stands in the table, the
// same on every database: the key itself, unless it is longer than
// MaxStoredKey bytes, is not valid UTF-8, holds a NUL or starts with
// "sha256:"; then "sha256:" and the SHA-256 of the key in lower-case
// hexadecimal. Two different keys have two different stored forms (keys that
// look like a stored form are hashed as well), as far as SHA-256 has no
// collisions.
func StoredKey(raw string) string {
	if len(raw) <= MaxStoredKey && utf8.ValidString(raw) &&
		!strings.HasPrefix(raw, hashPrefix) && strings.IndexByte(raw, 0) < 0 {
		return raw
	}
	sum := sha256.Sum256([]byte(raw))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// IsBlank tells whether a key is empty or made of white space alone (as
// unicode.IsSpace has it).
func IsBlank(raw string) bool {
	return strings.TrimFunc(raw, unicode.IsSpace) == ""
}

// CheckConsumer returns an error if name cannot be a consumer's name: it must
// have 1 to MaxConsumer bytes of valid UTF-8 without control characters, and
// neither start nor end with white space (some tools trim it).
func CheckConsumer(name string) error {
	switch {
	case name == "":
		return errors.New("the consumer's name is empty: name the consumer whose effect it is, such as \"stock-service\"")
	case len(name) > MaxConsumer:
		return fmt.Errorf("the consumer's name has %d bytes: %d at most", len(name), MaxConsumer)
	case !utf8.ValidString(name):
		return fmt.Errorf("the consumer's name %q is not valid UTF-8", name)
	case strings.IndexFunc(name, unicode.IsControl) >= 0:
		return fmt.Errorf("the consumer's name %q holds a control character", name)
	case strings.TrimFunc(name, unicode.IsSpace) != name:
		return fmt.Errorf("the consumer's name %q starts or ends with white space", name)
	}
	return nil
}

// Validate returns an error if no store could claim c: a bad consumer name,
// no keys, a blank key (ErrNoKey), a repeated key, or a fingerprint that has
// not 32 bytes. Stores call it first.
func (c Claim) Validate() error {
	if err := CheckConsumer(c.Consumer); err != nil {
		return err
	}
	if len(c.Keys) == 0 {
		return errors.New("a claim needs at least one key")
	}
	for _, k := range c.Keys {
		if IsBlank(k.Raw) {
			return ErrNoKey
		}
		if n := len(k.Fingerprint); n != 0 && n != sha256.Size {
			return fmt.Errorf("the fingerprint of key %q has %d bytes instead of %d", k.Raw, n, sha256.Size)
		}
	}
	if len(c.Keys) == 1 {
		return nil
	}
	seen := make(map[string]struct{}, len(c.Keys))
	for _, k := range c.Keys {
		if _, twice := seen[k.Raw]; twice {
			return fmt.Errorf("the key %q is in the claim twice: claim it once and hold the other message back", k.Raw)
		}
		seen[k.Raw] = struct{}{}
	}
	return nil
}
