#!/bin/sh
# The MCP server @NAME@ for clients that start a program: each line of standard input is sent to it, and what it answers
# is printed. Nothing else is done here.
LC_ALL=C
export LC_ALL

# Prints the answer to the request on standard input.
if command -v bash >/dev/null 2>&1 && bash -c ': >/dev/tcp/@HOST@/@PORT@' 2>/dev/null; then
  exchange() { bash -c 'exec 3<>/dev/tcp/@HOST@/@PORT@ && cat >&3 && cat <&3'; }
elif command -v python3 >/dev/null 2>&1; then
  exchange() {
    python3 -c '
import shutil, socket, sys
with socket.create_connection(("@HOST@", @PORT@)) as connection:
    connection.sendall(sys.stdin.buffer.read())
    shutil.copyfileobj(connection.makefile("rb"), sys.stdout.buffer)'
  }
elif command -v nc >/dev/null 2>&1; then
  exchange() { nc @HOST@ @PORT@; }
else
  echo "the MCP server @NAME@ can't be reached: bash, python3 or nc is needed" >&2
  exit 1
fi

while IFS= read -r line; do
  printf 'POST @PATH@ HTTP/1.1\r\nHost: @HOST@:@PORT@\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s' "${#line}" "$line" |
    exchange | {
    # A server that breaks off is one that has crashed, and so has this.
    IFS= read -r status && [ "${status#HTTP/1.1 }" != "$status" ] || exit 1
    while IFS= read -r header && [ "${header%?}" ]; do :; done
    body=$(cat)
    case $body in
    '{"jsonrpc"'*) printf '%s\n' "$body" ;;
    *)
      # A notice is accepted without an answer. Nothing else is, and a client that is told nothing waits for ever.
      case $status in *' 202 '*) ;; *) printf '%s\n' "the MCP server @NAME@ refused a message: $body" >&2; exit 1 ;; esac
      ;;
    esac
  } || exit 1
done
