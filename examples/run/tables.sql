-- The business tables of the examples, beside those of sekali migrate up.
CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL);
CREATE TABLE shipments (order_id VARCHAR(40) NOT NULL, label VARCHAR(40) NOT NULL);
CREATE TABLE prices (sku VARCHAR(20) PRIMARY KEY, price DECIMAL(20, 4) NOT NULL, version BIGINT NOT NULL);
CREATE TABLE ledger (account VARCHAR(40) NOT NULL, amount DECIMAL(30, 2) NOT NULL, booked_at TIMESTAMP NOT NULL);
INSERT INTO stock VALUES ('KOPI-250', 1000);
