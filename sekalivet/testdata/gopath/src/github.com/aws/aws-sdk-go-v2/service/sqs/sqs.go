// Package sqs is a stand-in.
package sqs

import "context"

type (
	Client  struct{}
	Options struct{}
	Input   struct{}
	Output  struct{}
)

func New(o Options) *Client { return nil }

func NewFromFile(path string) (*Client, error) { return nil, nil }

func (c *Client) SendMessage(ctx context.Context, in *Input) (*Output, error) { return nil, nil }

func (c *Client) DeleteMessage(ctx context.Context, in *Input) (*Output, error) { return nil, nil }

func (c *Client) Options() Options { return Options{} }
