-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Starts}} (
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NOT NULL, -- as it is stored
    lone_starts   INTEGER NOT NULL,      -- with nothing else in work in the process
    started_at    TIMESTAMP NOT NULL,    -- UTC
    PRIMARY KEY (consumer_name, message_key)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE IF EXISTS {{.Starts}};
