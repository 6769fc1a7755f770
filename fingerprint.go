package sekali

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
)

// FingerprintFunc identifies the body of a message by 32 bytes, so that
// another body under the same key is told from a duplicate. nil means that
// nothing is known of it: then the key alone decides.
type FingerprintFunc func(m *Message) []byte

// BodyFingerprint is the SHA-256 of the body, byte for byte: the same JSON
// with its fields in another order is another body.
func BodyFingerprint(m *Message) []byte { return Fingerprint(m.Body) }

// JSONFingerprint is the SHA-256 of a JSON body's meaning: white space and
// the order of an object's fields do not count, the text of numbers does. Of
// fields that come twice the last one counts. A body that is not JSON has the
// fingerprint that BodyFingerprint gives.
func JSONFingerprint(m *Message) []byte {
	decoder := json.NewDecoder(bytes.NewReader(m.Body))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return Fingerprint(m.Body)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Fingerprint(m.Body)
	}
	canonical, err := json.Marshal(value) // sorts the fields of objects
	// encoding/json puts U+FFFD where text is not Unicode: two bodies that
	// differ only there must not become one.
	if err != nil || bytes.Contains(canonical, []byte("\uFFFD")) {
		return Fingerprint(m.Body)
	}
	return Fingerprint(canonical)
}

// Fingerprint is the SHA-256 of b, for Inbox.Process and Inbox.Claim.
func Fingerprint(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}
