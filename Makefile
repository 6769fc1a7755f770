# make test       all tests, with -race, against real servers (it brings them up and stops what it started)
# make test-fast  tests that need no server: SQLite, an embedded JetStream, a fake Kafka; no installation
# make bench      measure against the pattern written by hand, on PostgreSQL, MariaDB and SQLite (an hour)
# make lint       gofumpt, go vet, staticcheck, go mod tidy, vet-ours
# make vet-ours   sekalivet over all code of this module: it must have nothing to say
# make services   bring the servers up and leave them running (scripts/services down stops them)

GOFUMPT     = go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK = go run honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help test test-fast lint vet-ours services bench

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -6

test:
	@scripts/test

test-fast:
	go test -tags fast ./...

services:
	scripts/services up

bench:
	scripts/services up postgres mysql
	@eval "$$(scripts/services env)"; \
	for database in "$$SEKALI_TEST_POSTGRES_URL" "$$SEKALI_TEST_MYSQL_URL" "sqlite:$${TMPDIR:-/tmp}/bench.db"; do \
		go run ./cmd/sekali bench --database "$$database" || exit 1; \
	done

lint:
	@unformatted=$$($(GOFUMPT) -l .); \
	if [ -n "$$unformatted" ]; then printf 'not in gofumpt form:\n%s\n' "$$unformatted"; exit 1; fi
	go mod tidy -diff
	go vet ./...
	go vet -tags fast ./...
	$(STATICCHECK) ./...
	$(STATICCHECK) -tags fast ./...
	cd examples/services && go mod tidy -diff && go vet ./... && $(STATICCHECK) ./...
	@$(MAKE) --no-print-directory vet-ours

vet-ours:
	go build -o bin/sekalivet ./cmd/sekalivet
	go vet -vettool=bin/sekalivet ./...
	cd examples/services && go vet -vettool=../../bin/sekalivet ./...
