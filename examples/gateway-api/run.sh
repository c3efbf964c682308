#!/usr/bin/env bash
# Baton behind the data plane of an InferencePool, without Kubernetes: starts six
# simulated workers, the plugin and Envoy, sends a few requests, says who served
# them and why, and ends. Everything is on loopback.
#
#   examples/gateway-api/run.sh                  # the plugin is the pool's picker: one worker serves a request
#   FORM=two-legs examples/gateway-api/run.sh    # the same with Envoy patched: prefill and decode apart
#   FORM=behind examples/gateway-api/run.sh      # another picker is the pool's, the plugin carries out what it chooses
#
# FAILURE_MODE is the pool's: FailClose, or FailOpen in the first form. CLIENT_PORT,
# GRPC_PORT, HEALTH_PORT, METRICS_PORT, BATON_PORT, SYNC_PORT and
# BATON_ADMIN change the ports; ENVOY names the binary, BIN a folder to build in;
# MODEL and REQUESTS what is asked for.
set -euo pipefail
cd "$(dirname "$0")/../.."

form=${FORM:-picker}
failure_mode=${FAILURE_MODE:-FailClose}
client_port=${CLIENT_PORT:-10000}
grpc_port=${GRPC_PORT:-9002}       # the pool's picker, whoever that is
health_port=${HEALTH_PORT:-9003}
metrics_port=${METRICS_PORT:-9090}
baton_port=${BATON_PORT:-9004}     # the plugin behind another picker
sync_port=${SYNC_PORT:-9005}
baton_admin=${BATON_ADMIN:-127.0.0.1:9902}
model=${MODEL:-qwen3-32b}

case $form/$failure_mode in
picker/FailClose | picker/FailOpen | two-legs/FailClose | behind/FailClose) ;;
*) echo "FORM=$form FAILURE_MODE=$failure_mode: expected picker, two-legs or behind; FailOpen with picker only" >&2; exit 2 ;;
esac

programs=(./cmd/extproc ./test/cmd/enginesim ./examples/gateway-api/picker ./test/twolegs/patch)
. examples/begin.sh
step "3/3  workers, plugin and Envoy, then requests"

# The pods: two that prefill, two that decode, two that do all.
role() { case $1 in 1*) echo prefill ;; 2*) echo decode ;; 3*) echo aggregated ;; esac; }
ids=(101 102 201 202 301 302)
for id in "${ids[@]}"; do
  "$bin/enginesim" --role "$(role "$id")" --id "$id" --model "$model" >"$dir/$id.json" 2>/dev/null &
  pids+=($!)
done
for id in "${ids[@]}"; do
  for _ in {1..100}; do
    [ ! -s "$dir/$id.json" ] || break
    sleep 0.1
  done
done
{ echo "workers:"; for id in "${ids[@]}"; do echo "- $(head -n 1 "$dir/$id.json")"; done; } >"$dir/workers.yaml"
at() { grep -o '"endpoint":"[^"]*"' "$dir/$1.json" | cut -d'"' -f4; }
address() { local a; a=$(at "$1"); echo "{endpoint: {address: {socket_address: {address: ${a%:*}, port_value: ${a##*:}}}}}"; }

# What a control plane does. Its endpoints are those that the pool selects: here
# who can serve alone, since a fallback may go to each of them.
cat >"$dir/pool.patch.yaml" <<END
- {op: test, path: /static_resources/clusters/1/name, value: pool}
- op: replace
  path: /static_resources/clusters/1/load_assignment/endpoints/0/lb_endpoints
  value: [$(address 301), $(address 302)]
- op: replace
  path: /static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/failure_mode_allow
  value: $([ "$failure_mode" = FailOpen ] && echo true || echo false)
END
# And the subset hint. Here a header says it, so that it can be shown: no client
# may reach such a gateway.
listener=1
[ "$form" != picker ] || listener=0
cat >"$dir/hint.patch.yaml" <<END
- op: add
  path: /static_resources/listeners/$listener/filter_chains/0/filters/0/typed_config/http_filters/0
  value:
    name: envoy.filters.http.header_to_metadata
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
      request_rules:
      - header: x-example-subset
        on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: STRING}
        remove: true
END

