package sekali

import "github.com/sekali/sekali/broker"

// copies returns the messages of jobs for users' functions to do with as they
// like: they share no memory with the originals. It allocates a few times for
// all of them, not for each.
func copies(jobs []*job) []*Message {
	size, headers := 0, 0
	for _, j := range jobs {
		m := &j.delivery.Message
		size += len(m.OrderingKey) + len(m.Body)
		headers += len(m.Headers)
		for i := range m.Headers {
			size += len(m.Headers[i].Value)
		}
	}
	c := copier{bytes: make([]byte, 0, size), headers: make([]broker.Header, 0, headers)}
	messages, pointers := make([]Message, len(jobs)), make([]*Message, len(jobs))
	for i, j := range jobs {
		messages[i] = Message{Message: c.message(&j.delivery.Message), key: j.message.key, letter: j.message.letter}
		pointers[i] = &messages[i]
	}
	return pointers
}

// copier has room for all that is to be copied.
type copier struct {
	bytes   []byte
	headers []broker.Header
}

func (c *copier) message(m *broker.Message) broker.Message {
	own := *m
	own.OrderingKey, own.Body = c.copy(m.OrderingKey), c.copy(m.Body)
	if m.Headers != nil {
		from := len(c.headers)
		for _, h := range m.Headers {
			c.headers = append(c.headers, broker.Header{Name: h.Name, Value: c.copy(h.Value)})
		}
		own.Headers = c.headers[from:len(c.headers):len(c.headers)]
	}
	return own
}

// copy keeps nil and empty apart. What is appended to a copy does not run into
// the next one.
func (c *copier) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	from := len(c.bytes)
	c.bytes = append(c.bytes, b...)
	return c.bytes[from:len(c.bytes):len(c.bytes)]
}
