package broker

// As finds in s, or in what s wraps, a value of type C: an optional interface
// or a concrete source. It sees through wrappers that have an Unwrap method
// which returns the wrapped source.
func As[C any](s any) (C, bool) {
	for s != nil {
		if c, ok := s.(C); ok {
			return c, true
		}
		w, ok := s.(interface{ Unwrap() any })
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var none C
	return none, false
}
