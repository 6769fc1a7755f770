-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Versions}} (
    consumer_name VARCHAR(100) NOT NULL,
    entity        VARCHAR(200) NOT NULL, -- as a key is stored
    version       BIGINT NOT NULL,       -- the newest that was seen
    updated_at    DATETIME(6) NOT NULL,  -- UTC
    PRIMARY KEY (consumer_name, entity)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Versions}};
