#!/usr/bin/env bash
# A scheduler that asks the router who would serve a request, and then sends it
# with the ids that it was told: starts four simulated workers, the plugin, Envoy
# and the scheduler, and ends with it. Everything is on loopback.
#
#   examples/query-only/run.sh
#   MODEL=name examples/query-only/run.sh workers.yaml     # your own workers in place of simulated ones
#
# CLIENT_PORT and BATON_ADMIN change the ports; ENVOY names the
# binary, BIN a folder to build in; MODEL and REQUESTS what is asked for (qwen3-32b, 4 times).
set -euo pipefail
workers=${1:+$(realpath -- "$1")} # from where we were called
cd "$(dirname "$0")/../.."

client_port=${CLIENT_PORT:-10000}
baton_admin=${BATON_ADMIN:-127.0.0.1:9902}
model=${MODEL:-qwen3-32b}

programs=(./cmd/extproc ./test/cmd/enginesim ./examples/query-only/scheduler)
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
  envoy/standalone-prerouted.yaml >"$dir/envoy.yaml"

echo "routing: {debug_header: true}" >"$dir/baton.yaml" # answers say what was decided
"$bin/extproc" serve --config "$dir/baton.yaml" --workers "$workers" --listen "unix://$dir/extproc.sock" --admin "$baton_admin" --log-level warn &
pids+=($!)
"$envoy" -c "$dir/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level error &
pids+=($!)

for _ in {1..100}; do
  ! curl -sf --max-time 2 -o "$dir/models" "http://127.0.0.1:$client_port/v1/models" || break
  sleep 0.2
done

"$bin/scheduler" --router "http://127.0.0.1:$client_port" --model "$model" -n "${REQUESTS:-4}"
