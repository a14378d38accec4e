#!/usr/bin/env bash
# Starts MariaDB. An empty data folder is filled first, by a server that only its own socket reaches: whoever asks by
# TCP does not get an answer before everything is in place.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
. /usr/local/lib/stand-in.sh

readonly data=/var/lib/mysql
query=(mariadb --user=root --batch)

# MARIADB_… is the name, MYSQL_… the one from before the fork.
settle_both() {
  local name old
  for name in "$@"; do
    old=MYSQL_${name#MARIADB_}
    settle "$name" "$old"
    export "$name=${!name:-${!old:-}}"
  done
}

start_on_socket() {
  "$@" --skip-networking --skip-log-bin &
  server=$!
  for _ in {1..600}; do
    ! "${query[@]}" --execute='SELECT 1' > /dev/null 2>&1 || return 0
    kill -0 "$server" 2> /dev/null || fail "the server ended while it was being set up"
    sleep 0.1
  done
  fail "the server did not start within a minute"
}

accounts() {
  local root=${MARIADB_ROOT_PASSWORD} host=${MARIADB_ROOT_HOST:-%}
  if [ "$host" != localhost ]; then
    echo "CREATE USER root@$(sql_text "$host") IDENTIFIED BY $(sql_text "$root");"
    echo "GRANT ALL ON *.* TO root@$(sql_text "$host") WITH GRANT OPTION;"
  fi
  [ -z "$MARIADB_DATABASE" ] || echo "CREATE DATABASE IF NOT EXISTS $(sql_name "$MARIADB_DATABASE");"
  if [ -n "$MARIADB_USER" ] && [ -n "$MARIADB_PASSWORD" ]; then
    echo "CREATE USER $(sql_text "$MARIADB_USER")@'%' IDENTIFIED BY $(sql_text "$MARIADB_PASSWORD");"
    [ -z "$MARIADB_DATABASE" ] ||
      echo "GRANT ALL ON $(sql_name "${MARIADB_DATABASE//_/\\_}").* TO $(sql_text "$MARIADB_USER")@'%';"
  fi
  echo "ALTER USER root@localhost IDENTIFIED BY $(sql_text "$root");"
}

fill() {
  settle_both MARIADB_{ROOT_PASSWORD,ALLOW_EMPTY_ROOT_PASSWORD,RANDOM_ROOT_PASSWORD,ROOT_HOST,DATABASE,USER,PASSWORD}
  local empty=$MARIADB_ALLOW_EMPTY_ROOT_PASSWORD${MYSQL_ALLOW_EMPTY_PASSWORD:-}
  if [ -n "$MARIADB_RANDOM_ROOT_PASSWORD" ]; then
    MARIADB_ROOT_PASSWORD=$(head -c 24 /dev/urandom | base64)
    say "GENERATED ROOT PASSWORD: $MARIADB_ROOT_PASSWORD"
  elif [ -z "$MARIADB_ROOT_PASSWORD$empty" ]; then
    fail "Database is uninitialized and password option is not specified: set MARIADB_ROOT_PASSWORD,\
 MARIADB_ALLOW_EMPTY_ROOT_PASSWORD or MARIADB_RANDOM_ROOT_PASSWORD"
  fi
  cp -a --sparse=always /var/lib/mysql-new/. "$data"
  start_on_socket "$@"
  "${query[@]}" <<< "$(accounts)"
  # The password reaches the client by its environment: a command line is everybody's to read.
  export MYSQL_PWD=$MARIADB_ROOT_PASSWORD
  run_init_files "${query[@]}" ${MARIADB_DATABASE:+"$MARIADB_DATABASE"}
  "${query[@]}" --execute=SHUTDOWN
  unset MYSQL_PWD
  wait "$server"
  say "MariaDB init process done. Ready for start up."
}

case ${1:-} in -*) set -- mariadbd "$@" ;; esac
case ${1:-} in mariadbd | mysqld) ;; *) exec "$@" ;; esac
[ "$(id -u)" != 0 ] || as_user mysql "$data" /run/mysqld -- "$0" "$@"
[ -d "$data/mysql" ] || fill "$@"
exec "$@"
