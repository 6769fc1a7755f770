-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Versions}} (
    consumer_name VARCHAR(100) NOT NULL,
    entity        VARCHAR(200) NOT NULL, -- as a key is stored
    version       INTEGER NOT NULL,      -- the newest that was seen
    updated_at    TIMESTAMP NOT NULL,    -- UTC
    PRIMARY KEY (consumer_name, entity)
);

-- +goose Down
DROP TABLE IF EXISTS {{.Versions}};
