#!/usr/bin/env bash
# Prefill and decode of a request meet: starts two prefill and two decode workers of
# SGLang, simulated, the plugin and Envoy, sends a few requests, says who served them
# and whether a rule of the engine was broken, and ends. Everything is on loopback.
#
#   examples/sglang/run.sh                     # with simulated workers
#   examples/sglang/run.sh [workers.yaml]      # with your own
#
# CLIENT_PORT and BATON_ADMIN change the ports; ENVOY names the
# binary, BIN a folder to build in; MODEL and REQUESTS what is asked for.
set -euo pipefail
cd "$(dirname "$0")/../.."

client_port=${CLIENT_PORT:-10000}
baton_admin=${BATON_ADMIN:-127.0.0.1:9902}
model=${MODEL:-qwen3-32b}
requests=${REQUESTS:-4}

programs=(./cmd/extproc ./test/cmd/enginesim)
. examples/begin.sh
step "3/3  workers, plugin and Envoy, then requests"

workers=${1:-}
simulated=()
if [ -z "$workers" ]; then
  simulated=(101 102 201 202)
  workers=$dir/workers.yaml
  for id in "${simulated[@]}"; do
    role=prefill
    [ "$id" -lt 200 ] || role=decode
    "$bin/enginesim" --engine sglang --role "$role" --id "$id" --model "$model" >"$dir/$id.json" &
    pids+=($!)
  done
  for id in "${simulated[@]}"; do
    for _ in {1..100}; do
      [ ! -s "$dir/$id.json" ] || break
      sleep 0.1
    done
  done
  { echo "workers:"; for id in "${simulated[@]}"; do echo "- $(head -n 1 "$dir/$id.json")"; done; } >"$workers"
fi

# Both have the folder of their socket in them.
sed -e "s|/run/baton/|$dir/|" examples/sglang/baton.yaml >"$dir/baton.yaml"
sed -e "s|/run/baton/|$dir/|" \
  -e "s|port_value: 10000}|port_value: $client_port}|" \
  envoy/standalone.yaml >"$dir/envoy.yaml"

flags=(--config "$dir/baton.yaml" --workers "$workers" --admin "$baton_admin" --log-level warn)
"$bin/extproc" check "${flags[@]}" >"$dir/effective.yaml"
"$bin/extproc" serve "${flags[@]}" &
pids+=($!)
"$envoy" -c "$dir/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level error &
pids+=($!)

client=http://127.0.0.1:$client_port
for _ in {1..100}; do
  ! curl -sS --max-time 5 "$client/v1/models" 2>/dev/null | grep -q "\"$model\"" || break
  sleep 0.2
done

ask() { # path, body; prints the status; the decision is in $dir/headers, the answer in $dir/answer
  curl -sS --max-time 30 -o "$dir/answer" -D "$dir/headers" -w '%{http_code}' "$client$1" \
    -H 'content-type: application/json' -H 'x-debug-decision: 1' -d "$2" || true
}
for ((i = 1; i <= requests; i++)); do
  if ((i % 2)); then
    kind=completion
    status=$(ask /v1/completions "{\"model\":\"$model\",\"prompt\":\"hello $i\",\"max_tokens\":3}")
  else
    kind='streamed chat'
    status=$(ask /v1/chat/completions \
      "{\"model\":\"$model\",\"messages\":[{\"role\":\"user\",\"content\":\"hello $i\"}],\"max_tokens\":3,\"stream\":true}")
  fi
  pair=$(grep -i '^x-baton-decision:' "$dir/headers" | grep -o '\(prefill\|decode\)=[0-9/]* reason=[a-z-]*' | tr '\n' ' ' || true)
  echo "request $i: $status $kind $pair"
  [ "$status" = 200 ] || { cat "$dir/answer"; exit 1; }
done

# What the simulated workers have in their books: each half has served each request once,
# and nobody holds KV or waits for a half in the end.
prefilled=0 decoded=0
for id in ${simulated[@]+"${simulated[@]}"}; do
  at=$(grep -o '"endpoint":"[^"]*"' "$dir/$id.json" | cut -d'"' -f4)
  state=$(curl -sS --max-time 5 "http://$at/sim/state")
  ok=$(sed -E 's/.*"ok":([0-9]+).*/\1/' <<<"$state")
  echo "worker $id: served $ok"
  if [ "$id" -lt 200 ]; then prefilled=$((prefilled + ok)); else decoded=$((decoded + ok)); fi
  grep -q '"violations":\[\]' <<<"$state" || { echo "a rule of the engine was broken: $state"; exit 1; }
done
if [ -n "${simulated[*]-}" ]; then
  echo "sglang: $prefilled prefilled, $decoded decoded"
  ((prefilled == requests && decoded == requests))
fi
