#!/usr/bin/env bash
# Another endpoint picker before the plugin in one Envoy: starts four simulated
# workers, the picker, the plugin and Envoy, sends a few requests, says who was
# named and who served, and ends. Everything is on loopback.
#
#   examples/direct/run.sh
#   MODEL=name examples/direct/run.sh workers.yaml     # your own workers in place of simulated ones
#
# CLIENT_PORT, PICKER_PORT and BATON_ADMIN change the ports;
# ENVOY names the binary, BIN a folder to build in; MODEL and REQUESTS what is asked for (qwen3-32b, 4 times).
set -euo pipefail
workers=${1:+$(realpath -- "$1")} # from where we were called
cd "$(dirname "$0")/../.."

client_port=${CLIENT_PORT:-10000}
picker_port=${PICKER_PORT:-9003}
baton_admin=${BATON_ADMIN:-127.0.0.1:9902}
model=${MODEL:-qwen3-32b}

programs=(./cmd/extproc ./test/cmd/enginesim ./examples/direct/picker)
. examples/begin.sh
step "3/3  workers, plugin and Envoy, then requests"

if [ -z "$workers" ]; then
  workers=$dir/workers.yaml
  for id in 101 102 201 202; do
    role=prefill
    [ "$id" -lt 200 ] || role=decode
    "$bin/enginesim" --role "$role" --id "$id" --model "$model" >"$dir/$id.json" &
    pids+=($!)
  done
  for id in 101 102 201 202; do
    for _ in {1..100}; do
      [ ! -s "$dir/$id.json" ] || break
      sleep 0.1
    done
  done
  { echo "workers:"; for id in 101 102 201 202; do echo "- $(head -n 1 "$dir/$id.json")"; done; } >"$workers"
fi

sed -e "s|/run/baton/|$dir/|" \
  -e "s|port_value: 10000}|port_value: $client_port}|" \
  -e "s|port_value: 9003}|port_value: $picker_port}|" \
  envoy/standalone-picker.yaml >"$dir/envoy.yaml"

"$bin/picker" --listen "127.0.0.1:$picker_port" --workers "$workers" &
pids+=($!)
echo "routing: {debug_header: true}" >"$dir/baton.yaml" # answers say what was decided
"$bin/extproc" serve --config "$dir/baton.yaml" --workers "$workers" --listen "unix://$dir/extproc.sock" --admin "$baton_admin" --log-level warn &
pids+=($!)
"$envoy" -c "$dir/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level error &
pids+=($!)

ask() { # prints the status; the answer goes to $dir/headers and $dir/answer
  : >"$dir/answer"
  curl -sS --max-time 10 -o "$dir/answer" -D "$dir/headers" -w '%{http_code}' "http://127.0.0.1:$client_port/v1/completions" \
    -H 'content-type: application/json' -H 'x-debug-decision: 1' "$@" \
    -d "{\"model\":\"$model\",\"prompt\":\"hello\",\"max_tokens\":3}" 2>/dev/null || true
}
served() { # $1: the status
  [ "$1" = 200 ] || { cat "$dir/answer" >&2; exit 1; }
}
for _ in {1..100}; do
  case $(ask) in 000 | 503) sleep 0.2 ;; *) break ;; esac # not ready yet
done

for ((i = 1; i <= ${REQUESTS:-4}; i++)); do
  status=$(ask)
  echo "request $i: $status $(grep -i '^x-baton-decision:' "$dir/headers" | grep -o '\(prefill\|decode\)=[0-9/]* reason=[a-z-]*' | tr '\n' ' ')"
  served "$status"
done
# A client that names a worker itself is not believed: the edge strips its headers.
status=$(ask -H 'x-worker-instance-id: 1' -H 'x-gateway-destination-endpoint: 192.0.2.1:80')
echo "a client that names others: $status"
served "$status"
