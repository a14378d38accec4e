#!/usr/bin/env bash
# Starts MySQL. An empty data folder is filled first, by a server that only its own socket reaches: whoever asks by TCP
# does not get an answer before everything is in place.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
. /usr/local/lib/stand-in.sh

readonly data=/var/lib/mysql
query=(mysql --user=root --batch)

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
  local root=${MYSQL_ROOT_PASSWORD:-} host=${MYSQL_ROOT_HOST:-%}
  if [ "$host" != localhost ]; then
    echo "CREATE USER root@$(sql_text "$host") IDENTIFIED BY $(sql_text "$root");"
    echo "GRANT ALL ON *.* TO root@$(sql_text "$host") WITH GRANT OPTION;"
  fi
  [ -z "${MYSQL_DATABASE:-}" ] || echo "CREATE DATABASE IF NOT EXISTS $(sql_name "$MYSQL_DATABASE");"
  if [ -n "${MYSQL_USER:-}" ] && [ -n "${MYSQL_PASSWORD:-}" ]; then
    echo "CREATE USER $(sql_text "$MYSQL_USER")@'%' IDENTIFIED BY $(sql_text "$MYSQL_PASSWORD");"
    [ -z "${MYSQL_DATABASE:-}" ] ||
      echo "GRANT ALL ON $(sql_name "${MYSQL_DATABASE//_/\\_}").* TO $(sql_text "$MYSQL_USER")@'%';"
  fi
  echo "ALTER USER root@localhost IDENTIFIED BY $(sql_text "$root");"
}

fill() {
  settle MYSQL_{ROOT_PASSWORD,ALLOW_EMPTY_PASSWORD,RANDOM_ROOT_PASSWORD,ROOT_HOST,DATABASE,USER,PASSWORD}
  if [ -n "${MYSQL_RANDOM_ROOT_PASSWORD:-}" ]; then
    MYSQL_ROOT_PASSWORD=$(head -c 24 /dev/urandom | base64)
    say "GENERATED ROOT PASSWORD: $MYSQL_ROOT_PASSWORD"
  elif [ -z "${MYSQL_ROOT_PASSWORD:-}${MYSQL_ALLOW_EMPTY_PASSWORD:-}" ]; then
    fail "Database is uninitialized and password option is not specified: set MYSQL_ROOT_PASSWORD,\
 MYSQL_ALLOW_EMPTY_PASSWORD or MYSQL_RANDOM_ROOT_PASSWORD"
  elif [ "${MYSQL_USER:-}" = root ]; then
    fail "MYSQL_USER=root: root is there anyway; its password is MYSQL_ROOT_PASSWORD"
  fi
  # Arguments may be about the files of a new server, too; without any those of the image will do, which are there at once.
  if [ $# = 1 ]; then cp -a --sparse=always /var/lib/mysql-new/. "$data"; else "$@" --initialize-insecure; fi
  start_on_socket "$@"
  "${query[@]}" <<< "$(accounts)"
  # The password reaches the client by its environment: a command line is everybody's to read.
  export MYSQL_PWD=${MYSQL_ROOT_PASSWORD:-}
  run_init_files "${query[@]}" ${MYSQL_DATABASE:+"$MYSQL_DATABASE"}
  "${query[@]}" --execute=SHUTDOWN
  unset MYSQL_PWD
  wait "$server"
  say "MySQL init process done. Ready for start up."
}

case ${1:-} in -*) set -- mysqld "$@" ;; esac
[ "${1:-}" = mysqld ] || exec "$@"
[ "$(id -u)" != 0 ] || as_user mysql "$data" /run/mysqld -- "$0" "$@"
[ -d "$data/mysql" ] || fill "$@"
exec "$@"
