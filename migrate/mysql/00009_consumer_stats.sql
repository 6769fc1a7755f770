-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Stats}} (
    at_minute     BIGINT NOT NULL, -- minutes since 1970, by the database's clock
    consumer_name VARCHAR(100) NOT NULL,
    processed     BIGINT NOT NULL,
    stale         BIGINT NOT NULL,
    conflicts     BIGINT NOT NULL, -- the key was there, for another body
    retries       BIGINT NOT NULL,
    dead_letters  BIGINT NOT NULL,
    redriven      BIGINT NOT NULL, -- duplicates: a person had them processed again
    lost_races    BIGINT NOT NULL, -- duplicates: another instance was faster
    redelivered   BIGINT NOT NULL, -- duplicates: the broker delivered them again
    repeated      BIGINT NOT NULL, -- duplicates: the producer sent them twice
    age_1s        BIGINT NOT NULL, -- duplicates that came within a second of the first processing
    age_10s       BIGINT NOT NULL, -- within 10 s, and not within 1 s; and so on
    age_1m        BIGINT NOT NULL,
    age_10m       BIGINT NOT NULL,
    age_1h        BIGINT NOT NULL,
    age_6h        BIGINT NOT NULL,
    age_1d        BIGINT NOT NULL,
    age_3d        BIGINT NOT NULL,
    age_7d        BIGINT NOT NULL,
    age_14d       BIGINT NOT NULL,
    age_30d       BIGINT NOT NULL,
    age_more      BIGINT NOT NULL,
    PRIMARY KEY (at_minute, consumer_name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- +goose Down
DROP TABLE IF EXISTS {{.Stats}};
