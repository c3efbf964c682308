# Sourced by the run.sh of each example, in the root of the repository: finds Envoy, makes a
# folder, builds the packages in programs, and ends at the script's end what is in pids. It
# sets envoy, dir (this run's folder), bin (the programs' folder) and pids.
# shellcheck shell=bash disable=SC2034,SC2154  # they are the script's

step() { printf '%(%T)T  %s\n' -1 "$*" >&2; }

step "1/3  Envoy"
make --no-print-directory --silent tally tools
envoy=${ENVOY:-$(command -v envoy || echo .tools/envoy-1.40.0)}

# A folder with a short path: a unix socket's may have 107 bytes.
dir=$(mktemp -d)
bin=$(realpath -m -- "${BIN:-$dir}")
pids=()
stop() {
  trap - EXIT
  ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 1' INT TERM

# What is below ./test is of the module of tests.
product=() tests=()
for program in "${programs[@]}"; do
  case $program in
  ./test/*) tests+=("./${program#./test/}") ;;
  *) product+=("$program") ;;
  esac
done
{
  go build -o "$bin/" "${product[@]}"
  ((${#tests[@]} == 0)) || go -C test build -o "$bin/" "${tests[@]}"
} 2>&1 | .run/tally -follow -name "2/3  the programs" >&2
