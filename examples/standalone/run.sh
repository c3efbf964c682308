#!/usr/bin/env bash
# Runs the plugin and an Envoy beside it in the foreground, until Ctrl-C or until
# one of them ends.
#
#   examples/standalone/run.sh [workers.yaml]
#
# CLIENT_PORT and BATON_ADMIN change the ports; ENVOY names the
# binary, BIN a folder to build in.
set -euo pipefail
cd "$(dirname "$0")/../.."

workers=${1:-examples/standalone/workers.yaml}
client_port=${CLIENT_PORT:-10000}
baton_admin=${BATON_ADMIN:-127.0.0.1:9902}

taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
for port in "CLIENT_PORT=$client_port" "BATON_ADMIN=$baton_admin"; do
  if taken "${port##*[=:]}"; then
    echo "$port: something listens on that port already; set ${port%%=*} to another" >&2
    exit 1
  fi
done

programs=(./cmd/extproc)
. examples/begin.sh
trap 'exit 0' INT TERM
step "3/3  plugin and Envoy"
flags=(--config examples/standalone/baton.yaml --workers "$workers"
  --listen "unix://$dir/extproc.sock" --admin "$baton_admin")
"$bin/extproc" check "${flags[@]}" >"$dir/effective.yaml"

sed -e "s|/run/baton/|$dir/|" \
  -e "s|port_value: 10000}|port_value: $client_port}|" \
  envoy/standalone.yaml >"$dir/envoy.yaml"

"$bin/extproc" serve "${flags[@]}" &
pids+=($!)
"$envoy" -c "$dir/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level warning &
pids+=($!)

for port in "$client_port" "${baton_admin##*:}"; do
  until taken "$port"; do
    for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || exit 1; done # it has said why
    sleep 0.1
  done
done
echo "clients: http://127.0.0.1:$client_port   status page: http://$baton_admin/   Ctrl-C ends both"
wait -n "${pids[@]}"
