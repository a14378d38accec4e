# shellcheck shell=bash
# What the entrypoints of the database servers share; they source it.

say() { printf '%s: %s\n' "${0##*/}" "$1" >&2; }
fail() { say "$1"; exit 1; }

# settle NAME...: a variable may be given as NAME or, as a mounted secret, by the path in NAME_FILE.
settle() {
  local name file
  for name in "$@"; do
    file=${name}_FILE
    if [ -n "${!file:-}" ]; then
      [ -z "${!name:-}" ] || fail "$name and $file are both set; only one may be"
      export "$name=$(<"${!file}")"
    fi
    unset "$file"
  done
}

# run_init_files COMMAND...: what was mounted for the first start, by name; COMMAND reads SQL from its standard input.
run_init_files() {
  local file
  for file in /docker-entrypoint-initdb.d/*; do
    [ -e "$file" ] || continue
    say "running $file"
    case $file in
      *.sh)
        # shellcheck disable=SC1090
        if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
      *.sql) "$@" < "$file" ;;
      *.sql.gz) gzip -dc "$file" | "$@" ;;
      *) say "ignoring $file" ;;
    esac
  done
}

# sql_text VALUE: as a literal of MySQL's language.
sql_text() {
  local value=${1//\\/\\\\}
  printf "'%s'" "${value//\'/\'\'}"
}

# sql_name VALUE: as an identifier of MySQL's language.
# shellcheck disable=SC2016
sql_name() { printf '`%s`' "${1//\`/\`\`}"; }

# as_user NAME FOLDER... -- COMMAND...: becomes the command, under that user, who then owns the folders.
as_user() {
  local user=$1 folders=()
  shift
  while [ "$1" != -- ]; do folders+=("$1"); shift; done
  shift
  mkdir -p "${folders[@]}"
  find "${folders[@]}" ! -user "$user" -exec chown "$user:$user" {} +
  exec setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}
