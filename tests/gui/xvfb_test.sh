#!/usr/bin/env bash
# A real window under Xvfb, driven by keys: it opens a job, zooms, selects, and quits by itself with exit code 0.
# usage: xvfb_test.sh VIEWER FORESHARD SOURCE. Exit 77 (skipped) without Xvfb or xdotool.
set -euo pipefail
viewer=$1 source=$3
for tool in Xvfb xdotool; do
  command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
work=$(mktemp -d)
screen_pid= viewer_pid=
trap 'for pid in $viewer_pid $screen_pid; do kill $pid 2>/dev/null || true; done; rm -rf "$work"' EXIT
Xvfb -displayfd 3 -screen 0 1440x900x24 3>"$work/display" 2>/dev/null &
screen_pid=$!
for _ in $(seq 100); do [[ -s $work/display ]] && break; sleep 0.1; done
export DISPLAY=:$(cat "$work/display") XDG_CONFIG_HOME=$work XDG_RUNTIME_DIR=$work QT_QPA_PLATFORM=xcb
"$viewer" "$source/examples/toy.toml" &
viewer_pid=$!
# The title names the file once it is on screen.
window=
for _ in $(seq 300); do
  window=$(xdotool search --name 'toy.toml' 2>/dev/null | head -n 1 || true)
  [[ -n $window ]] && break
  kill -0 $viewer_pid || { echo "the viewer ended early"; exit 1; }
  sleep 0.1
done
[[ -n $window ]] || { echo "no window with the file's name"; exit 1; }
xdotool windowfocus --sync "$window"
xdotool key --delay 60 w w d period period m slash
xdotool key --delay 60 Escape f ctrl+q
for _ in $(seq 200); do
  kill -0 $viewer_pid 2>/dev/null || break
  sleep 0.1
done
if kill -0 $viewer_pid 2>/dev/null; then echo "Ctrl+Q did not end the viewer"; exit 1; fi
code=0
wait $viewer_pid || code=$?
viewer_pid=
[[ $code -eq 0 ]] || { echo "exit code $code"; exit 1; }
grep -q 'toy.toml' "$work"/foreshard/*.conf || { echo "the session was not remembered"; exit 1; }
