package sekali

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sekali/sekali/store"
)

// JSON takes the key from the body at a JSON pointer (RFC 6901), such as
// "/event_id" or "/data/items/0/id". The value must be a string or a number;
// a number's key is its text as it stands in the body, so 1 and 1.0 are two
// keys. Null or nothing there is ErrNoKey. A string that is not valid Unicode
// is an error: two of them could become one key.
func JSON(pointer string) KeyFunc {
	path, badPointer := parsePointer(pointer)
	return func(m *Message) (string, error) {
		if badPointer != nil {
			return "", badPointer
		}
		raw, err := lookUp(m.Body, path)
		if err != nil {
			return "", fmt.Errorf("%w: at %q in the body: %w", ErrNoKey, pointer, err)
		}
		key, err := scalar(raw)
		if err != nil {
			return "", fmt.Errorf("at %q in the body: %w", pointer, err)
		}
		return key, nil
	}
}

// parsePointer splits a JSON pointer into its unescaped steps.
func parsePointer(pointer string) ([]string, error) {
	if pointer == "" {
		return nil, nil
	}
	if pointer[0] != '/' {
		return nil, fmt.Errorf("the JSON pointer %q does not start with \"/\": write %q", pointer, "/"+pointer)
	}
	steps := strings.Split(pointer[1:], "/")
	for i, step := range steps {
		for rest := step; ; {
			_, after, found := strings.Cut(rest, "~")
			if !found {
				break
			}
			if after == "" || after[0] != '0' && after[0] != '1' {
				return nil, fmt.Errorf("the JSON pointer %q has a \"~\" that is not \"~0\" or \"~1\"", pointer)
			}
			rest = after
		}
		steps[i] = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
	}
	return steps, nil
}

// lookUp returns the JSON text at a path in a document.
func lookUp(document []byte, path []string) (json.RawMessage, error) {
	if !json.Valid(document) {
		return nil, fmt.Errorf("the body is not JSON")
	}
	raw := json.RawMessage(document)
	for _, step := range path {
		raw = bytes.TrimSpace(raw)
		switch raw[0] {
		case '{':
			var object map[string]json.RawMessage
			if err := json.Unmarshal(raw, &object); err != nil {
				return nil, err
			}
			next, ok := object[step]
			if !ok {
				return nil, fmt.Errorf("there is no %q", step)
			}
			raw = next
		case '[':
			var array []json.RawMessage
			if err := json.Unmarshal(raw, &array); err != nil {
				return nil, err
			}
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(array) || strconv.Itoa(i) != step {
				return nil, fmt.Errorf("there is no element %q", step)
			}
			raw = array[i]
		default:
			return nil, fmt.Errorf("there is nothing below a single value at %q", step)
		}
	}
	return bytes.TrimSpace(raw), nil
}

// scalar returns the key in a JSON string or number.
func scalar(raw json.RawMessage) (string, error) {
	switch c := raw[0]; {
	case c == '"':
		return unquote(raw)
	case c == '-' || c >= '0' && c <= '9':
		return string(raw), nil
	case c == 'n':
		return "", noKey("it is null")
	}
	return "", fmt.Errorf("%.20s… is neither a string nor a number", raw)
}

// unquote returns a JSON string's value. encoding/json puts U+FFFD in the
// place of bytes and escapes that are not Unicode; that would make one key of
// two, so a U+FFFD that the producer did not write is an error.
func unquote(raw json.RawMessage) (string, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", err
	}
	if n := strings.Count(s, "\uFFFD"); n > 0 {
		written := bytes.Count(raw, []byte("\uFFFD")) + bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`))
		if n != written || !utf8.Valid(raw) {
			return "", fmt.Errorf("the string is not valid Unicode: take a key that is")
		}
	}
	if store.IsBlank(s) {
		return "", noKey("the string is blank")
	}
	return s, nil
}

// cloudEventNames are the names of the attributes id and source in the
// protocol bindings of CloudEvents 1.0: HTTP and NATS, Kafka, AMQP (two).
var cloudEventNames = [][2]string{
	{"ce-id", "ce-source"},
	{"ce_id", "ce_source"},
	{"cloudEvents:id", "cloudEvents:source"},
	{"cloudEvents_id", "cloudEvents_source"},
}

// CloudEvent takes the key from a CloudEvent: its source and its id, which
// CloudEvents 1.0 says together name an event. It knows the binary mode of the
// HTTP, NATS, Kafka and AMQP bindings, and the structured mode in JSON.
func CloudEvent() KeyFunc {
	structured := Business(JSON("/source"), JSON("/id"))
	return func(m *Message) (string, error) {
		for _, names := range cloudEventNames {
			id, okID := m.Headers.Get(names[0])
			source, okSource := m.Headers.Get(names[1])
			if okID && okSource && len(id) > 0 && len(source) > 0 {
				return JoinKey(string(source), string(id)), nil
			}
		}
		key, err := structured(m)
		if err != nil {
			return "", fmt.Errorf("the message is not a CloudEvent with source and id: %w", err)
		}
		return key, nil
	}
}

// debeziumPosition are the fields of a Debezium source block that say where
// in the database's log a change stands, over all its connectors. Times,
// versions and snapshot marks are left out: they differ when a connector
// reads the same change again.
var debeziumPosition = []string{
	"server_id", "file", "pos", "row", "lsn", "txId", "commit_lsn", "change_lsn",
	"event_serial_no", "scn", "commit_scn", "rs_id", "ssn", "ord", "stxnid", "lsid",
}

// Debezium takes the key from a Debezium event: the header "id" that its
// outbox event router sets, else what a change event says of its origin
// (connector, server, database, schema, table or collection, position in the
// log, operation) together with the row's key, since all rows of a snapshot
// share one position. Bodies with and without an embedded schema are known.
func Debezium() KeyFunc {
	outbox := Header("id")
	return func(m *Message) (string, error) {
		if key, err := outbox(m); err == nil {
			return key, nil
		}
		key, err := debeziumChange(m)
		if err != nil {
			return "", fmt.Errorf("%w: the message is not a Debezium event: %w", ErrNoKey, err)
		}
		return key, nil
	}
}

func debeziumChange(m *Message) (string, error) {
	payload, err := lookUp(m.Body, []string{"payload"})
	if err != nil {
		payload = m.Body
	}
	var change struct {
		Op     string                     `json:"op"`
		Source map[string]json.RawMessage `json:"source"`
	}
	if err := json.Unmarshal(payload, &change); err != nil {
		return "", err
	}
	parts, found := []string{"debezium"}, false
	for _, name := range []string{"connector", "name", "db", "schema", "table", "collection"} {
		parts = append(parts, string(change.Source[name]))
	}
	for _, name := range debeziumPosition {
		value := change.Source[name]
		if len(value) > 0 && string(value) != "null" {
			parts, found = append(parts, name+"="+string(value)), true
		}
	}
	if !found {
		return "", fmt.Errorf("its source says no position")
	}
	return JoinKey(append(parts, change.Op, string(m.OrderingKey))...), nil
}
