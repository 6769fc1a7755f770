// Package pb is like what protoc makes.
package pb

import (
	"context"

	"google.golang.org/grpc"
)

type Order struct{}

type OrdersClient interface {
	Place(ctx context.Context, in *Order, opts ...grpc.CallOption) (*Order, error)
}
