# MariaDB, from Debian's packages.

url_mysql() { echo "mysql://sekali:sekali@127.0.0.1:$1/sekali"; }

packages_mysql() { echo mariadb-server; }

start_mysql() {
  local d=$state/mysql p
  p=$(port mysql)
  mkdir -p "$d"; chown mysql "$d"
  if [ ! -d "$d/data/mysql" ]; then
    mariadb-install-db --no-defaults --user=mysql --datadir="$d/data" --skip-test-db >"$d/install.log" 2>&1 </dev/null \
      || die "mysql: mariadb-install-db failed: see $d/install.log"
  fi
  # An unfriendly default character set: key columns must bring their own.
  launch mysql mysql "$(command -v mariadbd || echo /usr/sbin/mariadbd)" --no-defaults --datadir="$d/data" --port="$p" \
    --bind-address=127.0.0.1 --socket="$d/sock" --pid-file="$d/pid" --max-connections=300 \
    --innodb-flush-log-at-trx-commit=1 --character-set-server=utf8mb4 --collation-server=utf8mb4_general_ci
}

ready_mysql() {
  local d=$state/mysql
  [ -s "$d/pid" ] && mariadb --no-defaults -uroot -S "$d/sock" -e 'SELECT 1' >/dev/null 2>&1 </dev/null || return 1
  if [ ! -e "$d/made" ]; then
    mariadb --no-defaults -uroot -S "$d/sock" </dev/null -e "CREATE DATABASE sekali; CREATE USER sekali@'%' IDENTIFIED BY 'sekali';
      GRANT ALL ON *.* TO sekali@'%' WITH GRANT OPTION; CREATE USER sekali@localhost IDENTIFIED BY 'sekali';
      GRANT ALL ON *.* TO sekali@localhost WITH GRANT OPTION"
    touch "$d/made"
  fi
}

docker_mysql() {
  docker_args=(-p "127.0.0.1:$1:3306" -e MARIADB_USER=sekali -e MARIADB_PASSWORD=sekali -e MARIADB_DATABASE=sekali
    -e MARIADB_ROOT_PASSWORD=sekali mariadb:10.11 --max-connections=300)
}

docker_ready_mysql() { docker exec "$1" mariadb -uroot -psekali -h 127.0.0.1 -e "GRANT ALL ON *.* TO sekali@'%'"; }
