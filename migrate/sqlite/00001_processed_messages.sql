-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Messages}} (
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NOT NULL,
    processed_at  TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    fingerprint   BLOB,
    PRIMARY KEY (consumer_name, message_key)
) WITHOUT ROWID;
{{if .AddFingerprint}}
-- It completes a table that was made by hand. Its rows stay.
ALTER TABLE {{.Messages}} ADD COLUMN fingerprint BLOB;
{{end}}
CREATE INDEX IF NOT EXISTS {{.Index "Messages" "processed_at"}} ON {{.Quoted .MessagesName}} (processed_at);

-- +goose Down
DROP TABLE IF EXISTS {{.Messages}};
