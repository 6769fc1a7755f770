# PostgreSQL, from Debian's packages.

url_postgres() { echo "postgres://sekali:sekali@127.0.0.1:$1/sekali?sslmode=disable"; }

packages_postgres() { echo postgresql; }

pg_bin() {
  local d
  for d in /usr/lib/postgresql/*/bin; do [ -x "$d/initdb" ] && { echo "$d"; return; }; done
  die "postgres: no /usr/lib/postgresql/*/bin/initdb after the installation: reinstall the package postgresql"
}

start_postgres() {
  local d=$state/postgres bin p
  bin=$(pg_bin)
  p=$(port postgres)
  mkdir -p "$d"; chown postgres "$d"
  if [ ! -s "$d/data/PG_VERSION" ]; then
    runuser -u postgres -- "$bin/initdb" -D "$d/data" -A trust --locale=C.UTF-8 -E UTF8 >"$d/initdb.log" 2>&1 </dev/null \
      || die "postgres: initdb failed: see $d/initdb.log"
  fi
  launch postgres postgres "$bin/postgres" -D "$d/data" -p "$p" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories="$d" -c max_connections=300
}

ready_postgres() {
  local d=$state/postgres bin
  bin=$(pg_bin)
  [ -s "$d/data/postmaster.pid" ] || return 1
  local psql=("$bin/psql" -h 127.0.0.1 -p "$(cat "$state/postgres.port")" -U postgres -qAt -v ON_ERROR_STOP=1)
  "${psql[@]}" -d postgres -c 'SELECT 1' >/dev/null 2>&1 </dev/null || return 1
  head -1 "$d/data/postmaster.pid" >"$d/pid"
  if [ ! -e "$d/made" ]; then
    "${psql[@]}" -d postgres -c "CREATE ROLE sekali LOGIN SUPERUSER PASSWORD 'sekali'" </dev/null
    "${psql[@]}" -d postgres -c 'CREATE DATABASE sekali OWNER sekali' </dev/null
    touch "$d/made"
  fi
}

docker_postgres() {
  docker_args=(-p "127.0.0.1:$1:5432" -e POSTGRES_USER=sekali -e POSTGRES_PASSWORD=sekali -e POSTGRES_DB=sekali
    postgres:15 -c max_connections=300)
}

docker_ready_postgres() { docker exec "$1" pg_isready -h 127.0.0.1 -U sekali -d sekali; }
