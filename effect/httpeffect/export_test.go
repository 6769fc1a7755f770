package httpeffect

// Hosts returns how many circuits are kept.
func Hosts(t *Transport) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.hosts)
}

// Filled returns a Config with its defaults.
func Filled(c Config) Config {
	c, _ = c.withDefaults()
	return c
}
