trap 'over=1; kill "$worker" 2>/dev/null' HUP INT TERM
head=${SSH_CONNECTION%% *}
case $head in *:*) head="[$head]" ;; esac
spark-build farm worker "tls://$head:{{ port }}" --certificates {{ folder }} &
worker=$!
wait "$worker"
code=$?
[ -z "$over" ] || wait "$worker"
rm -rf -- {{ folder }}
exit "$code"
