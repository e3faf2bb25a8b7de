#!/bin/bash
# Checks the package as its administrator uses it, where systemd is process 1. Prints what is run and what that prints, then for
# each check a line, and at last how many passed. No step takes longer than two minutes.
set -u
export LC_ALL=C HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
export SYSTEMD_PAGER=cat SYSTEMD_COLORS=0 NO_COLOR=1

readonly FIRST=$(echo /packages/first/*.deb) SECOND=$(echo /packages/second/*.deb)
readonly GATEWAY=169.254.1.1
readonly POD=5c948341-c030-4996-b888-f032577d97b0
readonly VOLUME=/var/lib/kubelet/pods/$POD/volumes/kubernetes.io~glusterfs/cam-pv-50g
readonly PATIENCE=120

passed=0
failed=0
printed=

# Runs a line of shell, and shows it with what it prints.
run() {
    printf '$ %s\n' "$1"
    printed=$(timeout --kill-after=10 "$PATIENCE" bash -o pipefail -c "$1" 2>&1)
    local status=$?
    [[ -z $printed ]] || printf '%s\n' "$printed"
    return "$status"
}

# Whether what was printed has all of these.
has() {
    local text
    for text in "$@"; do
        [[ $printed == *"$text"* ]] || { echo "missing: $text"; return 1; }
    done
}

# Waits until a command succeeds.
await() {
    local deadline=$((SECONDS + PATIENCE))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || { echo "in vain: $*"; return 1; }
        sleep 0.2
    done
}

check() {
    local verdict=ok
    if "$1"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) verdict=FAILED
        journalctl -u kevtmon -n 50
    fi
    printf 'test systemd::%s ... %s\n\n' "$1" "$verdict"
}

main_pid() {
    systemctl show -P MainPID kevtmon
}

# Whether the service runs as another process than this one.
is_replaced() {
    systemctl is-active --quiet kevtmon && [[ $(main_pid) != "$1" ]]
}

# Whether the journal of the service has an entry with these fields.
has_entry() {
    journalctl -q -u kevtmon -o cat "$@" | grep -q .
}

# How many times a configuration was read again, by the log.
reloads() {
    journalctl -q -u kevtmon -o cat --grep 'configuration reloaded' | grep -c .
}

reload() {
    local before
    before=$(reloads)
    run 'systemctl reload kevtmon' && await more_reloads "$before"
}

more_reloads() {
    (($(reloads) > $1))
}

# What a removal must leave as it was before.
snapshot() {
    find / -xdev \( -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/systemd/timers \) -prune -o -print
    find /run /sys/fs/cgroup -name '*kevtmon*'
    find /sys/fs/bpf -mindepth 1
    cat /etc/passwd /etc/group
    # Those of systemd come and go with other services.
    bpftool prog list | grep -o ' name .* tag' | grep -v ' name sd_'
}

make_pod() {
    ip netns add pod &&
        ip link add cali9118ebbb10b type veth peer name eth0 netns pod &&
        ip link set cali9118ebbb10b up &&
        ip -n pod address add 10.60.0.17/32 dev eth0 &&
        ip -n pod link set eth0 up &&
        ip -n pod route add "$GATEWAY" dev eth0 &&
        ip -n pod route add default via "$GATEWAY" || return
    nsenter --net=/run/netns/pod sleep infinity &
    await knows_gateway
}

knows_gateway() {
    kevtmon state --json | grep -q "\"gateways\":\[\"$GATEWAY\""
}

# Deletes the gateway's entry of the pod, and waits until the journal names who did it, `culprit`.
delete_gateway() {
    ip -n pod neigh replace "$GATEWAY" lladdr ee:ee:ee:ee:ee:ee nud permanent dev eth0 || return
    echo "$ ip -n pod neigh del $GATEWAY dev eth0"
    ip -n pod neigh del "$GATEWAY" dev eth0 &
    culprit=$!
    wait "$culprit" && await has_entry KEVTMON_KIND=neighbor.deleted "ACTOR_PID=$culprit" ACTOR_COMM=ip
}

# Mounts a volume that a process, `holder`, is in, and lets `culprit` try to unmount it.
refuse_unmount() {
    mkdir -p "$VOLUME" && mount -t tmpfs cam-pv-50g "$VOLUME" || return
    (cd "$VOLUME" && exec sleep infinity) &
    holder=$!
    await is_in_volume || return
    echo "$ umount $VOLUME"
    umount "$VOLUME" &
    culprit=$!
    ! wait "$culprit" && await has_entry KEVTMON_KIND=mount.busy "ACTOR_PID=$culprit" ACTOR_COMM=umount
}

is_in_volume() {
    [[ /proc/$holder/cwd -ef $VOLUME && $(cat "/proc/$holder/comm") == sleep ]]
}

has_status() {
    [[ $(systemctl show -P StatusText kevtmon) == *' sources'* ]]
}

a_service_that_is_installed_runs() {
    run "dpkg --install $FIRST" &&
        run 'systemctl is-enabled kevtmon && systemctl is-active kevtmon' &&
        await has_status && run 'systemctl status kevtmon --full | head -n 6' && has 'active (running)' &&
        run 'kevtmon doctor --self-test'
}

what_happens_is_in_the_journal_with_who_did_it() {
    local who="by check.sh (pid $$), by means of"
    make_pod && delete_gateway && refuse_unmount && run 'journalctl -u kevtmon -p warning' &&
        has "static gateway ARP $GATEWAY on eth0 in namespace pod deleted $who ip" \
            "umount of volume cam-pv-50g of pod $POD $who umount, refused: held by sleep (pid $holder)"
}

an_entry_has_fields() {
    local fields=MESSAGE,MESSAGE_ID,PRIORITY,ACTOR_PID,ACTOR_COMM,ACTOR_EXE,ACTOR_UNIT,KEVTMON_KIND,K8S_POD_UID
    local entry="KEVTMON_KIND=mount.busy ACTOR_PID=$culprit"
    run "journalctl -u kevtmon -o json --output-fields=$fields $entry" &&
        has '"MESSAGE":"umount of volume cam-pv-50g' '"MESSAGE_ID":"' '"PRIORITY":"4"' "\"ACTOR_PID\":\"$culprit\"" \
            '"ACTOR_COMM":"umount"' '"ACTOR_EXE":"/' '"ACTOR_UNIT":"check.service"' '"KEVTMON_KIND":"mount.busy"' \
            "\"K8S_POD_UID\":\"$POD\"" || return
    # The whole event as JSON.
    printed=$(journalctl -u kevtmon -o cat --output-fields=KEVTMON_EVENT KEVTMON_KIND=mount.busy "ACTOR_PID=$culprit")
    has '"kind":"mount.busy"' '"cmdline":"umount ' "\"holders\":[{\"pid\":$holder,"
}

the_catalog_explains_incidents() {
    run 'journalctl -u kevtmon -x KEVTMON_KIND=incident.opened KEVTMON_INCIDENT_KIND=gateway-neighbor-lost' &&
        has "Subject: A pod has lost its gateway's neighbor entry" 'kevtmon why ' || return
    run 'journalctl -u kevtmon -x KEVTMON_KIND=incident.opened KEVTMON_INCIDENT_KIND=volume-busy' &&
        has 'Subject: ' 'kevtmon why '
}

a_reload_takes_a_changed_setting() {
    local pid
    pid=$(main_pid)
    run "sed -i 's/^# cmdline = .*/cmdline = \"off\"/' /etc/kevtmon/kevtmon.toml" && reload &&
        delete_gateway && [[ $(main_pid) == "$pid" ]] || return
    printed=$(journalctl -u kevtmon -o cat --output-fields=KEVTMON_EVENT "ACTOR_PID=$culprit")
    has '"kind":"neighbor.deleted"' && [[ $printed != *'"cmdline"'* ]]
}