two_legs=envoy/gateway-api-two-legs.patch.yaml
case $form in
picker) patches=() ;;
two-legs) patches=("$two_legs") ;;
behind) patches=("$two_legs" examples/gateway-api/behind.patch.yaml) ;;
esac
"$bin/patch" envoy/gateway-api.yaml "$dir/pool.patch.yaml" ${patches[@]+"${patches[@]}"} "$dir/hint.patch.yaml" |
  sed -E -e "s|(\"port_value\": )10000\$|\1$client_port|" -e "s|/run/baton/|$dir/|" \
    -e "s|(\"port_value\": )9002\$|\1$grpc_port|" -e "s|(\"port_value\": )9004\$|\1$baton_port|" \
    -e "s|(\"port_value\": )9005\$|\1$sync_port|" >"$dir/envoy.json"

echo "routing: {debug_header: true}" >"$dir/baton.yaml" # answers say what was decided
if [ "$form" = behind ]; then
  "$bin/extproc" serve --config "$dir/baton.yaml" --workers "$dir/workers.yaml" --listen "127.0.0.1:$baton_port" --admin "$baton_admin" --log-level warn &
  pids+=($!)
  "$bin/picker" --listen "127.0.0.1:$grpc_port" --workers "$dir/workers.yaml" &
else # with the flags of a reference picker; those of the last line are the plugin's own
  "$bin/extproc" --pool-name "$model" --pool-namespace default --grpc-port "$grpc_port" --grpc-health-port "$health_port" \
    --metrics-port "$metrics_port" --metrics-endpoint-auth=false --secure-serving=false \
    --baton-config "$dir/baton.yaml" --workers "$dir/workers.yaml" --admin "$baton_admin" --log-level warn &
fi
pids+=($!)
picker_pid=$!
"$envoy" -c "$dir/envoy.json" --disable-hot-restart --concurrency 1 --log-level error &
pids+=($!)

ask() { # prints the status; the decision is in $dir/headers, the answer in $dir/answer
  rm -f "$dir/answer"
  curl -sS --max-time 10 -o "$dir/answer" -D "$dir/headers" -w '%{http_code}' "http://127.0.0.1:$client_port/v1/completions" \
    -H 'content-type: application/json' -H 'x-debug-decision: 1' "$@" \
    -d "{\"model\":\"$model\",\"prompt\":\"hello\",\"max_tokens\":3}" 2>/dev/null || true
}
told() { # what is asked, status to be had, status that came
  local by
  by=$(grep -i '^x-baton-decision:' "$dir/headers" | grep -o '\(prefill\|decode\|aggregated\)=[0-9/]* reason=[a-z-]*' | tr '\n' ' ' || true)
  echo "$1: $3 ${by:-$(grep -so '"code":"[a-z_]*"' "$dir/answer" || true)}"
  [ "$2" = "$3" ] || { cat "$dir/headers" "$dir/answer"; exit 1; }
}
for _ in {1..100}; do
  [ "$(ask)" != 200 ] || break
  sleep 0.2
done

echo "form $form"
for ((i = 1; i <= ${REQUESTS:-4}; i++)); do
  told "request $i" 200 "$(ask)"
done
# The data plane says to whom a request is limited, and gets a 503 where nobody is left.
some="$(at 102), $(at 202)"
[ "$form" != picker ] || some=$(at 302)
told "limited to 102, 202 or 302" 200 "$(ask -H "x-example-subset: $some")"
told "limited to a stranger" 503 "$(ask -H 'x-example-subset: 192.0.2.1:80')"
# A client is not believed: what it says of destinations is overwritten or stripped.
told "a client that names others" 200 "$(ask -H 'x-gateway-destination-endpoint: 192.0.2.1:80' -H 'x-worker-instance-id: 1')"

# Without its picker the pool does what its failureMode says. FailOpen goes to one
# of the pool's endpoints what has no body: a streamed one is with the picker by
# then. Where a request has two legs it has nowhere to go.
kill "$picker_pid"
wait "$picker_pid" || true
gone=503
[ "$form" != picker ] || gone=500
told "$failure_mode without the picker" "$gone" "$(ask)"
[ "$failure_mode" != FailOpen ] || gone=200
rm -f "$dir/answer"
told "$failure_mode without the picker, no body" "$gone" "$(curl -sS --max-time 10 -o "$dir/answer" -D "$dir/headers" \
  -w '%{http_code}' "http://127.0.0.1:$client_port/v1/models" || true)"
