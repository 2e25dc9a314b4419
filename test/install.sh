#!/bin/sh
# Installs the Debian packages that tests use, and makes the Debian root that the template tests import.
set -eu
cache=${CAISSON_TEST_CACHE:?}
if [ "$(id -u)" != 0 ]; then
	echo "note: not root: Debian packages are not installed; the Debian template tests run only if $cache/debian.tar is there, and tests that need root say so"
	exit 0
fi
command -v apt-get >/dev/null || { echo "note: no apt-get: install erofs-utils, mmdebstrap, bubblewrap, runc by hand for all tests"; exit 0; }
need=
for p in erofs-utils:fsck.erofs mmdebstrap:mmdebstrap bubblewrap:bwrap runc:runc; do
	command -v "${p#*:}" >/dev/null || need="$need ${p%%:*}"
done
if [ -n "$need" ]; then
	echo "installing$need"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends $need >/dev/null
fi
if [ ! -s "$cache/debian.tar" ]; then
	echo "making a Debian root (about a minute)"
	suite=$(. /etc/os-release; echo "${VERSION_CODENAME:-bookworm}")
	mmdebstrap --quiet --format=tar --variant=apt --include=python3-minimal,gcc,libc6-dev,git,procps,ca-certificates,curl "$suite" "$cache/debian.tar.new"
	mv "$cache/debian.tar.new" "$cache/debian.tar"
fi
