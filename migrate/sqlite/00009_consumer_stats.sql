-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Stats}} (
    at_minute     INTEGER NOT NULL, -- minutes since 1970, by the database's clock
    consumer_name VARCHAR(100) NOT NULL,
    processed     INTEGER NOT NULL,
    stale         INTEGER NOT NULL,
    conflicts     INTEGER NOT NULL, -- the key was there, for another body
    retries       INTEGER NOT NULL,
    dead_letters  INTEGER NOT NULL,
    redriven      INTEGER NOT NULL, -- duplicates: a person had them processed again
    lost_races    INTEGER NOT NULL, -- duplicates: another instance was faster
    redelivered   INTEGER NOT NULL, -- duplicates: the broker delivered them again
    repeated      INTEGER NOT NULL, -- duplicates: the producer sent them twice
    age_1s        INTEGER NOT NULL, -- duplicates that came within a second of the first processing
    age_10s       INTEGER NOT NULL, -- within 10 s, and not within 1 s; and so on
    age_1m        INTEGER NOT NULL,
    age_10m       INTEGER NOT NULL,
    age_1h        INTEGER NOT NULL,
    age_6h        INTEGER NOT NULL,
    age_1d        INTEGER NOT NULL,
    age_3d        INTEGER NOT NULL,
    age_7d        INTEGER NOT NULL,
    age_14d       INTEGER NOT NULL,
    age_30d       INTEGER NOT NULL,
    age_more      INTEGER NOT NULL,
    PRIMARY KEY (at_minute, consumer_name)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE IF EXISTS {{.Stats}};
