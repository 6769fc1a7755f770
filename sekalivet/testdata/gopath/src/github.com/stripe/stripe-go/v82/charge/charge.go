// Package charge is a stand-in.
package charge

type Params struct{}

type Charge struct{}

func New(p *Params) (*Charge, error) { return nil, nil }

func (c *Charge) Name() string { return "" }
