#!/bin/sh
# Makes the 90-minute film that compare.py measures on: make_match.sh OUT.mp4
#
# One minute of moving test picture with light noise, 1080p at 25 frames a second, H.264 at 4 Mbit/s with B-frames and a
# key frame every 10 seconds, repeated 90 times without encoding again: 5400 s, about 2.7 GB. It is as hard to decode
# as broadcast sport, and its making takes minutes, not hours. Beside OUT.mp4 it puts the same pictures as OUT.mkv.
set -eu

[ $# -eq 1 ] || { echo "usage: $0 OUT.mp4" >&2; exit 2; }
out=$1
case $out in *.mp4) ;; *) echo "$0: OUT must end in .mp4" >&2; exit 2 ;; esac
mkdir -p "$(dirname "$out")"
minute=${out%.mp4}.minute.mp4

# No scene-cut key frames, so that the interval is the one named above. The noise is seeded; the bits still differ from
# one version of x264 to the next, so compare only numbers that come from one file.
ffmpeg -v error -nostdin -y -f lavfi -i testsrc2=size=1920x1080:rate=25:duration=60 \
    -vf noise=alls=6:allf=t:all_seed=3,format=yuv420p \
    -c:v libx264 -preset "${PRESET:-medium}" -b:v 4M -maxrate 6M -bufsize 8M -g 250 -keyint_min 250 -sc_threshold 0 \
    "$minute"
ffmpeg -v error -nostdin -y -stream_loop 89 -i "$minute" -c copy "$out"
rm -f "$minute"
ffmpeg -v error -nostdin -y -i "$out" -c copy "${out%.mp4}.mkv"
