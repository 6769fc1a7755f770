// Package sekali is a stand-in, with what the tests of other clients need.
package sekali


type Message struct{ Body []byte }

func (m *Message) Key() string { return "" }
