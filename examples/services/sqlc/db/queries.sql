-- name: AddPayment :exec
INSERT INTO payments (payment, order_id, cents) VALUES ($1, $2, $3);

-- name: AddToOrder :one
INSERT INTO orders (order_id, paid) VALUES ($1, $2)
ON CONFLICT (order_id) DO UPDATE SET paid = orders.paid + excluded.paid
RETURNING paid;
