CREATE TABLE IF NOT EXISTS payments (
    payment  TEXT PRIMARY KEY,
    order_id TEXT NOT NULL,
    cents    BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS orders (
    order_id TEXT PRIMARY KEY,
    paid     BIGINT NOT NULL
);
