-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Messages}} (
    consumer_name VARCHAR(100) COLLATE "C" NOT NULL,
    message_key   VARCHAR(200) COLLATE "C" NOT NULL,
    processed_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    fingerprint   BYTEA,
    PRIMARY KEY (consumer_name, message_key)
);

-- What follows completes a table that was made by hand. Its rows stay.
ALTER TABLE {{.Messages}} ADD COLUMN IF NOT EXISTS fingerprint BYTEA;

-- Key columns must be wide enough and compare byte for byte.
-- +goose StatementBegin
DO $sekali$
DECLARE
    unfit record;
BEGIN
    FOR unfit IN
        SELECT a.attname AS name, greatest(a.atttypmod - 4, w.width) AS width, a.atttypmod < 0 AS unlimited
        FROM (VALUES ('consumer_name', 100), ('message_key', 200)) AS w (name, width)
        JOIN pg_attribute a ON a.attrelid = to_regclass('{{.Messages}}') AND a.attname = w.name
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE NOT l.collisdeterministic
           OR a.atttypid = 'varchar'::regtype AND a.atttypmod >= 0 AND a.atttypmod - 4 < w.width
    LOOP
        EXECUTE format('ALTER TABLE {{.Messages}} ALTER COLUMN %I TYPE VARCHAR%s COLLATE "C"',
            unfit.name, CASE WHEN unfit.unlimited THEN '' ELSE '(' || unfit.width || ')' END);
    END LOOP;
END
$sekali$;
-- +goose StatementEnd

CREATE INDEX IF NOT EXISTS {{.Index "Messages" "processed_at"}} ON {{.Messages}} (processed_at);

-- +goose Down
DROP TABLE IF EXISTS {{.Messages}};
