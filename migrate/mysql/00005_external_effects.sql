-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Effects}} (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer_name   VARCHAR(100) NOT NULL,
    message_key     VARCHAR(200) NOT NULL, -- as it is stored
    raw_key         LONGBLOB NOT NULL,     -- as it came
    effect_name     VARCHAR(100) NOT NULL,
    idempotency_key VARCHAR(40) NOT NULL,  -- the provider's
    state           VARCHAR(20) NOT NULL,
    final           SMALLINT NOT NULL,     -- 1: given up
    attempt         INT NOT NULL,
    token           BIGINT NOT NULL,       -- changes with each start
    lease_until     BIGINT NOT NULL,       -- milliseconds since 1970; 0: nobody owns it
    first_at        BIGINT NOT NULL,       -- milliseconds since 1970
    started_at      BIGINT NOT NULL,       -- milliseconds since 1970
    updated_at      DATETIME(6) NOT NULL,  -- UTC
    fingerprint     VARBINARY(32) NULL,    -- of what was sent
    result          LONGBLOB NULL,         -- JSON
    error           LONGTEXT NOT NULL,
    UNIQUE KEY {{.Index "Effects" "effect"}} (consumer_name, message_key, effect_name),
    KEY {{.Index "Effects" "state"}} (state, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Effects}};
