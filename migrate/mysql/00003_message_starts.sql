-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Starts}} (
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NOT NULL, -- as it is stored
    lone_starts   INT NOT NULL,          -- with nothing else in work in the process
    started_at    DATETIME(6) NOT NULL,  -- UTC
    PRIMARY KEY (consumer_name, message_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Starts}};
