-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Audit}} (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            TIMESTAMP NOT NULL, -- UTC
    actor         TEXT NOT NULL,      -- who decided
    action        VARCHAR(40) NOT NULL,
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200),       -- as it is stored
    raw_key       BLOB,               -- as it came
    letter_id     INTEGER,            -- of dead_letters
    detail        TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS {{.Index "Audit" "letter"}} ON {{.Quoted .AuditName}} (letter_id);

CREATE INDEX IF NOT EXISTS {{.Index "Audit" "key"}} ON {{.Quoted .AuditName}} (consumer_name, message_key);

-- +goose Down
DROP TABLE IF EXISTS {{.Audit}};
