-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Letters}} (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200),  -- as it is stored; none: no key could be taken
    raw_key       BLOB,          -- as it came
    ordering_key  VARCHAR(200),  -- as a key is stored; none: nothing keeps it in order
    raw_ordering_key BLOB,       -- as it came
    identity      BLOB NOT NULL, -- of consumer, key and body
    open_identity BLOB UNIQUE,   -- the same while it is unresolved
    status        VARCHAR(20) NOT NULL,
    reason        VARCHAR(40) NOT NULL,
    error         TEXT NOT NULL,
    attempts      INTEGER NOT NULL,
    copies        INTEGER NOT NULL,
    topic         TEXT NOT NULL,
    envelope      BLOB NOT NULL, -- JSON: the message without its body
    body          BLOB,
    first_at      TIMESTAMP NOT NULL, -- UTC
    last_at       TIMESTAMP NOT NULL, -- UTC
    redrive_force INTEGER NOT NULL DEFAULT 0,   -- 1: even if the key is there
    redrive_key   BLOB,                         -- under this key instead, as it came
    takes         INTEGER NOT NULL DEFAULT 0,   -- by consumers, since it was requested
    lease_token   VARCHAR(64),                  -- of the instance that has it
    leased_until  INTEGER NOT NULL DEFAULT 0    -- milliseconds since 1970
);

CREATE INDEX IF NOT EXISTS {{.Index "Letters" "key"}} ON {{.Quoted .LettersName}} (consumer_name, message_key);

CREATE INDEX IF NOT EXISTS {{.Index "Letters" "order"}} ON {{.Quoted .LettersName}} (consumer_name, ordering_key, status, id);

CREATE INDEX IF NOT EXISTS {{.Index "Letters" "due"}} ON {{.Quoted .LettersName}} (consumer_name, status, ordering_key, id);

CREATE INDEX IF NOT EXISTS {{.Index "Letters" "status"}} ON {{.Quoted .LettersName}} (status, id);

-- +goose Down
DROP TABLE IF EXISTS {{.Letters}};
