-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Marks}} (
    consumer_name VARCHAR(100) NOT NULL PRIMARY KEY, -- empty: the pruner's own row
    pruned_until  INTEGER NOT NULL DEFAULT 0, -- microseconds since 1970: when the youngest key that was removed had been processed
    lease_token   VARCHAR(64),                -- of the pruner at work, in its own row
    leased_until  INTEGER NOT NULL DEFAULT 0  -- milliseconds since 1970
) WITHOUT ROWID;

-- +goose Down
DROP TABLE IF EXISTS {{.Marks}};
