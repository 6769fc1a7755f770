package bench

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/store/pgxstore"
)

// pg is PostgreSQL through pgx.
type pg struct {
	pool  *pgxpool.Pool
	store *pgxstore.Store
	inbox *sekali.Inbox[pgx.Tx]
	url   string
}

const (
	pgInsert = `INSERT INTO processed_messages (consumer_name, message_key) VALUES ($1, $2)`
	pgUpdate = `UPDATE stock SET quantity = quantity - 1 WHERE sku = $1`
	pgMany   = `UPDATE stock SET quantity = stock.quantity - x.n FROM unnest($1::text[], $2::int[]) AS x (sku, n) WHERE stock.sku = x.sku`
)

func newPG(pool *pgxpool.Pool, url string) *pg {
	s := pgxstore.New(pool)
	return &pg{pool, s, sekali.NewInbox(s, consumer), url}
}

func (p *pg) handwritten(ctx context.Context, o order) error {
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, pgInsert, consumer, o.key); err != nil {
		var e *pgconn.PgError
		if errors.As(err, &e) && e.Code == "23505" {
			return nil // processed before
		}
		return err
	}
	if _, err := tx.Exec(ctx, pgUpdate, skuName(o.sku)); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (p *pg) check(ctx context.Context, o order) error {
	var seen bool
	err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM processed_messages WHERE consumer_name = $1 AND message_key = $2)`, consumer, o.key).Scan(&seen)
	if err != nil || seen {
		return err
	}
	return p.handwritten(ctx, o)
}

func (p *pg) process(ctx context.Context, o order) error {
	_, err := p.inbox.Process(ctx, o.key, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, pgUpdate, skuName(o.sku))
		return err
	})
	return err
}

func (p *pg) limit(ctx context.Context, all []order) error {
	slices.SortFunc(all, func(a, b order) int { return a.sku - b.sku })
	keys := make([]string, len(all))
	for i, o := range all {
		keys[i] = o.key
	}
	skus := map[string]string{}
	for _, o := range all {
		skus[o.key] = skuName(o.sku)
	}
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	rows, err := tx.Query(ctx, `INSERT INTO processed_messages (consumer_name, message_key) SELECT $1, k FROM unnest($2::text[]) AS x (k)
		ON CONFLICT DO NOTHING RETURNING message_key`, consumer, keys)
	if err != nil {
		return err
	}
	fresh, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	c := count(len(fresh), func(i int) string { return skus[fresh[i]] })
	if _, err := tx.Exec(ctx, pgMany, c.skus, c.n); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (p *pg) consume(ctx context.Context, c Case, source *feed) error {
	if c.Mode == FromFile {
		return fromFile(ctx, p.url, c, source)
	}
	return consumeBy(ctx, c, p.store, source, func(cfg *sekali.Config[pgx.Tx]) {
		switch c.Mode {
		case Handle:
			cfg.Handle = func(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
				_, err := tx.Exec(ctx, pgUpdate, skuOf(m))
				return err
			}
		case Pipelined:
			cfg.HandleBatch = pgxstore.Pipelined(func(b *pgx.Batch, m *sekali.Message) error {
				b.Queue(pgUpdate, skuOf(m))
				return nil
			})
		case Batch:
			cfg.HandleBatch = func(ctx context.Context, tx pgx.Tx, all []*sekali.Message) error {
				c := count(len(all), func(i int) string { return skuOf(all[i]) })
				_, err := tx.Exec(ctx, pgMany, c.skus, c.n)
				return err
			}
		}
	})
}

func (p *pg) keep(ctx context.Context, n int, ordered bool) error {
	key := `md5(i::text) || md5((i + 1)::text)`
	if ordered {
		key = `lpad(to_hex(i), 16, '0') || '-kept'`
	}
	for _, q := range []string{
		`TRUNCATE processed_messages`, `TRUNCATE stock`,
		`INSERT INTO stock SELECT 'SKU-' || lpad(i::text, 4, '0'), 1000000000 FROM generate_series(0, 999) AS i`,
	} {
		if _, err := p.pool.Exec(ctx, q); err != nil {
			return err
		}
	}
	if n > 0 {
		if _, err := p.pool.Exec(ctx, `INSERT INTO processed_messages (consumer_name, message_key) SELECT '`+consumer+`', left(`+key+`, 36) FROM generate_series(1, $1) AS i`, n); err != nil {
			return err
		}
	}
	_, err := p.pool.Exec(ctx, `VACUUM ANALYZE processed_messages`)
	if err == nil {
		_, err = p.pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}
