#!/bin/busybox sh
# Process 1 of the machine until systemd is: unpacks Debian into a file system in memory, and becomes its systemd.
set -e
export PATH=/bin
for module in /modules/*; do
    busybox insmod "$module"
done
busybox mkdir /debian
busybox mount -t tmpfs -o size=90%,mode=755 debian /debian
busybox tar -xf /debian.tar -C /debian
busybox mv /check /packages /debian/
busybox mv /debian/check/check.service /debian/etc/systemd/system/
busybox chmod 644 /debian/etc/systemd/system/check.service
busybox mkdir -p /debian/etc/systemd/system/multi-user.target.wants
busybox ln -s ../check.service /debian/etc/systemd/system/multi-user.target.wants/
# Not a first start, which asks questions, and no log-in on the console.
echo 0123456789abcdef0123456789abcdef >/debian/etc/machine-id
busybox ln -s /dev/null "/debian/etc/systemd/system/serial-getty@ttyS0.service"
exec busybox switch_root /debian /lib/systemd/systemd --show-status=0
