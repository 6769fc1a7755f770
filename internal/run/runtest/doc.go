// Package runtest has the tests of sekali run from outside: the binary as a
// process, real brokers and databases, and producers in Python.
package runtest
