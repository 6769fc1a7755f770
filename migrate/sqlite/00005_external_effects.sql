-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Effects}} (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_name   VARCHAR(100) NOT NULL,
    message_key     VARCHAR(200) NOT NULL, -- as it is stored
    raw_key         BLOB NOT NULL,         -- as it came
    effect_name     VARCHAR(100) NOT NULL,
    idempotency_key VARCHAR(40) NOT NULL,  -- the provider's
    state           VARCHAR(20) NOT NULL,
    final           INTEGER NOT NULL,      -- 1: given up
    attempt         INTEGER NOT NULL,
    token           INTEGER NOT NULL,      -- changes with each start
    lease_until     INTEGER NOT NULL,      -- milliseconds since 1970; 0: nobody owns it
    first_at        INTEGER NOT NULL,      -- milliseconds since 1970
    started_at      INTEGER NOT NULL,      -- milliseconds since 1970
    updated_at      TIMESTAMP NOT NULL,    -- UTC
    fingerprint     BLOB,                  -- of what was sent
    result          BLOB,                  -- JSON
    error           TEXT NOT NULL,
    UNIQUE (consumer_name, message_key, effect_name)
);

CREATE INDEX IF NOT EXISTS {{.Index "Effects" "state"}} ON {{.Quoted .EffectsName}} (state, id);

-- +goose Down
DROP TABLE IF EXISTS {{.Effects}};
