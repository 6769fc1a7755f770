package dburl

import (
	"context"
	"fmt"
	"net/url"
)

// MakePlace makes a place of its own on the server of a URL: a schema on
// PostgreSQL, a database on MySQL. It returns the URL of the place, with its
// password, and a function that drops it.
func MakePlace(ctx context.Context, raw, name string) (place string, drop func(ctx context.Context) error, err error) {
	server, err := Open(ctx, raw, false)
	if err != nil {
		return "", nil, err
	}
	defer server.Close()
	what, dropping := "SCHEMA "+name, "DROP SCHEMA IF EXISTS "+name+" CASCADE"
	if server.Kind == MySQL {
		what, dropping = "DATABASE "+name, "DROP DATABASE IF EXISTS "+name
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", nil, fmt.Errorf("database URL %s: %w", Redact(raw), ErrURL)
	}
	if _, err := server.SQL.ExecContext(ctx, "CREATE "+what); err != nil {
		return "", nil, fmt.Errorf("database %s: CREATE %s: %w: does the user have the right to create it?", Redact(raw), what, err)
	}
	drop = func(ctx context.Context) error {
		server, err := Open(ctx, raw, false)
		if err != nil {
			return err
		}
		defer server.Close()
		_, err = server.SQL.ExecContext(ctx, dropping)
		return err
	}
	if server.Kind == MySQL {
		u.Path = "/" + name
	} else {
		q := u.Query()
		q.Set("search_path", name)
		u.RawQuery = q.Encode()
	}
	return u.String(), drop, nil
}
