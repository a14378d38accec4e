#!/usr/bin/env bash
# Starts PostgreSQL. An empty data folder is filled first, by a server that only its own socket reaches: whoever asks by
# TCP does not get an answer before everything is in place.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
. /usr/local/lib/stand-in.sh

fill() {
  settle POSTGRES_USER POSTGRES_PASSWORD POSTGRES_DB POSTGRES_INITDB_ARGS
  local user=${POSTGRES_USER:-postgres} method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256} secret=
  local database=${POSTGRES_DB:-$user}
  if [ -n "${POSTGRES_PASSWORD:-}" ]; then
    # shellcheck disable=SC2016
    secret='--pwfile=<(printf "%s\n" "$POSTGRES_PASSWORD")'
  elif [ "$method" != trust ]; then
    fail "Database is uninitialized and superuser password is not specified: set POSTGRES_PASSWORD"
  fi
  # The arguments are written as in a shell, quotes included; the password passes through a pipe, not a command line.
  eval "initdb --no-sync --username=${user@Q} $secret ${POSTGRES_INITDB_ARGS:-}"
  printf '\nhost all all all %s\n' "$method" >> "$PGDATA/pg_hba.conf"

  shift
  pg_ctl --wait --options="${*@Q} -c listen_addresses=''" start
  local query=(psql --no-psqlrc --no-password --set=ON_ERROR_STOP=1 --username="$user")
  [ "$database" = postgres ] ||
    "${query[@]}" --dbname=postgres --set=name="$database" <<< 'CREATE DATABASE :"name";'
  run_init_files "${query[@]}" --dbname="$database"
  pg_ctl --wait --mode=fast stop
  say "PostgreSQL init process complete; ready for start up."
}

case ${1:-} in -*) set -- postgres "$@" ;; esac
[ "${1:-}" = postgres ] || exec "$@"
[ "$(id -u)" != 0 ] || as_user postgres "$PGDATA" /var/run/postgresql -- "$0" "$@"
chmod 700 "$PGDATA" || true
[ -s "$PGDATA/PG_VERSION" ] || fill "$@"
exec "$@"
