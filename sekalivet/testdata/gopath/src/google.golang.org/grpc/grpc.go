// Package grpc is a stand-in.
package grpc

type CallOption interface{}
