folder=${0%/*}
over=
trap 'over=1; kill "$worker" 2>/dev/null' HUP INT TERM
head=${SSH_CONNECTION%% *}
case $head in *:*) head="[$head]" ;; esac
exec 3<&0
spark-build farm worker "tls://$head:{{ port }}" --certificates "$folder" </dev/null 3<&- &
worker=$!
# Standard input ends with the client or its connection, whatever becomes of them.
{ read -r line <&3; kill "$worker"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$worker"
code=$?
[ -z "$over" ] || wait "$worker"
kill "$watch" 2>/dev/null
rm -rf -- "$folder"
exit "$code"
