#!/usr/bin/env bash
# A report in a real browser: what a reader sees has the headings and the picture, at a desk's width and at a phone's.
# usage: browser_test.sh FORESHARD SOURCE. Exit 77 (skipped) without Chromium or the viewer.
set -euo pipefail
foreshard=$1 source=$2
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[[ -n $browser ]] || { echo "skipped: no Chromium"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$foreshard" report "$source/examples/gpt2-8xa100.toml" -o "$work/report.html" --quiet
# The page measures itself in a frame: headings, the picture's size, and whether anything sticks out to the side.
cat >"$work/frame.html" <<'PAGE'
<!doctype html><body><iframe id="f" src="report.html" style="border:0;height:4000px"></iframe><pre id="told"></pre><script>
const frame = document.getElementById('f'), told = document.getElementById('told');
frame.onload = () => {
  for (const width of [1280, 390]) {
    frame.style.width = width + 'px';
    const page = frame.contentDocument, box = page.querySelector('svg').getBoundingClientRect();
    told.textContent += `width ${width}: headings ${page.querySelectorAll('h2').length}, ` +
      `picture ${box.width > width / 2 && box.height > 50 ? 'seen' : 'lost'}, ` +
      `${page.documentElement.scrollWidth <= width ? 'fits' : 'sticks out'}\n`;
  }
};
</script></body>
PAGE
timeout 120 "$browser" --headless --no-sandbox --disable-gpu --allow-file-access-from-files --virtual-time-budget=5000 \
  --user-data-dir="$work/profile" --dump-dom "file://$work/frame.html" >"$work/dom" 2>"$work/log" || { tail -n 5 "$work/log"; exit 1; }
grep '^width\|>width' "$work/dom" | sed 's/<[^>]*>//g'
for width in 1280 390; do
  grep -Eq "width $width: headings [5-9], picture seen, fits" "$work/dom" || { echo "at $width pixels the report is not as it should be"; exit 1; }
done
