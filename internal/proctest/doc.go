// Package proctest has the tests that need consumers in processes of their
// own: processes that die, freeze, and kill themselves.
package proctest
