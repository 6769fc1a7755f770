-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Letters}} (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NULL,   -- as it is stored; none: no key could be taken
    raw_key       LONGBLOB NULL,       -- as it came
    ordering_key  VARCHAR(200) NULL,   -- as a key is stored; none: nothing keeps it in order
    raw_ordering_key LONGBLOB NULL,    -- as it came
    identity      VARBINARY(32) NOT NULL, -- of consumer, key and body
    open_identity VARBINARY(32) NULL,  -- the same while it is unresolved
    status        VARCHAR(20) NOT NULL,
    reason        VARCHAR(40) NOT NULL,
    error         LONGTEXT NOT NULL,
    attempts      INT NOT NULL,
    copies        INT NOT NULL,
    topic         LONGTEXT NOT NULL,
    envelope      LONGBLOB NOT NULL,   -- JSON: the message without its body
    body          LONGBLOB NULL,
    first_at      DATETIME(6) NOT NULL, -- UTC
    last_at       DATETIME(6) NOT NULL, -- UTC
    redrive_force SMALLINT NOT NULL DEFAULT 0,   -- 1: even if the key is there
    redrive_key   LONGBLOB NULL,          -- under this key instead, as it came
    takes         INT NOT NULL DEFAULT 0, -- by consumers, since it was requested
    lease_token   VARCHAR(64) NULL,       -- of the instance that has it
    leased_until  BIGINT NOT NULL DEFAULT 0, -- milliseconds since 1970
    UNIQUE KEY {{.Index "Letters" "open_identity"}} (open_identity),
    KEY {{.Index "Letters" "key"}} (consumer_name, message_key),
    KEY {{.Index "Letters" "order"}} (consumer_name, ordering_key, status, id),
    KEY {{.Index "Letters" "due"}} (consumer_name, status, ordering_key, id),
    KEY {{.Index "Letters" "status"}} (status, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Letters}};
