package pgxstore

import "time"

// Watch has a connection that listens asked sooner whether it lives.
func (n *Notifier) Watch(every, answer time.Duration) { n.watchEvery, n.answerTime = every, answer }
