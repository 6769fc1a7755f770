-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Marks}} (
    consumer_name VARCHAR(100) COLLATE "C" NOT NULL PRIMARY KEY, -- empty: the pruner's own row
    pruned_until  BIGINT NOT NULL DEFAULT 0,  -- microseconds since 1970: when the youngest key that was removed had been processed
    lease_token   VARCHAR(64) COLLATE "C",    -- of the pruner at work, in its own row
    leased_until  BIGINT NOT NULL DEFAULT 0   -- milliseconds since 1970
);

-- +goose Down
DROP TABLE IF EXISTS {{.Marks}};
