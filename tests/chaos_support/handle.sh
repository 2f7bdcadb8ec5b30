#!/bin/sh
# Handles one message of tests/chaos.py. Its body is `NAME KIND PAUSE`: it takes PAUSE seconds, and
# fails at its first try (KIND `once`), at each (`pill`), or never (`plain`).
read -r name kind pause
note() {
  # The same clock as the journal's; where there is none, the order of the lines says enough.
  now=0
  [ ! -r /proc/uptime ] || read -r now _ </proc/uptime
  # One write to a file opened for appending: lines of several processes do not mix.
  echo "$now $REVEILLE_LISTENER_ID $1 $name $MESSAGE_DEQUEUE_COUNT" >>"$CHAOS_JOURNAL"
}
note start
[ "$pause" = 0 ] || sleep "$pause"
case $kind-$MESSAGE_DEQUEUE_COUNT in
pill-* | once-1)
  note failed
  exit 1
  ;;
esac
note done
