-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Audit}} (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at            DATETIME(6) NOT NULL,  -- UTC
    actor         LONGTEXT NOT NULL,     -- who decided
    action        VARCHAR(40) NOT NULL,
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NULL,     -- as it is stored
    raw_key       LONGBLOB NULL,         -- as it came
    letter_id     BIGINT NULL,           -- of dead_letters
    detail        LONGTEXT NOT NULL,
    KEY {{.Index "Audit" "letter"}} (letter_id),
    KEY {{.Index "Audit" "key"}} (consumer_name, message_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Audit}};