a_daemon_that_hangs_is_restarted() {
    local hung
    hung=$(main_pid)
    echo "$ kill -STOP $hung"
    kill -STOP "$hung" && await is_replaced "$hung" &&
        run 'systemctl show -p NRestarts -p MainPID -p ActiveState kevtmon' && has NRestarts=1 &&
        run 'journalctl -u kevtmon -o cat _PID=1 | grep -i watchdog' && has 'Watchdog timeout' && delete_gateway
}

a_journal_that_is_restarted_gets_what_comes_then() {
    run 'systemctl restart systemd-journald' && delete_gateway && reload &&
        run "journalctl -u kevtmon -o cat KEVTMON_KIND=neighbor.deleted ACTOR_PID=$culprit"
}

no_mount_is_pinned() {
    local metrics='curl --silent http://127.0.0.1:19809/metrics | grep ^kevtmon_self_pins'
    # A scan pins some for a moment.
    await pins_nothing && run "$metrics"
}

pins_nothing() {
    local lines
    lines=$(curl --silent http://127.0.0.1:19809/metrics | grep ^kevtmon_self_pins)
    [[ -n $lines ]] && ! grep -qv ' 0$' <<<"$lines"
}

its_exposure_is_bounded() {
    run 'systemd-analyze security --threshold=65 kevtmon | tail -n 1' && has 'Overall exposure level'
}

a_stop_takes_less_than_five_seconds() {
    local start=${EPOCHREALTIME/./} took
    run 'systemctl stop kevtmon' || return
    took=$(((${EPOCHREALTIME/./} - start) / 1000))
    echo "stopped after $took ms"
    ((took < 5000)) && run 'systemctl show -p Result -p ActiveState kevtmon' && has Result=success inactive &&
        run 'systemctl start kevtmon'
}

recorded() {
    kevtmon events --json --kind neighbor.deleted --kind mount.busy
}

incidents() {
    kevtmon incidents --all --json | grep -o '"id":"[0-9a-f]*"' | sort
}

an_update_keeps_what_happened() {
    local events all pid
    events=$(recorded) all=$(incidents) pid=$(main_pid)
    [[ -n $events && -n $all ]] && run "dpkg --install $SECOND" && await is_replaced "$pid" &&
        run 'dpkg-query --show kevtmon' && run 'kevtmon events --kind mount.busy' &&
        [[ $(recorded) == "$events" && $(incidents) == "$all" ]]
}

a_purge_leaves_nothing() {
    kill "$holder"
    wait "$holder"
    umount "$VOLUME" && rm -r /var/lib/kubelet && ip netns delete pod && run 'dpkg --purge kevtmon' || return
    [[ $(systemctl show -P LoadState kevtmon) == not-found ]] || return
    snapshot | sort >/run/after
    run 'diff /run/before /run/after'
}

# With a unit that has failed it is `degraded`.
run 'systemctl is-system-running --wait'
snapshot | sort >/run/before
check a_service_that_is_installed_runs
check what_happens_is_in_the_journal_with_who_did_it
check an_entry_has_fields
check the_catalog_explains_incidents
check a_reload_takes_a_changed_setting
check a_daemon_that_hangs_is_restarted
check a_journal_that_is_restarted_gets_what_comes_then
check no_mount_is_pinned
check its_exposure_is_bounded
check a_stop_takes_less_than_five_seconds
check an_update_keeps_what_happened
check a_purge_leaves_nothing
echo "guest: $passed passed, $failed failed"
