-- +goose Up
CREATE TABLE IF NOT EXISTS {{.Outbox}} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id   VARCHAR(200) NOT NULL,      -- the event's id
    topic        VARCHAR(255) NOT NULL,
    ordering_key BLOB,
    headers      TEXT,                       -- a JSON object
    body         BLOB,
    not_before   INTEGER NOT NULL DEFAULT 0, -- milliseconds since 1970
    status       VARCHAR(20) NOT NULL DEFAULT 'pending',
    attempts     INTEGER NOT NULL DEFAULT 0, -- refused so often
    error        TEXT NOT NULL DEFAULT '',
    created_at   TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    published_at TIMESTAMP,                  -- UTC
    -- There is no hash function: the last two bytes make do.
    lane         INTEGER GENERATED ALWAYS AS ((1 * coalesce(unicode(substr(hex(CASE WHEN ordering_key IS NULL THEN message_id ELSE ordering_key END), -1, 1)), 0) +
        7 * coalesce(unicode(substr(hex(CASE WHEN ordering_key IS NULL THEN message_id ELSE ordering_key END), -2, 1)), 0) +
        13 * coalesce(unicode(substr(hex(CASE WHEN ordering_key IS NULL THEN message_id ELSE ordering_key END), -3, 1)), 0) +
        31 * coalesce(unicode(substr(hex(CASE WHEN ordering_key IS NULL THEN message_id ELSE ordering_key END), -4, 1)), 0)) % 64) VIRTUAL,
    UNIQUE (message_id)
);

CREATE INDEX IF NOT EXISTS {{.Index "Outbox" "pending"}} ON {{.Quoted .OutboxName}} (id) WHERE status = 'pending';

CREATE INDEX IF NOT EXISTS {{.Index "Outbox" "parked"}} ON {{.Quoted .OutboxName}} (id) WHERE status = 'parked';

CREATE INDEX IF NOT EXISTS {{.Index "Outbox" "published"}} ON {{.Quoted .OutboxName}} (published_at) WHERE status = 'published';

CREATE TABLE IF NOT EXISTS {{.OutboxSide "lanes"}} (
    lane        INTEGER NOT NULL PRIMARY KEY,
    owner       VARCHAR(40) NOT NULL,
    lease_until INTEGER NOT NULL -- milliseconds since 1970
);

INSERT INTO {{.OutboxSide "lanes"}} (lane, owner, lease_until) VALUES
    (0, '', 0), (1, '', 0), (2, '', 0), (3, '', 0), (4, '', 0), (5, '', 0), (6, '', 0), (7, '', 0), (8, '', 0),
    (9, '', 0), (10, '', 0), (11, '', 0), (12, '', 0), (13, '', 0), (14, '', 0), (15, '', 0), (16, '', 0), (17, '', 0),
    (18, '', 0), (19, '', 0), (20, '', 0), (21, '', 0), (22, '', 0), (23, '', 0), (24, '', 0), (25, '', 0), (26, '', 0),
    (27, '', 0), (28, '', 0), (29, '', 0), (30, '', 0), (31, '', 0), (32, '', 0), (33, '', 0), (34, '', 0), (35, '', 0),
    (36, '', 0), (37, '', 0), (38, '', 0), (39, '', 0), (40, '', 0), (41, '', 0), (42, '', 0), (43, '', 0), (44, '', 0),
    (45, '', 0), (46, '', 0), (47, '', 0), (48, '', 0), (49, '', 0), (50, '', 0), (51, '', 0), (52, '', 0), (53, '', 0),
    (54, '', 0), (55, '', 0), (56, '', 0), (57, '', 0), (58, '', 0), (59, '', 0), (60, '', 0), (61, '', 0), (62, '', 0),
    (63, '', 0)
ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS {{.OutboxSide "relays"}} (
    relay       VARCHAR(40) NOT NULL PRIMARY KEY,
    lease_until INTEGER NOT NULL -- milliseconds since 1970
);

-- +goose Down
DROP TABLE IF EXISTS {{.OutboxSide "relays"}};
DROP TABLE IF EXISTS {{.OutboxSide "lanes"}};
DROP TABLE IF EXISTS {{.Outbox}};
