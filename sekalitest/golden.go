package sekalitest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// goldenFile is where GoldenKeys keeps what it compares with.
const goldenFile = "keys.golden"

// GoldenKeys pins how message keys are formed: a change of the extractor that
// forms another key of a message makes all messages on their way, and all that
// come again, new ones. dir has a message in each file: X.json has a body
// alone; X.msg has headers, "name: value" each on a line, then an empty line,
// then the body, where a name of ":id", ":topic" or ":key" means the message's
// ID, Topic or OrderingKey. Their keys, or that there is none, are compared with
// the file keys.golden in dir, which is written if SEKALITEST_UPDATE is 1.
//
// It fails too if extract takes another key when it is asked again.
func GoldenKeys(t testing.TB, extract sekali.KeyFunc, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatalf("list the messages: %v", err)
	}
	var got strings.Builder
	n := 0
	for _, file := range files { // in order of their names
		m, ok, err := readMessage(file)
		if err != nil {
			t.Fatalf("read a message: %v", err)
		}
		if !ok {
			continue
		}
		n++
		key := keyOf(extract, m)
		if again := keyOf(extract, m); again != key {
			t.Errorf("%s: its key is %s, and when it is taken again %s: a key must depend on the message alone", filepath.Base(file), key, again)
			continue
		}
		fmt.Fprintf(&got, "%s\t%s\n", filepath.Base(file), key)
	}
	if n == 0 {
		t.Fatalf("%s has no message: give it files X.json or X.msg", dir)
	}
	golden(t, filepath.Join(dir, goldenFile), got.String())
}

func golden(t testing.TB, file, got string) {
	t.Helper()
	if os.Getenv("SEKALITEST_UPDATE") == "1" && !t.Failed() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatalf("write the keys: %v", err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("read the keys to compare with: %v: write them with SEKALITEST_UPDATE=1 go test, look at them, and commit them", err)
	}
	if got != string(want) {
		t.Errorf("keys are formed in another way than before: what was processed under the old ones would be processed again.\nwas:\n%snow:\n%s"+
			"If that is meant: SEKALITEST_UPDATE=1 go test", want, got)
	}
}

// keyOf returns the key in quotes, or that there is none.
func keyOf(extract sekali.KeyFunc, m broker.Message) string {
	key, err := extract(&sekali.Message{Message: m.Clone()})
	if err != nil {
		return "no key" // why is said by a text, which may become a better one
	}
	return fmt.Sprintf("%q", key)
}

// readMessage reads a message; ok is false for a file that is none.
func readMessage(file string) (m broker.Message, ok bool, err error) {
	kind := filepath.Ext(file)
	if kind != ".json" && kind != ".msg" {
		return m, false, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return m, false, err
	}
	if kind == ".json" {
		return broker.Message{Body: content}, true, nil
	}
	head, body, found := bytes.Cut(content, []byte("\n\n"))
	if !found {
		return m, false, fmt.Errorf("%s: there is no empty line between the headers and the body", file)
	}
	m.Body = body
	for line := range strings.Lines(string(head)) {
		line = strings.TrimSuffix(line, "\n")
		at := strings.Index(line, ": ")
		if at < 1 {
			return m, false, fmt.Errorf("%s: %q is no header: write name: value", file, line)
		}
		name, value := line[:at], line[at+2:]
		switch name {
		case ":id":
			m.ID = value
		case ":topic":
			m.Topic = value
		case ":key":
			m.OrderingKey = []byte(value)
		default:
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: []byte(value)})
		}
	}
	return m, true, nil
}
