#!/bin/sh
# Two programs share a simulated GPU of 23034 MiB: each sees its grant as the GPU's size and is refused beyond it.
# Needs `npm ci && npm run build`; no GPU, no root. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/../.."
cotenant="node_modules/.bin/node src/cli/main.ts"
folder=$(mktemp -d)

native/build/cotenant-simulator serve --dir "$folder/gpu" --gpu l4 > "$folder/simulator.log" &
simulator=$!
end() {
  kill "${agent:-$simulator}" 2>/dev/null || true
  wait "${agent:-$simulator}" 2>/dev/null || true
  kill "$simulator" 2>/dev/null || true
  wait "$simulator" 2>/dev/null || true
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM
until [ -S "$folder/gpu/node.sock" ]; do kill -0 "$simulator" || exit 1; sleep 0.1; done

# An agent of a real GPU needs neither of the two libraries' paths.
$cotenant agent --set stateFolder="$folder/state" --set port=0 \
  --set nvmlLibrary="$folder/gpu/lib/libnvidia-ml.so.1" \
  --set cudaLibrary="$folder/gpu/lib/libcuda.so.1" 2> "$folder/agent.log" &
agent=$!
until [ -S "$folder/state/agent.sock" ]; do kill -0 "$agent" || exit 1; sleep 0.1; done

for size in 2Gi 512Mi; do
  echo "a grant of $size:"
  LD_LIBRARY_PATH="$folder/gpu/lib" $cotenant run --quiet --state "$folder/state" --gpu-memory "$size" -- \
    python3 examples/one-machine/fill.py
done
