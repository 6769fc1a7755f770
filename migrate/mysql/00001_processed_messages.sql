-- +goose NO TRANSACTION
-- +goose Up

-- The collations of MySQL 8 and of MariaDB under which only equal bytes are
-- equal, trailing blanks included. Each server reads its own comment.
CREATE TABLE IF NOT EXISTS {{.Messages}} (
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NOT NULL,
    processed_at  TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    fingerprint   BINARY(32) NULL,
    PRIMARY KEY (consumer_name, message_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4
  COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */;

-- What follows completes a table that was made by hand. Its rows stay.
SET @sekali = IF((SELECT COUNT(*) FROM information_schema.tables
        WHERE table_schema = {{.SchemaValue}} AND table_name = '{{.MessagesName}}' AND engine <> 'InnoDB') = 0,
    'DO 0', 'ALTER TABLE {{.Messages}} ENGINE=InnoDB ROW_FORMAT=DYNAMIC');
PREPARE sekali FROM @sekali;
EXECUTE sekali;
DEALLOCATE PREPARE sekali;

SET @sekali = IF((SELECT COUNT(*) FROM information_schema.columns
        WHERE table_schema = {{.SchemaValue}} AND table_name = '{{.MessagesName}}' AND column_name = 'fingerprint') > 0,
    'DO 0', 'ALTER TABLE {{.Messages}} ADD COLUMN fingerprint BINARY(32) NULL');
PREPARE sekali FROM @sekali;
EXECUTE sekali;
DEALLOCATE PREPARE sekali;

-- Key columns must be wide enough and compare byte for byte.
SET @sekali_collation = /*!80017 'utf8mb4_0900_bin' *//*M! 'utf8mb4_nopad_bin' */;
SET @sekali = (SELECT CONCAT('ALTER TABLE {{.Messages}} ', GROUP_CONCAT('MODIFY ', c.column_name, ' VARCHAR(',
            GREATEST(c.character_maximum_length, IF(c.column_name = 'consumer_name', 100, 200)),
            ') CHARACTER SET utf8mb4 COLLATE ', @sekali_collation, ' NOT NULL' SEPARATOR ', '))
        FROM information_schema.columns c
        WHERE c.table_schema = {{.SchemaValue}} AND c.table_name = '{{.MessagesName}}'
            AND c.column_name IN ('consumer_name', 'message_key') AND c.data_type IN ('char', 'varchar')
            AND NOT (c.data_type = 'varchar' AND c.collation_name = @sekali_collation
                AND c.character_maximum_length >= IF(c.column_name = 'consumer_name', 100, 200)));
SET @sekali = IFNULL(@sekali, 'DO 0');
PREPARE sekali FROM @sekali;
EXECUTE sekali;
DEALLOCATE PREPARE sekali;

SET @sekali = IF((SELECT COUNT(*) FROM information_schema.statistics
        WHERE table_schema = {{.SchemaValue}} AND table_name = '{{.MessagesName}}'
            AND index_name = '{{.IndexName "Messages" "processed_at"}}') > 0,
    'DO 0', 'CREATE INDEX {{.Index "Messages" "processed_at"}} ON {{.Messages}} (processed_at)');
PREPARE sekali FROM @sekali;
EXECUTE sekali;
DEALLOCATE PREPARE sekali;

-- +goose Down
DROP TABLE IF EXISTS {{.Messages}};
