-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Marks}} (
    consumer_name VARCHAR(100) NOT NULL PRIMARY KEY, -- empty: the pruner's own row
    pruned_until  BIGINT NOT NULL DEFAULT 0, -- microseconds since 1970: when the youngest key that was removed had been processed
    lease_token   VARCHAR(64) NULL,          -- of the pruner at work, in its own row
    leased_until  BIGINT NOT NULL DEFAULT 0  -- milliseconds since 1970
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Marks}};
